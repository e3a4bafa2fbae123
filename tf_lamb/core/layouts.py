"""How a rule sees a variable: one function for each family of optimizers.

    layout(variable) -> Layout

`slices` is the family's of LAMB, `channels` that of AdamP; Muon's is `core/matrices.py`.
"""

import dataclasses
from collections.abc import Container, Mapping, Sequence
from typing import Any

from tf_lamb.core.patterns import numbered

Given = Mapping[str, tuple[str, Any]]  # key of a treatment -> the pattern that counts, its value


@dataclasses.dataclass(frozen=True)
class Variable:
    """All that a layout may depend on."""

    path: str
    name: str  # the path with its number
    shape: tuple[int, ...]
    excluded: bool  # by the user, from layer adaptation
    given: Given  # what the user's treatments have for it
    shapes: Mapping[str, tuple[int, ...]]  # by name, of every variable of the model

    def get(self, key: str, otherwise=None):
        """The value that a treatment has for it under this key."""
        return self.given[key][1] if key in self.given else otherwise


def variables(
    paths: Sequence[str], shapes: Sequence[Sequence[int]], excluded: Container[int] = (),
    given: Sequence[Given] = (),
) -> list[Variable]:  # fmt: skip
    """The variables of a model.

    Args:
        excluded: the positions of those that the user leaves out of layer adaptation.
        given: of each what treatments have for it; none has any by default.
    """
    names = numbered(paths)
    known = {name: tuple(shape) for name, shape in zip(names, shapes, strict=True)}
    return [
        Variable(path, name, known[name], i in excluded, given[i] if given else {}, known)
        for i, (path, name) in enumerate(zip(paths, names, strict=True))
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The shape in which a rule sees a variable."""

    adapt: bool = True  # its layer has a trust ratio, may be projected, or is a matrix
    view: tuple[int, ...] | None = None  # the shape in which the rule sees it, if not its own
    axes: tuple[int, ...] | None = None  # over which norms run in that shape, or the rule's choice
    order: tuple[int, ...] | None = None  # in which its axes are laid out before they are viewed
    words: str = ""  # which slices are layers of their own, or what matrix it is


def slices(variable: Variable) -> Layout:
    """The layout in which each block along an axis, if the user names one, is a layer of its own.

    Raises:
        ValueError: where the variable has no such axis or blocks.
    """
    shape, adapt = variable.shape, not variable.excluded
    if "slices" not in variable.given:
        return Layout(adapt=adapt)
    pattern, (axis, blocks) = variable.given["slices"]
    asks = f"treatments[{pattern!r}] asks for"
    rank = len(shape)
    if not -rank <= axis < rank:
        raise ValueError(
            f"{asks} axis {axis} of {variable.path}, whose shape is {shape}. Its axes are 0 to "
            f"{rank - 1}; narrow the pattern, or name one of them."
            if rank
            else f"{asks} axis {axis} of {variable.path}, a scalar. Narrow the pattern."
        )
    axis %= rank
    count = shape[axis] if blocks is None else blocks
    if count == 0:  # the variable is empty, so there is nothing to slice
        return Layout(adapt=adapt)
    if shape[axis] % count:
        raise ValueError(
            f"{asks} {count} blocks on axis {axis} of {variable.path}, whose shape is {shape}: "
            f"{shape[axis]} is not a multiple of {count}."
        )
    view = (*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :])
    axes = tuple(i for i in range(len(view)) if i != axis)
    return Layout(adapt=adapt, view=view, axes=axes, words=f"{count} slices along axis {axis}")


def channels(variable: Variable) -> Layout:
    """The layout in which norms run over all axes but those of output channels.

    These are the last, and of a depthwise kernel the last two; one axis at least is left to a norm.
    """
    rank, adapt = len(variable.shape), not variable.excluded
    if rank < 2:
        return Layout(adapt=adapt)
    of_channels = 2 if variable.get("depthwise", "depthwise" in variable.path) else 1
    return Layout(adapt=adapt, axes=tuple(range(max(rank - of_channels, 1))))
