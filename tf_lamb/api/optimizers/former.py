"""Arguments of before: a config may have them, and a constructor names the way of today."""

from collections.abc import Iterable, Mapping
from typing import Any

# The argument of before -> the argument of today, and its key there.
FORMER = {
    "learning_rate_multipliers": ("treatments", "rate"),
    "layer_slices": ("treatments", "slices"),
    "layer_groups": ("treatments", "join"),
    "matrix_rows": ("treatments", "rows"),
    "depthwise": ("treatments", "depthwise"),
}


def way_of_today(known: Iterable[str], name: str) -> str | None:
    """The argument of today in the place of one of before, or None where it is none.

    Args:
        known: the arguments of the optimizer.
    """
    argument, key = FORMER.get(name, ("", ""))
    if name in known or argument not in known:
        return None
    inner = f"{{{key!r}: ...}}"
    return f"{argument}={{regex: {inner}}}" if argument == "treatments" else f"{argument}={inner}"


def of_today(known: Iterable[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """A config of before with the arguments of today, by which the optimizer does the same.

    Args:
        known: the arguments of the optimizer.
    """
    former = [name for name in config if way_of_today(known, name)]
    result = {name: value for name, value in config.items() if name not in former}
    for name in former:
        argument, key = FORMER[name]
        given = dict(result.get(argument) or {})
        if argument == "treatments":
            _treat(given, key, config[name])
        else:
            given[key] = config[name]
        result[argument] = given or None
    return result


def _treat(treatments, key, value):
    """Adds what one argument gave to some patterns, so that the first that matches still counts."""
    if isinstance(value, (list, tuple)):
        value = dict.fromkeys(value, True)
        if key == "depthwise":  # the list stood in the place of Keras's names
            value |= {".": False}
    last = -1
    for pattern, each in (value or {}).items():
        if pattern in treatments and [*treatments].index(pattern) < last:
            pattern += "(?:)"  # the same regex under another key, behind those before it
        treatments[pattern] = {**treatments.get(pattern, {}), key: each}
        last = [*treatments].index(pattern)
