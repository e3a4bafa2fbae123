"""What a constructor is given of the axes of variables: by pattern, of what it finds."""

import numbers
from collections.abc import Mapping

from tf_lamb.core.checks import patterns


def slices(argument: str, value) -> dict[str, tuple[int, int | None]] | None:
    """Pattern -> (axis, blocks), or one error; blocks are None for each index on the axis."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise TypeError(
            f"{argument} takes a dict from a regex to an axis, or to an axis and a number of "
            f"blocks, such as {{'qkv/kernel': [-1, 3]}}, not {value!r}."
        )
    patterns(argument, list(value))
    result: dict[str, tuple[int, int | None]] = {}
    for pattern, where in value.items():
        pair = list(where) if isinstance(where, (list, tuple)) else [where]
        axis, blocks = (*pair, None, None)[:2]
        if len(pair) > 2 or not (_is_whole(axis) and (blocks is None or _is_whole(blocks))):
            raise TypeError(
                f"{argument}[{pattern!r}] must be an axis or [axis, blocks], not {where!r}."
            )
        if blocks is not None and blocks < 1:
            raise ValueError(f"{argument}[{pattern!r}] asks for {blocks} blocks; 1 is the least.")
        result[pattern] = (int(axis), None if blocks is None else int(blocks))
    return result


def rows(argument: str, value) -> dict[str, tuple[int, ...] | None] | None:
    """Pattern -> the axes that are rows, or None for what is no matrix; or one error."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise TypeError(
            f"{argument} takes a dict from a regex to the axis or the axes that are rows, or to "
            f"None for what is no matrix, such as {{'query/kernel': 0}}, not {value!r}."
        )
    patterns(argument, list(value))
    result: dict[str, tuple[int, ...] | None] = {}
    for pattern, axes in value.items():
        given = list(axes) if isinstance(axes, (list, tuple)) else [axes]
        if axes is not None and not all(map(_is_whole, given or [None])):
            raise TypeError(
                f"{argument}[{pattern!r}] must be an axis, a list of axes, or None for what is no "
                f"matrix, not {axes!r}."
            )
        result[pattern] = None if axes is None else tuple(map(int, given))
    return result


def _is_whole(value):
    """Whether it is a whole number, NumPy's too, and no bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
