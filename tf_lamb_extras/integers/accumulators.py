"""Finds the range of the integers that each batch normalization of a quantized model reads.

The layer before a batch normalization sums integer inputs times integer weights. Its sums, the
accumulators, are integers times a step. This module follows the graph of layers in functional and
`Sequential` models, of Keras 3 and tf_keras, to find the step and the range of the integers.
"""

import dataclasses
import math
from typing import Any

from tf_lamb.core.checks import number
from tf_lamb_extras.integers import arithmetic
from tf_lamb_extras.integers.activation import QuantizedReLU

# Layers whose output at inference has no values but those of the input, and zeros.
_PASS = (
    "Cropping1D", "Cropping2D", "Cropping3D", "Dropout", "Flatten", "GlobalMaxPooling1D",
    "GlobalMaxPooling2D", "GlobalMaxPooling3D", "MaxPooling1D", "MaxPooling2D", "MaxPooling3D",
    "Permute", "Reshape", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D",
    "ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D",
)  # fmt: skip
# Layers that sum products of inputs and weights.
_SUM = ("Conv1D", "Conv2D", "Conv3D", "Dense", "DepthwiseConv2D")
_MOST = 2**15  # the absolute values of a kernel's integers must be below this number


@dataclasses.dataclass(frozen=True)
class Accumulator:
    """Describes the input of one batch normalization, which is step x + bias for integers x.

    Attributes:
        step: The factor of x.
        low: The lowest x of each channel.
        high: The highest x of each channel.
        bias: The bias of each channel.
        kernel_step: The largest power of two of which all weights of the kernel are multiples. None
            if the user passed the step and the range of x.
    """

    step: float
    low: tuple[int, ...]
    high: tuple[int, ...]
    bias: tuple[float, ...]
    kernel_step: float | None


@dataclasses.dataclass(frozen=True)
class Call:
    """Holds one call of a layer in the graph of a model.

    Attributes:
        layer: The layer.
        inputs: The `id`s of the input tensors.
        outputs: The `id`s of the output tensors.
        rank: The number of axes of the first output.
    """

    layer: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    rank: int


def calls_of(model, function: str) -> list[Call]:
    """Returns the calls of a model's layers. A call comes after the calls whose outputs it reads.

    Args:
        model: A functional or `Sequential` model.
        function: The name of the public function that the user called, for the error message.

    Raises:
        ValueError: If the model has no graph of its layers.
    """
    # seam: private API of Keras 3.15.1 and tf_keras 2.20.1. In Keras 3 a `Sequential` model
    # contains a functional model, which has the graph.
    graph = getattr(model, "_functional", None) or model
    nodes = getattr(graph, "_nodes_by_depth", None)
    if not nodes:
        raise ValueError(
            f"{function} reads how layers follow each other, which {model!r:.80} does not tell: "
            "give it a functional or a Sequential model that is built, say by an Input."
        )

    def call_of(node):
        inputs = node.input_tensors if hasattr(node, "operation") else node.keras_inputs
        outputs = node.outputs if isinstance(node.outputs, (list, tuple)) else [node.outputs]
        layer = node.operation if hasattr(node, "operation") else node.layer
        return Call(layer, tuple(map(id, inputs)), tuple(map(id, outputs)), len(outputs[0].shape))

    return [call_of(node) for depth in sorted(nodes, reverse=True) for node in nodes[depth]]


class Accumulators:
    """Finds the accumulators of a model: the integers that its batch normalizations read.

    Args:
        layers: The module `layers` of the model's Keras.
        calls: The calls of the model's layers.
        input_range: The lowest and the highest input of the model, or None if unknown.
    """

    def __init__(self, layers, calls, input_range):
        self._input_range = input_range
        self._input, self._pass, self._sum = (
            tuple(getattr(layers, name) for name in names)
            for names in (("InputLayer",), _PASS, _SUM)
        )
        self._makers = {tensor: call for call in calls for tensor in call.outputs}

    def of(self, call: Call, axis: int) -> Accumulator:
        """Returns the `Accumulator` of a batch normalization.

        Args:
            call: The call of the batch normalization.
            axis: The axis that it normalizes; -1 for the last.

        Raises:
            ValueError: If the layer before the batch normalization does not sum integers, or if the
                features of that layer are on another axis.
        """
        name, maker = call.layer.name, self._makers[call.inputs[0]]
        layer = maker.layer
        if type(layer) not in self._sum:
            raise _unknown(name, f"{layer.name}, a {type(layer).__name__}, is before it")
        if getattr(layer.activation, "__name__", None) != "linear":
            raise _unknown(name, f"{layer.name} before it has an activation")
        channels_first = getattr(layer, "data_format", None) == "channels_first"
        if axis != (1 if channels_first else -1):
            raise ValueError(
                f"{name} normalizes another axis than that of {layer.name}'s features."
            )
        scale, least_input, greatest_input = self._grid(maker.inputs[0], name)
        kernel = getattr(layer, "depthwise_kernel", None)
        kernel = (layer.kernel if kernel is None else kernel).numpy().astype("float64")
        step, multiples = _on_grid(kernel, layer.name)
        channels = call.layer.moving_mean.shape[0]
        # The last axis of a kernel is its output channels. In a depthwise kernel the last two are.
        multiples = multiples.reshape(-1, channels)
        positive, negative = (
            [int(total) for total in part.sum(0).tolist()]
            for part in (multiples * (multiples > 0), multiples * (multiples < 0))
        )
        return Accumulator(
            step=scale * step,
            low=tuple(
                plus * least_input + minus * greatest_input
                for plus, minus in zip(positive, negative, strict=True)
            ),
            high=tuple(
                plus * greatest_input + minus * least_input
                for plus, minus in zip(positive, negative, strict=True)
            ),
            bias=self.bias(call, channels),
            kernel_step=step,
        )

    def bias(self, call: Call, channels: int) -> tuple[float, ...]:
        """Returns the bias of the layer before a batch normalization; zeros if it has none.

        Args:
            call: The call of the batch normalization.
            channels: The number of channels.
        """
        layer = self._makers[call.inputs[0]].layer
        has_bias = type(layer) in self._sum and layer.use_bias
        return tuple(layer.bias.numpy().tolist()) if has_bias else (0.0,) * channels

    def _grid(self, tensor, name) -> tuple[float, int, int]:
        """Returns the scale and the range of a tensor whose values are integers times a scale.

        Args:
            tensor: The `id` of the tensor.
            name: The name of the batch normalization, for the error.

        Returns:
            The scale, the least integer and the greatest integer. The range is extended to contain
            0, because padding adds zeros.

        Raises:
            ValueError: If the values are not known to be integers times a scale.
        """
        maker = self._makers[tensor]
        layer = maker.layer
        if isinstance(layer, QuantizedReLU):
            return layer.scale, 0, 2**layer.bits - 1
        if type(layer) in self._pass:
            return self._grid(maker.inputs[0], name)
        if type(layer) is not self._input[0]:
            raise _unknown(name, f"{layer.name}, a {type(layer).__name__}, has no levels")
        if self._input_range is None:
            raise ValueError(
                f"{name} sums up the model's input, of which no range is known: give whole numbers "
                "to the model, and say input_range=(0, 255)."
            )
        low, high = self._input_range
        return 1.0, min(low, 0), max(high, 0)


def _unknown(name, why):
    """Returns the error for a batch normalization whose input may not consist of integers.

    `why` says why the range of the input cannot be derived from the model.
    """
    return ValueError(
        f"{name} is not given whole numbers that can be known, because {why}. Say what it is given "
        f"by accumulators={{{name!r}: (step, lowest, highest)}}."
    )


def _on_grid(kernel, name):
    """Finds the integers and the power of two whose products are the weights of a kernel.

    Args:
        kernel: The weights, a NumPy array.
        name: The name of the layer, for the error.

    Returns:
        The largest power of two of which all weights are multiples, and the integers, as an array.

    Raises:
        ValueError: If a weight is not finite, or if the integers would have more than 16 bits.
    """
    largest = float(abs(kernel).max())
    if not math.isfinite(largest):
        raise ValueError(
            f"{name}: the kernel holds {largest}; integers need a model that is finite."
        )
    step = 2.0 ** (math.frexp(largest)[1] - 1) if largest else 1.0
    while largest / step < _MOST:
        if not ((kernel / step) % 1).any():
            return step, kernel / step
        step /= 2
    # The error message proposes this step, because the weights would be integers of eight bits.
    coarser_step = 2.0 ** (math.frexp(largest)[1] - 7)
    raise ValueError(
        f"{name}: the kernel is on no grid: its weights are not whole numbers of 16 bits times a "
        f"power of two. Round them first, say to multiples of {coarser_step}."
    )


def given(name, value, bias) -> Accumulator:
    """Returns the `Accumulator` of a batch normalization from the step and range of the user.

    Args:
        name: The name of the batch normalization.
        value: The user's (step, lowest, highest): the factor of the integers, and their range.
        bias: The bias of each channel.

    Raises:
        TypeError: If the value does not have three elements, the step is not a number, or the range
            is not two whole numbers.
        ValueError: If the step is not above 0, or the range is invalid.
    """
    if not isinstance(value, (list, tuple)) or len(value) != 3:
        raise TypeError(
            f"accumulators[{name!r}] must be (step, lowest, highest), such as (0.25, -1000, 1000), "
            f"not {value!r}."
        )
    step, low, high = value
    step = number(f"The step of accumulators[{name!r}]", step, "(0, inf)")
    low, high = arithmetic.check_range(low, high, f"accumulators[{name!r}]")
    channels = len(bias)
    return Accumulator(step, (low,) * channels, (high,) * channels, bias, None)
