"""Over which axes the norms of a variable run: of its channels, or of each slice of it."""

from collections.abc import Sequence


def channels_of(shape: Sequence[int], axes: int) -> dict:
    """The layout in which norms run over all but the last axes, and over one at least."""
    return {"axes": tuple(range(max(len(shape) - axes, 1)))} if len(shape) > 1 else {}


def slices_of(
    path: str, shape: Sequence[int], group: str, pattern: str, axis: int, blocks: int | None
) -> dict:
    """The layout in which each block along the axis is a layer of its own.

    Raises:
        ValueError: where the variable has no such axis or blocks, or is joined in a group.
    """
    if group:
        raise ValueError(
            f"{path} is in layer_slices ({pattern!r}) and in layer_groups ({group}): a layer "
            "is either a slice or several variables. Narrow one of the patterns."
        )
    rank = len(shape)
    if not -rank <= axis < rank:
        raise ValueError(
            f"layer_slices asks for axis {axis} of {path}, whose shape is {tuple(shape)}. "
            f"Its axes are 0 to {rank - 1}; narrow the pattern, or name one of them."
            if rank
            else f"layer_slices asks for axis {axis} of {path}, a scalar. Narrow the pattern."
        )
    axis %= rank
    count = shape[axis] if blocks is None else blocks
    if count == 0:  # the variable is empty, so there is nothing to slice
        return {}
    if shape[axis] % count:
        raise ValueError(
            f"layer_slices asks for {count} blocks on axis {axis} of {path}, whose shape is "
            f"{tuple(shape)}: {shape[axis]} is not a multiple of {count}."
        )
    view = (*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :])
    axes = tuple(i for i in range(len(view)) if i != axis)
    return {"view": view, "axes": axes, "layout": f"{count} slices along axis {axis}"}
