"""Checks of concurrent adversarial training before its first step, one sentence each."""

import math

import keras

from tf_lamb.core.checks import number, real
from tf_lamb.core.messages import warn
from tf_lamb_extras.adversarial.keras import SplitBatchNormalization


def check_backend() -> None:
    """Keras runs on a backend whose train step is known here."""
    if (name := keras.backend.backend()) not in ("tensorflow", "jax"):
        raise ValueError(
            f"ConcurrentAdversarial trains on TensorFlow and JAX, not on {name}. "
            "Set KERAS_BACKEND=jax before Keras is imported."
        )


def input_range(value) -> tuple[float, float]:
    """The lowest and the highest value of a pixel."""
    try:
        low, high = map(real, value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"input_range must be two numbers such as (0, 255), not {value!r}."
        ) from error
    if not -math.inf < low < high < math.inf:
        raise ValueError(f"input_range must be (lowest, highest), but it is {value!r}.")
    return low, high


def distance(name: str, value, default: float, width: float) -> float:
    """A distance in the units of the images, within their range, or its default where it is None.

    Raises:
        ValueError, TypeError: for one out of the range.
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
    """A built image model with one input."""
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
    """One batch of images, (batch, height, width, channels)."""
    shape = getattr(x, "shape", None)
    if shape is None or len(shape) != 4:
        found = f"inputs {x!r:.60}" if shape is None else f"an input of shape {tuple(shape)}"
        raise ValueError(
            f"ConcurrentAdversarial perturbs the pixels of one image input, (batch, height, width, "
            f"channels), but {name} has {found}."
        )


def check_unfrozen(line, trainable) -> None:
    """Raises where other variables are trained than those that the model keeps copies of."""
    for copies in line:
        if len(copies) != len(trainable):
            raise ValueError(
                f"The model trains {len(trainable)} variables, but {len(copies)} when "
                "ConcurrentAdversarial was made, which keeps copies of them. Freeze layers first."
            )


def check_pixels(lowest: float, highest: float, bounds) -> None:
    """The pixels of some images lie in the input range, and fill some of it.

    The attack moves whatever lies outside to the nearest bound.
    """
    low, high = bounds
    beyond = max(low - lowest, highest - high) / (high - low)
    seen = f"the images given to fit have pixels from {lowest:g} to {highest:g}"
    advice = "Say the range of the pixels as the model is given them."
    if not beyond < 0.5:
        raise ValueError(f"input_range is ({low:g}, {high:g}), but {seen}. {advice}")
    if beyond > 0.01:
        warn(f"input_range is ({low:g}, {high:g}), and {seen}: attacks end at its bounds. {advice}")
    elif 50 * (highest - lowest) < high - low:
        warn(
            f"input_range is ({low:g}, {high:g}), of which {seen}: an attack of 9/255 of the range "
            f"would leave nothing of them. {advice}"
        )


def check_labels(y) -> None:
    """There is something to be wrong about."""
    if y is None:
        raise ValueError(
            "ConcurrentAdversarial needs labels, whose loss the attack raises: fit(x, y)."
        )


def check_normalization(layers) -> None:
    """No layer mixes clean and adversarial images."""
    for layer in layers:
        if type(layer) not in (keras.layers.BatchNormalization, SplitBatchNormalization):
            raise ValueError(
                f"{layer.name}, a {type(layer).__name__}, would mix the statistics of clean and "
                "adversarial images. Use keras.layers.BatchNormalization, which is split."
            )
