"""The face of the n-bit activation; each door adds its host's `Layer`."""

from typing import TYPE_CHECKING, Any

from tf_lamb.core.batch_norm import fixed_point


class QuantizedReLU:
    """An activation of n bits, which is trained as a ReLU that ends.

        y = scale clip(floor(x / scale), 0, 2^bits - 1)
        dy/dx = 1 for 0 <= x <= 2^bits scale, and 0 elsewhere        (straight through the floor)

    After a `BatchNormalization` whose input is whole numbers times a step, both become integer
    arithmetic: see `fixed_point`.

    Args:
        bits: n, a whole number from 1 to 16.
        scale: Of one level, a power of two, so that no float is rounded. Defaults to None:
            4 / 2^bits, by which the levels end four standard deviations up.
        kwargs: `name`, `dtype` and `trainable`, as every layer has.

    Input and output have the same shape, whatever it is.

    Raises:
        ValueError, TypeError: at construction, for an argument out of its range.

    Example:

    >>> import numpy as np, tensorflow as tf, tf_lamb
    >>> layer = tf_lamb.QuantizedReLU(bits=2, scale=0.5)
    >>> [float(y) for y in layer(np.array([-1.0, 0.4, 0.9, 1.0, 7.0], "float32"))]
    [0.0, 0.0, 0.5, 1.0, 1.5]
    >>> tf_lamb.QuantizedReLU(bits=4).scale
    0.25

    References:
        - Bengio et al., Estimating or Propagating Gradients Through Stochastic Neurons for
          Conditional Computation, https://arxiv.org/abs/1308.3432 (straight-through)
    """

    if TYPE_CHECKING:  # the door's
        _xp: Any

    def __init__(self, bits: int, scale: float | None = None, **kwargs: Any):
        bits = fixed_point.check_bits(bits)
        scale = 4 / 2**bits if scale is None else fixed_point.check_scale("scale", scale)
        super().__init__(**kwargs)
        self.bits, self.scale = bits, scale
        self.supports_masking = True

    def call(self, inputs):
        """The levels; what stands between them and the inputs has no gradient."""
        xp, top = self._xp, 2**self.bits
        kept = xp.clip(inputs, 0.0, top * self.scale)
        levels = self.scale * xp.clip(xp.floor(kept / self.scale), 0.0, top - 1.0)
        # `kept` is between a level and its double: the difference and the sum are exact.
        return kept + xp.stop_gradient(levels - kept)

    def compute_output_shape(self, input_shape):
        """That of the input."""
        return input_shape

    def get_config(self):
        """The host's, and the arguments."""
        return {**super().get_config(), "bits": self.bits, "scale": self.scale}  # type: ignore[misc]
