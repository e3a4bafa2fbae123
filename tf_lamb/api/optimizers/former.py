"""Arguments of before, which the config of a saved optimizer may have."""

from collections.abc import Collection, Mapping
from typing import Any

# The argument of before -> the argument of today, and its key there.
FORMER = {
    "learning_rate_multipliers": ("treatments", "rate"),
    "layer_slices": ("treatments", "slices"),
    "layer_groups": ("treatments", "join"),
    "matrix_rows": ("treatments", "rows"),
    "depthwise": ("treatments", "depthwise"),
    "slot_dtype": ("dtypes", "slots"),
    "master_weights": ("dtypes", "masters"),
    "product_dtype": ("dtypes", "products"),
    "phi_bounds": ("bounds", "weight_norm"),
    "ratio_bounds": ("bounds", "trust_ratio"),
    "momentum_form": ("form", "momentum"),
    "denominator": ("form", "denominator"),
    "clip": ("form", "clip"),
    "newton_schulz_steps": ("form", "newton_schulz_steps"),
    "update_scale": ("form", "update_scale"),
    "fallback_lr_scale": ("form", "fallback_lr_scale"),
    "one_sided": ("form", "one_sided"),
}
_NO_OTHERS = {"depthwise": {".": False}}  # its list stood in the place of Keras's names


def of_today(known: Collection[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """A config of before with the arguments of today, by which the optimizer does the same.

    Args:
        known: the arguments of the optimizer.
    """
    former = [
        name for name in config if name in FORMER and name not in known and FORMER[name][0] in known
    ]
    result = {name: value for name, value in config.items() if name not in former}
    for name in former:
        argument, key = FORMER[name]
        given, value = dict(result.get(argument) or {}), config[name]
        if name == "master_weights":
            value = {True: "float32", False: None}[bool(value)]
        if argument == "treatments":
            if isinstance(value, (list, tuple)):
                value = {**dict.fromkeys(value, True), **_NO_OTHERS.get(name, {})}
            if value is not None and not isinstance(value, Mapping):
                raise TypeError(f"The config has {name}={value!r}, which holds no patterns.")
            _treat(given, key, value or {})
        else:
            given[key] = value
        result[argument] = given or None
    return result


def _treat(treatments, key, values):
    """Adds what one argument gave to some patterns, so that the first that matches still counts."""
    last = -1
    for pattern, each in values.items():
        if pattern in treatments and [*treatments].index(pattern) < last:
            pattern += "(?:)"  # the same regex under another key, behind those before it
        treatments[pattern] = {**treatments.get(pattern, {}), key: each}
        last = [*treatments].index(pattern)
