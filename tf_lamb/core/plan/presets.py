"""Words that stand in the place of a pattern, for variables that every recipe treats alike."""

from collections.abc import Callable, Sequence


def is_norm_or_bias(path: str, shape: Sequence[int]) -> bool:
    """Whether it is a bias, or a scale or an offset of a normalization.

    An optimizer is given variables, not layers: `bias`, `gamma` and `beta` are what Keras's layers
    name theirs, whatever the user names the layer; of what has one axis, a `scale` is RMS
    normalization's, and all of a layer that has `norm` in its name.
    """
    *layers, name = path.lower().split("/")
    if name in ("bias", "gamma", "beta"):
        return True
    return len(shape) < 2 and (name == "scale" or any("norm" in layer for layer in layers[-1:]))


PRESETS: dict[str, Callable[[str, Sequence[int]], bool]] = {"norm_and_bias": is_norm_or_bias}
