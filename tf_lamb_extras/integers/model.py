"""Converts a model's batch normalizations to integer arithmetic, and prints a table of them."""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tf_lamb.core.messages import table
from tf_lamb_extras.integers import accumulators as walk
from tf_lamb_extras.integers import arithmetic
from tf_lamb_extras.integers.activation import QuantizedReLU

# The columns of the table that a `FixedPoint` prints.
_COLUMNS = ("batch norm", "activation", "channels", "n", "d", "A", "B", "bits", "that needs most")


@dataclasses.dataclass(frozen=True)
class FixedPointLayer:
    """Holds one batch normalization with its activation, in integer arithmetic.

        y = clip((a x + b) >> shift, 0, 2^bits - 1)

    Tuples have one element per channel. x is the sum of the layer before, without its bias: integer
    inputs (inputs divided by their scale) times integer weights (kernel divided by `kernel_step`).
    b includes the bias of that layer.

    Attributes:
        name: The name of the batch normalization.
        activation: The name of the activation.
        bits: The bits of the activation.
        axis: The axis of the channels.
        kernel_step: The largest power of two of which all weights of the kernel are multiples. None
            if the user passed the step and the range of x.
        low: The lowest x of each channel.
        high: The highest x of each channel.
        a: The factor of x.
        b: The offset.
        shift: The number of bits that the sum is shifted to the right.
    """

    name: str
    activation: str
    bits: int
    axis: int
    kernel_step: float | None
    low: tuple[int, ...]
    high: tuple[int, ...]
    a: tuple[int, ...]
    b: tuple[int, ...]
    shift: tuple[int, ...]

    def widths(self) -> tuple[int, ...]:
        """Returns the number of bits that `a x + b` needs in each channel, sign included."""
        channels = map(arithmetic.Integers, self.a, self.b, self.shift)
        return tuple(map(arithmetic.width, channels, self.low, self.high))

    def in_numpy(self, x):
        """Returns y, an int32 array, for an array x of integers.

        Raises:
            TypeError: If x is not an array of integers.
            ValueError: If an integer is out of the range of its channel.
        """
        import numpy as np

        x = np.asarray(x)
        if x.dtype.kind not in "iu":
            raise TypeError(f"{self.name} takes whole numbers, int32 or smaller, not {x.dtype}.")
        if x.size:
            other_axes = tuple(i for i in range(x.ndim) if i != self.axis % x.ndim)
            ends = (end(axis=other_axes).tolist() for end in (x.min, x.max))
            arithmetic.check_inside(self.name, self.low, self.high, *ends)
        shape = self.along(x.ndim)
        a, b, shift = (
            np.array(numbers, np.int32).reshape(shape) for numbers in (self.a, self.b, self.shift)
        )
        return arithmetic.evaluate(np, x.astype(np.int32), a, b, shift, self.bits)

    def in_tensorflow(self, x):
        """Returns y, an int32 tensor, for a tensor x of integers; may be called in a `tf.function`.

        Code that XLA compiles does not check the range of x.

        Raises:
            TypeError: If x is not a tensor of integers.
            tf.errors.InvalidArgumentError: If an integer is out of the range of its channel.
        """
        from tf_lamb_extras.integers.tensorflow import evaluate

        return evaluate(self, x)

    def along(self, rank: int) -> list[int]:
        """Returns the shape in which an array of the channels broadcasts to arrays of this rank."""
        return [-1 if i == self.axis % rank else 1 for i in range(rank)]


@dataclasses.dataclass(frozen=True)
class FixedPoint:
    """Holds the batch normalizations of a model that were converted to integer arithmetic.

    Attributes:
        layers: A dict from the name of a batch normalization to its `FixedPointLayer`.
        left: A dict from the name of each batch normalization that was not converted to the reason.
    """

    layers: dict[str, FixedPointLayer]
    left: dict[str, str]

    def __str__(self):
        rows: list[tuple] = [_COLUMNS]
        for layer in self.layers.values():
            widths = layer.widths()
            widest = max(range(len(widths)), key=widths.__getitem__)
            a, b = ((max(map(abs, entries)).bit_length() + 1) for entries in (layer.a, layer.b))
            counts = len(widths), layer.bits, max(layer.shift), a, b, max(widths)
            rows.append((
                layer.name, layer.activation, *map(str, counts),
                f"{widest}: ({layer.a[widest]} x {layer.b[widest]:+}) >> {layer.shift[widest]}",
            ))  # fmt: skip
        lines = table(rows, right_aligned=range(2, len(_COLUMNS) - 1))
        lines += [f"left as it is: {name}, {why}" for name, why in self.left.items()]
        return "\n".join(lines)


def fixed_point(
    model: Any,
    input_range: Sequence[int] | None = None,
    *,
    accumulators: Mapping[str, tuple[float, int, int]] | None = None,
) -> FixedPoint:
    """Converts batch normalizations with n-bit activations to integer arithmetic, exactly.

    A `BatchNormalization` and the `QuantizedReLU` after it compute the left side at inference, from
    the integers x of a channel. The conversion finds integers A, B and d for the right side:

        clip(floor(k x + b), 0, 2^n - 1)    =    clip((A x + B) >> d, 0, 2^n - 1)

    Both sides are equal at every x of the channel's range. k and b combine the parameters of the
    batch normalization; n is the activation's number of bits. d is the smallest possible. The left
    side is computed in float64. The model's own float32 could differ, where k x + b is so near to
    an integer that float32 rounds it to the other side.

    x is an integer if the layer before (`Dense`, `Conv1D` to `Conv3D`, `DepthwiseConv2D`) sums
    integer inputs times integer weights. The inputs must come from a `QuantizedReLU` or from the
    model's own inputs. Max pooling, padding and reshaping may be in between. The weights must be
    multiples of a power of two. The range of x is the widest that the weights allow. B includes the
    bias of the layer before. The model does not change.

    Args:
        model: A trained functional or `Sequential` model.
        input_range: The lowest and the highest input of the model, both integers. Defaults to
            None, which is enough if no layer before a batch normalization sums the model's input.
        accumulators: A dict from the name of a batch normalization to (step, lowest, highest), for
            those whose input the function cannot find, or for which it finds too wide a range. The
            input is step x, with x from lowest to highest, plus the bias of the layer before.
            Defaults to None: the function finds all inputs.

    Returns:
        A `FixedPoint`. Its `layers` is a dict from names to the integers `a`, `b` and `shift`, the
        ranges `low` and `high`, and the methods `in_numpy(x)` and `in_tensorflow(x)`, which return
        the output in int32. Its `left` has the batch normalizations without a `QuantizedReLU`. It
        prints as a table, with a row for each layer: the largest d, the bits (sign included) of A,
        of B and of A x + B, and the channel with the most bits.

    Raises:
        ValueError, TypeError: For a model without a `QuantizedReLU` after a batch normalization, or
            without a known order of layers. For a layer that is not built or not finite, a kernel
            that is not integers times a power of two, a range that is invalid, unknown or of more
            than 31 bits, and an overflow of int32. `in_numpy` and `in_tensorflow` raise for an
            input that is not an integer or out of range.

    Example:

    >>> import tensorflow as tf
    >>> from tf_lamb_extras.integers import QuantizedReLU, fixed_point
    >>> layers = tf.keras.layers
    >>> model = tf.keras.Sequential([
    ...     tf.keras.Input((2,)), layers.Dense(1, name="sum", kernel_initializer="ones"),
    ...     layers.BatchNormalization(name="norm"), QuantizedReLU(4, scale=2.0)])
    >>> norm = fixed_point(model, input_range=(0, 20)).layers["norm"]
    >>> norm.a, norm.b, norm.shift, norm.low, norm.high
    ((1,), (-1,), (1,), (0,), (40,))
    >>> norm.in_numpy([[4], [40]]).tolist()
    [[1], [15]]

    References:
        - Lin et al., Optimal Quantization for Batch Normalization in Neural Network
          Deployments and Beyond, https://arxiv.org/abs/2008.13128. They claim that A, B and d
          exist. The way in which this function finds them is not theirs.
    """
    if input_range is not None:
        input_range = _check_input_range(input_range)
    layers = _layers_of_its_keras(model)
    norms = _norms(model, layers.BatchNormalization)
    calls = walk.calls_of(model, "fixed_point")
    pairs, reasons_left = _pairs(model, norms, calls)
    accumulators = _check_names(accumulators, pairs)
    if not pairs:
        reasons = "; ".join(f"{name} is left, {why}" for name, why in reasons_left.items())
        raise ValueError(
            f"{model.name} has no BatchNormalization followed by a QuantizedReLU"
            f"{': ' + reasons if reasons else ''}. Put a QuantizedReLU(bits=4) of "
            "tf_lamb_extras.integers in the place of the activation, and train."
        )
    finder = walk.Accumulators(layers, calls, input_range)
    fixed = {
        name: _fixed(call, activation, finder, accumulators.get(name))
        for name, (call, activation) in pairs.items()
    }
    return FixedPoint(fixed, reasons_left)


def _layers_of_its_keras(model):
    """Returns `keras.layers` or `tf_keras.layers`, depending on the class of a model.

    Raises:
        TypeError: If the argument is no model of Keras 3 or tf_keras.
    """
    for base in type(model).__mro__:
        if (root := base.__module__.partition(".")[0]) in ("keras", "tf_keras"):
            return sys.modules[root].layers
    raise TypeError(f"fixed_point takes a model, not {model!r:.80}.")


def _check_input_range(value):
    """Returns the input range as two ints; raises TypeError or ValueError if it is invalid."""
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise TypeError(f"input_range must be two whole numbers such as (0, 255), not {value!r}.")
    low, high = value
    return arithmetic.check_range(low, high, "input_range")


def _norms(model, kind):
    """Returns the layers of batch normalization in a model, also those inside of other layers.

    Args:
        model: The model.
        kind: The class `BatchNormalization` of the model's Keras.

    Raises:
        ValueError: If a layer is not built, so that it has no moving statistics.
    """
    # seam: private API of Keras 3.15.1 and tf_keras 2.20.1, because no public method lists the
    # layers inside of layers.
    norms = {id(layer): layer for layer in model._flatten_layers() if isinstance(layer, kind)}
    for norm in norms.values():
        if getattr(norm, "moving_mean", None) is None:
            raise ValueError(
                f"{norm.name} has no moving statistics: it is not built. Give the model an Input, "
                "and train it first."
            )
    return list(norms.values())


def _pairs(model, norms, calls):
    """Finds the batch normalizations whose output is read by one `QuantizedReLU` and nothing else.

    Args:
        model: The model.
        norms: The layers of batch normalization in the model.
        calls: The calls of all layers.

    Returns:
        A dict from the name of each such batch normalization to the pair (its call, the
        `QuantizedReLU`), and a dict from the name of each other one to why it is not converted.
    """
    outputs = {id(tensor) for tensor in model.outputs}
    pairs, reasons = {}, {}
    for norm in norms:
        norm_calls = [call for call in calls if call.layer is norm]
        tensors = {tensor for call in norm_calls for tensor in call.outputs}
        readers = [call.layer for call in calls if tensors & set(call.inputs)]
        if not norm_calls:
            reasons[norm.name] = "inside another layer; if that is a model, give it to fixed_point"
        elif len(norm_calls) > 1:
            reasons[norm.name] = (
                f"which is called {len(norm_calls)} times, each with a range of its own"
            )
        elif tensors & outputs:
            reasons[norm.name] = "an output of the model"
        elif len(readers) == 1 and isinstance(readers[0], QuantizedReLU):
            pairs[norm.name] = norm_calls[0], readers[0]
        else:
            names = ", ".join(f"{reader.name} ({type(reader).__name__})" for reader in readers)
            reasons[norm.name] = f"which is read by {names or 'nothing'}, not by one QuantizedReLU"
    return pairs, reasons


def _check_names(accumulators, pairs):
    """Returns the argument `accumulators` of `fixed_point`, or an empty dict if it is None.

    Args:
        accumulators: The argument.
        pairs: A dict whose keys are the names of the batch normalizations to convert.

    Raises:
        TypeError: If it is not a dict.
        ValueError: If it has a name that is not in `pairs`.
    """
    if accumulators is None:
        return {}
    if not isinstance(accumulators, dict):
        raise TypeError(
            "accumulators must be a dict from the name of a batch normalization to (step, lowest, "
            f"highest), not {accumulators!r:.80}."
        )
    for name in accumulators:
        if name not in pairs:
            raise ValueError(
                f"accumulators names {name!r}, which is no batch normalization followed by a "
                f"QuantizedReLU; those are {', '.join(pairs) or 'none'}."
            )
    return accumulators


def _fixed(call, activation, finder, accumulator_range):
    """Converts one batch normalization and its activation to a `FixedPointLayer`.

    Args:
        call: The call of the batch normalization.
        activation: The activation that follows.
        finder: The `Accumulators` of the model.
        accumulator_range: The user's (step, lowest, highest) of the integers that the batch
            normalization reads. If it is None, `finder` computes them from the layer before.
    """
    norm = call.layer
    channels = norm.moving_mean.shape[0]
    axis = norm.axis if isinstance(norm.axis, int) else norm.axis[0]
    axis = -1 if axis in (-1, call.rank - 1) else axis % call.rank
    if accumulator_range is None:
        accumulator = finder.of(call, axis)
    else:
        accumulator = walk.given(norm.name, accumulator_range, finder.bias(call, channels))

    def values(name, default):
        weight = getattr(norm, name, None)
        return [default] * channels if weight is None else weight.numpy().tolist()

    weights = zip(
        values("gamma", 1.0), values("beta", 0.0), values("moving_mean", 0.0),
        values("moving_variance", 1.0), accumulator.bias, strict=True,
    )  # fmt: skip
    channel_integers = []
    for channel, (gamma, beta, mean, variance, bias) in enumerate(weights):
        name = f"{norm.name}, channel {channel}"
        line = arithmetic.folded(
            gamma, beta, mean - bias, variance, epsilon=norm.epsilon, step=accumulator.step,
            scale=activation.scale, name=name,
        )  # fmt: skip
        low, high = accumulator.low[channel], accumulator.high[channel]
        channel_integers.append(arithmetic.integers(*line, activation.bits, low, high, name))
    a, b, shift = zip(*channel_integers, strict=True)
    return FixedPointLayer(
        norm.name, activation.name, activation.bits, axis, accumulator.kernel_step, accumulator.low,
        accumulator.high, a, b, shift,
    )  # fmt: skip
