"""Defines an activation with n-bit output, as a base class of layers for Keras 3 and tf_keras."""

from typing import TYPE_CHECKING, Any

from tf_lamb_extras.integers import arithmetic


class QuantizedReLU:
    """Rounds down to one of 2^n levels; has the gradient of a ReLU with an upper limit.

        y = scale clip(floor(x / scale), 0, 2^bits - 1)
        dy/dx = 1 for 0 <= x <= 2^bits scale, and 0 elsewhere

    The gradient is a straight-through estimate: it ignores the rounding.

    If the layer before is a `BatchNormalization` whose inputs are integers times a step,
    `fixed_point` converts both layers to integer arithmetic.

    Args:
        bits: n, an integer from 1 to 16.
        scale: Distance between two levels, a power of two, because multiplying a float by a power
            of two causes no rounding. Defaults to None: 4 / 2^bits. The upper limit is then 4,
            which is four standard deviations of a normalized input.
        kwargs: The arguments `name`, `dtype` and `trainable` of every layer.

    Input and output have the same shape.

    Raises:
        ValueError, TypeError: At construction, for an argument out of its range.

    Example:

    >>> import numpy as np
    >>> from tf_lamb_extras.integers import QuantizedReLU
    >>> layer = QuantizedReLU(bits=2, scale=0.5)
    >>> [float(y) for y in layer(np.array([-1.0, 0.4, 0.9, 1.0, 7.0], "float32"))]
    [0.0, 0.0, 0.5, 1.0, 1.5]
    >>> QuantizedReLU(bits=4).scale
    0.25

    References:
        - Bengio et al., Estimating or Propagating Gradients Through Stochastic Neurons for
          Conditional Computation, https://arxiv.org/abs/1308.3432 (straight-through)
    """

    if TYPE_CHECKING:  # the subclasses for Keras 3 and for tf_keras set `_xp`, an array namespace
        _xp: Any

    def __init__(self, bits: int, scale: float | None = None, **kwargs: Any):
        bits = arithmetic.check_bits(bits)
        scale = 4 / 2**bits if scale is None else arithmetic.check_scale("scale", scale)
        super().__init__(**kwargs)
        self.bits, self.scale = bits, scale
        self.supports_masking = True

    def call(self, inputs):
        """Rounds the inputs down to multiples of `scale`, from 0 to (2^bits - 1) `scale`.

        The gradient ignores the rounding.
        """
        xp, top = self._xp, 2**self.bits
        clipped = xp.clip(inputs, 0.0, top * self.scale)
        levels = self.scale * xp.clip(xp.floor(clipped / self.scale), 0.0, top - 1.0)
        # The difference is exact in floats, by Sterbenz's lemma, because above level 0 `clipped` is
        # between the level and twice the level. So the sum is exactly `levels`.
        return clipped + xp.stop_gradient(levels - clipped)

    def compute_output_shape(self, input_shape):
        """Returns the shape of the input."""
        return input_shape

    def get_config(self):
        """Returns the config of the layer, with the constructor's arguments."""
        return {**super().get_config(), "bits": self.bits, "scale": self.scale}  # type: ignore[misc]
