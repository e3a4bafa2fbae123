"""The face of batch normalization in integers; each door adds its layers."""

from collections.abc import Mapping, Sequence
from typing import Any

from tf_lamb.api.layers.integers import accumulators as walk
from tf_lamb.api.layers.integers.report import FixedPoint, FixedPointLayer
from tf_lamb.core.batch_norm import fixed_point as integer


def fixing(host, quantized, tensorflow):
    """The public function, for the layers of one door."""

    def fixed_point(
        model: Any,
        input_range: Sequence[int] | None = None,
        *,
        accumulators: Mapping[str, tuple[float, int, int]] | None = None,
    ) -> FixedPoint:
        """Batch normalizations followed by n-bit activations, in integers: the same outputs.

        At inference a `BatchNormalization` with the `QuantizedReLU` after it is, of a channel's
        accumulator x, a whole number,

            clip(floor(k x + b), 0, 2^n - 1)    =    clip((A x + B) >> d, 0, 2^n - 1)

        with integers A, B and d, at every x of the channel's range: d is the least for which
        there are any. The left side is float64's; the model's own float32 could differ where
        k x + b is within its rounding of a whole number.

        Accumulators are whole where a layer (`Dense`, `Conv1D` to `Conv3D`, `DepthwiseConv2D`)
        sums whole inputs times whole weights: inputs are levels of a `QuantizedReLU` or the
        model's own, maybe pooled (by the largest), padded or reshaped; the weights are multiples
        of a power of two. Their range is the widest that the weights allow. The layer's bias goes
        into B. The model stays as it is.

        Args:
            model: A trained functional or `Sequential` model.
            input_range: The lowest and the highest number that the model is given, which are
                whole. Defaults to None: no batch normalization reads the model's input.
            accumulators: What a batch normalization is given, where that cannot be found or the
                range found is too wide: a dict from its name to (step, lowest, highest), for
                step x with x in that range, plus the bias of a layer that sums. Defaults to None.

        Returns:
            An object with `layers`, a dict from names to integers (`a`, `b` and `shift`, ranges
            `low` and `high`, `in_numpy(x)` and `in_tensorflow(x)`, which give y in int32), and
            with `left`, what is not followed by a `QuantizedReLU`. Printed, it is a table: per
            layer the largest d, the bits, sign included, of A, of B and of A x + B, and the
            channel that needs most.

        Raises:
            ValueError, TypeError: for a model without such a pair or that does not tell how its
                layers follow each other, a layer that is not built or not finite, a kernel that
                is not of whole numbers times a power of two, a range that is none, of more than
                31 bits or unknown, and where int32 would overflow. The evaluators raise for what
                is not whole or out of range.

        Example:

        >>> import tensorflow as tf, tf_lamb
        >>> layers = tf.keras.layers
        >>> model = tf.keras.Sequential([
        ...     tf.keras.Input((2,)), layers.Dense(1, name="sum", kernel_initializer="ones"),
        ...     layers.BatchNormalization(name="norm"), tf_lamb.QuantizedReLU(4, scale=2.0)])
        >>> norm = tf_lamb.fixed_point(model, input_range=(0, 20)).layers["norm"]
        >>> norm.a, norm.b, norm.shift, norm.low, norm.high
        ((1,), (-1,), (1,), (0,), (40,))
        >>> norm.in_numpy([[4], [40]]).tolist()
        [[1], [15]]

        References:
            - Lin et al., Optimal Quantization for Batch Normalization in Neural Network
              Deployments and Beyond, https://arxiv.org/abs/2008.13128. The claim is theirs; the
              construction is ours.
        """
        if input_range is not None:
            input_range = _check_input_range(input_range)
        norms = _norms(model, host.BatchNormalization)
        calls = walk.calls_of(model, "fixed_point")
        pairs, left = _pairs(model, norms, calls, quantized)
        accumulators = _check_names(accumulators, pairs)
        if not pairs:
            reasons = "; ".join(f"{name} is left, {why}" for name, why in left.items())
            raise ValueError(
                f"{model.name} has no BatchNormalization followed by a QuantizedReLU"
                f"{': ' + reasons if reasons else ''}. Put tf_lamb.QuantizedReLU(bits=4) in the "
                "place of the activation, and train."
            )
        finder = walk.Accumulators(host, quantized, calls, input_range)
        layers = {
            name: _fixed(call, activation, finder, accumulators.get(name), tensorflow)
            for name, (call, activation) in pairs.items()
        }
        return FixedPoint(layers, left)

    return fixed_point


def _check_input_range(value):
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise TypeError(f"input_range must be two whole numbers such as (0, 255), not {value!r}.")
    low, high = value
    return integer.check_range(low, high, "input_range")


def _norms(model, host):
    """The batch normalizations of a model, all of which have statistics."""
    # seam: Keras 3.15.1, tf_keras 2.20.1, as in `replacing.py`.
    if not hasattr(model, "_flatten_layers"):
        raise TypeError(f"fixed_point takes a model, not {model!r:.80}.")
    norms = {id(layer): layer for layer in model._flatten_layers() if isinstance(layer, host)}
    for norm in norms.values():
        if getattr(norm, "moving_mean", None) is None:
            raise ValueError(
                f"{norm.name} has no moving statistics: it is not built. Give the model an Input, "
                "and train it first."
            )
    return list(norms.values())


def _pairs(model, norms, calls, quantized):
    """By name, the call of each batch normalization with the activation that alone reads it.

    And why others are left.
    """
    outputs = {id(tensor) for tensor in model.outputs}
    pairs, left = {}, {}
    for norm in norms:
        own = [call for call in calls if call.layer is norm]
        tensors = {tensor for call in own for tensor in call.outputs}
        readers = [call.layer for call in calls if tensors & set(call.inputs)]
        if not own:
            left[norm.name] = "inside another layer; if that is a model, give it to fixed_point"
        elif len(own) > 1:
            left[norm.name] = f"which is called {len(own)} times, each with a range of its own"
        elif tensors & outputs:
            left[norm.name] = "an output of the model"
        elif len(readers) == 1 and isinstance(readers[0], quantized):
            pairs[norm.name] = own[0], readers[0]
        else:
            names = ", ".join(f"{reader.name} ({type(reader).__name__})" for reader in readers)
            left[norm.name] = f"which is read by {names or 'nothing'}, not by one QuantizedReLU"
    return pairs, left


def _check_names(accumulators, pairs):
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


def _fixed(call, activation, finder, given, tensorflow):
    """One pair in integers."""
    norm = call.layer
    channels = norm.moving_mean.shape[0]
    axis = norm.axis if isinstance(norm.axis, int) else norm.axis[0]
    axis = -1 if axis in (-1, call.rank - 1) else axis % call.rank
    if given is None:
        found = finder.of(call, axis)
    else:
        found = walk.given(norm.name, given, finder.bias(call, channels))

    def values(name, default):
        weight = getattr(norm, name, None)
        return [default] * channels if weight is None else weight.numpy().tolist()

    weights = zip(
        values("gamma", 1.0), values("beta", 0.0), values("moving_mean", 0.0),
        values("moving_variance", 1.0), found.bias, strict=True,
    )  # fmt: skip
    numbers = []
    for channel, (gamma, beta, mean, variance, bias) in enumerate(weights):
        name = f"{norm.name}, channel {channel}"
        line = integer.folded(
            gamma, beta, mean - bias, variance, epsilon=norm.epsilon, step=found.step,
            scale=activation.scale, name=name,
        )  # fmt: skip
        low, high = found.low[channel], found.high[channel]
        numbers.append(integer.integers(*line, activation.bits, low, high, name))
    a, b, shift = zip(*numbers, strict=True)
    return FixedPointLayer(
        norm.name, activation.name, activation.bits, axis, found.kernel_step, found.low,
        found.high, a, b, shift, tensorflow,
    )  # fmt: skip
