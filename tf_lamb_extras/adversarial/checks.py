"""Checks the arguments and the data of concurrent adversarial training before its first step."""

import math

import keras

from tf_lamb.core.checks import number, to_float
from tf_lamb.core.messages import warn
from tf_lamb_extras.adversarial.keras import SplitBatchNormalization


def check_backend() -> None:
    """Raises ValueError unless Keras runs on TensorFlow or JAX, the two supported backends."""
    if (name := keras.backend.backend()) not in ("tensorflow", "jax"):
        raise ValueError(
            f"ConcurrentAdversarial trains on TensorFlow and JAX, not on {name}. "
            "Set KERAS_BACKEND=jax before Keras is imported."
        )


def input_range(value) -> tuple[float, float]:
    """Returns the argument `input_range`, the lowest and the highest pixel value, as two floats.

    Args:
        value: The argument, a sequence of two real numbers.

    Raises:
        TypeError: If the value is not two numbers.
        ValueError: If the numbers are not finite, or not in ascending order.
    """
    try:
        low, high = map(to_float, value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"input_range must be two numbers such as (0, 255), not {value!r}."
        ) from error
    if not -math.inf < low < high < math.inf:
        raise ValueError(f"input_range must be (lowest, highest), but it is {value!r}.")
    return low, high


def distance(name: str, value, default: float, width: float) -> float:
    """Checks the argument `epsilon` or `step_size`, and returns it in the units of the images.

    Args:
        name: The name of the argument, for the error message.
        value: The distance between pixels, a number in (0, width], or None.
        default: The distance to return if `value` is None.
        width: The width of the input range, in the units of the images.

    Raises:
        TypeError: If the value is not a number.
        ValueError: If the value is not in (0, width].
    """
    if value is None:
        return default
    try:
        return number(name, value, f"(0, {width!r}]")
    except ValueError as error:
        raise ValueError(
            f"{error}. It is in the units of the images, and input_range is {width:g} wide: 9/255 "
            f"of that are {9 / 255 * width:.3g}."
        ) from error


def check_model(candidate) -> None:
    """Checks that the argument is a built image model with one input.

    Raises:
        TypeError: If the argument is not a `keras.Model`.
        ValueError: If the model has no trainable weights yet, several inputs, or an input without
            four axes.
    """
    if not isinstance(candidate, keras.Model):
        raise TypeError(f"model must be a keras.Model, not {candidate!r:.80}.")
    if not candidate.built or not candidate.trainable_variables:
        raise ValueError(
            f"{candidate.name} has no weights to train yet. Give it an Input, or call it once."
        )
    inputs = getattr(candidate, "inputs", None)
    if inputs:
        check_image(candidate.name, inputs if len(inputs) > 1 else inputs[0])


def check_image(name: str, x) -> None:
    """Checks that an input is one batch of images, (batch, height, width, channels).

    Args:
        name: The name of the model or of the data, for the error.
        x: The input: anything with a `shape`.

    Raises:
        ValueError: If the input has no shape, or a shape of other than four dimensions.
    """
    shape = getattr(x, "shape", None)
    if shape is None or len(shape) != 4:
        description = f"inputs {x!r:.60}" if shape is None else f"an input of shape {tuple(shape)}"
        raise ValueError(
            f"ConcurrentAdversarial perturbs the pixels of one image input, (batch, height, width, "
            f"channels), but {name} has {description}."
        )


def check_unfrozen(copied, trainable) -> None:
    """Checks that the trainable variables of a model are the same as when it was constructed.

    The model keeps copies of these variables as they were in earlier steps.

    Args:
        copied: The `id`s of the variables of which the model keeps copies.
        trainable: The variables that the model trains now, in the same order.

    Raises:
        ValueError: If they differ, because layers were frozen or unfrozen after construction.
    """
    if copied != tuple(map(id, trainable)):
        paths = [v.path for v in trainable if id(v) not in copied]
        others = f", {paths[0]} among them" if paths else ""
        raise ValueError(
            f"The model trains {len(trainable)} variables{others}, but ConcurrentAdversarial keeps "
            f"copies of the {len(copied)} that were trained when it was made. Freeze layers first."
        )


def check_pixels(lowest: float, highest: float, bounds) -> None:
    """Checks that the pixels of some images lie in the input range, and are not all nearly equal.

    The attack moves every pixel outside of the range to the nearest bound. The check warns if a
    pixel is outside by more than 1 % of the range's width, or if all pixels lie within 2 % of it.

    Args:
        lowest: The lowest value of a pixel in the images.
        highest: The highest value of a pixel in the images.
        bounds: The input range, (lowest, highest), in the same units.

    Raises:
        ValueError: If a pixel is outside by half of the range's width or more, or is NaN.
    """
    low, high = bounds
    excess = max(low - lowest, highest - high) / (high - low)
    pixels = f"the images given to fit have pixels from {lowest:g} to {highest:g}"
    advice = "Say the range of the pixels as the model is given them."
    if not excess < 0.5:
        raise ValueError(f"input_range is ({low:g}, {high:g}), but {pixels}. {advice}")
    if excess > 0.01:
        warn(
            f"input_range is ({low:g}, {high:g}), and {pixels}: attacks end at its bounds. {advice}"
        )
    elif 50 * (highest - lowest) < high - low:
        warn(
            f"input_range is ({low:g}, {high:g}), of which {pixels}: an attack of 9/255 of the "
            f"range would leave nothing of them. {advice}"
        )


def check_labels(y) -> None:
    """Raises ValueError if there are no labels, because the attack needs a loss to increase."""
    if y is None:
        raise ValueError(
            "ConcurrentAdversarial needs labels, whose loss the attack raises: fit(x, y)."
        )


def check_normalization(layers) -> None:
    """Raises ValueError if a layer would mix the statistics of clean and adversarial images.

    Args:
        layers: The layers of batch normalization. Only exact instances of Keras's class, or of
            `SplitBatchNormalization`, are accepted.
    """
    for layer in layers:
        if type(layer) not in (keras.layers.BatchNormalization, SplitBatchNormalization):
            raise ValueError(
                f"{layer.name}, a {type(layer).__name__}, would mix the statistics of clean and "
                "adversarial images. Use keras.layers.BatchNormalization, which is split."
            )
