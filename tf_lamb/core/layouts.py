"""How a rule sees a variable: one function for each family of optimizers.

    layout(variable) -> Layout

`slices` is the family's of LAMB, `channels` that of AdamP, and `matrix` that of Muon and SOAP.
"""

import dataclasses
import math
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

from tf_lamb.core.patterns import is_norm_or_bias, numbered

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
    """The variables of a model, of which the user excludes some positions from adaptation."""
    names = numbered(paths)
    shape_by_name = {name: tuple(shape) for name, shape in zip(names, shapes, strict=True)}
    return [
        Variable(path, name, shape_by_name[name], i in excluded, given[i] if given else {}, shape_by_name)
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
    """The layout in which each block along an axis that the user names is a layer of its own."""
    shape, adapt = variable.shape, not variable.excluded
    if "slices" not in variable.given:
        return Layout(adapt=adapt)
    pattern, (axis, blocks) = variable.given["slices"]
    request = f"treatments[{pattern!r}] asks for"
    rank = len(shape)
    if not -rank <= axis < rank:
        raise ValueError(
            f"{request} axis {axis} of {variable.path}, whose shape is {shape}. Its axes are 0 to "
            f"{rank - 1}; narrow the pattern, or name one of them."
            if rank
            else f"{request} axis {axis} of {variable.path}, a scalar. Narrow the pattern."
        )
    axis %= rank
    count = shape[axis] if blocks is None else blocks
    if count == 0:  # the variable is empty, so there is nothing to slice
        return Layout(adapt=adapt)
    if shape[axis] % count:
        raise ValueError(
            f"{request} {count} blocks on axis {axis} of {variable.path}, whose shape is {shape}: "
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


# The layers of attention in Keras, KerasHub and Model Garden.
_END = r"(_dense|_new|_reuse)?(_\d+)?$"
_INTO_HEADS = re.compile(
    r"^(query|key|value|query_key_value|qkv|[qkv]_proj|encoding|attention_weights)" + _END
)
_OUT_OF_HEADS = re.compile(r"^(attention_output|output|output_proj|out_proj|o_proj)" + _END)
_STACKS = ("expert", "block_diag")


def matrix(variable: Variable, embeddings: bool = False) -> Layout:
    """The layout of a variable as a matrix; not adapted, with the reason, where it is none.

    A layer maps what the rows index to what the columns index. An optimizer is given variables, not
    layers, so paths and shapes tell, and the user where they do not:

        two axes                          (in, out)                      rows are axis 0
        convolution                       (..., in, out)                 all axes but the last
        attention, into heads             (model, heads, head size)      axis 0
        attention, out of heads           (heads, head size, model)      axes 0 and 1
        Gemma's attention, into heads     (heads, model, head size)      axis 1
        XLNet's attention, out of heads   (model, heads, head size)      axes 1 and 2
        LoRA's first factor               that of its kernel, rank       those of its kernel

    LoRA's second factor has two axes, so that the first is a matrix, too: where its kernel would be
    none, all its axes but the rank are rows.

    No matrix: a bias, what belongs to a normalization, a depthwise kernel, a stack of matrices, as
    of experts, and a kernel of three axes that is named neither as a convolution nor as attention.
    A convolution in groups has the name and the axes of one without: that, only the user knows.

    What has "embedding" in its path may be one where `embeddings` says so, or by the user's rows.
    """
    path, shape = variable.path, variable.shape
    if variable.excluded:
        return _none("excluded")
    if is_norm_or_bias(path, shape) or path.lower().endswith(("bias", "/scale")):
        return _none("bias or normalization")
    if "rows" in variable.given:
        pattern, rows = variable.given["rows"]
        if rows is None:
            return _none("no matrix, by treatments")
        return _matrix(shape, _given(path, shape, pattern, rows))
    if "embedding" in path and not embeddings:
        return _none("no matrix, by its name")
    parent, number = path.rpartition("/")[0], variable.name.removeprefix(path)
    layer = parent.rpartition("/")[0]
    neighbours = f"{layer}/query/kernel", f"{layer}/attention_output/kernel", f"{parent}/bias"
    return _found(path, shape, *(variable.shapes.get(neighbour + number, ()) for neighbour in neighbours))


def _none(reason):
    return Layout(adapt=False, words=f"fallback: {reason}")


def _found(path, shape, query, output, bias):
    """Finds a layout from path and shape; of two kernels of its attention and its bias, or ()."""
    layer, name = ("", *path.lower().split("/"))[-2:]
    if len(shape) < 2:
        return _none("one axis")
    if len(shape) == 2:
        return _matrix(shape, (0,))
    if re.fullmatch(r"lora_\w+_a", name):
        rows = _rows(path, layer, "kernel", shape, query, output, bias)
        if rows == (0,) and shape[0] < shape[1]:  # Gemma's heads; what would tell is frozen
            rows = (1,)
        return _matrix(shape, rows or tuple(range(len(shape) - 1)))
    if "depthwise" in (layer if name == "kernel" else name):
        return _none("depthwise")
    if any(word in path.lower() for word in _STACKS):
        return _none("stack of matrices")
    if not name.endswith("kernel"):
        return _none("no kernel")
    rows = _rows(path, layer, name, shape, query, output, bias)
    if rows is None:
        return _none("rows not known: give them in treatments")
    layout = _matrix(shape, rows)
    return _none("one row or column") if 1 in layout.view else layout


def _rows(path, layer, name, shape, query, output, bias):
    """The rows of a kernel of three axes or more, or None where they are not known."""
    rank, all_but_last = len(shape), tuple(range(len(shape) - 1))
    if name != "kernel":
        return all_but_last  # such as Keras's pointwise_kernel
    if _INTO_HEADS.match(layer) and rank == 3:
        if len(bias) == 1:  # of channels: that of heads has two axes
            return all_but_last
        # Gemma's (heads, model, head size) against the output's (heads, head size, model).
        turned = len(query) == 3 and output == (query[0], query[2], query[1])
        return (1,) if turned and query[0] != query[1] else (0,)
    if layer == "attention_output" and rank == 3 and shape == query:
        return (1, 2)  # XLNet's
    if _OUT_OF_HEADS.match(layer) or "conv" in path.lower():
        return all_but_last
    if layer == "sampling_offsets":
        return (0,)
    return all_but_last if rank > 3 and "einsum_dense" not in layer else None


def _given(path, shape, pattern, rows):
    """The rows that the user gives, counted from the first axis."""
    rank = len(shape)
    distinct = {axis % rank for axis in rows} if rank else set()
    is_outside = any(not -rank <= axis < rank for axis in rows)
    if is_outside or len(distinct) < len(rows) or len(distinct) == rank:
        axes_text = f"axis {rows[0]}" if len(rows) == 1 else f"axes {', '.join(map(str, rows))}"
        raise ValueError(
            f"treatments[{pattern!r}] makes {axes_text} the rows of {path}, whose shape is "
            f"{tuple(shape)}: a matrix has some of a variable's axes as rows, each once, and the "
            "others as columns. Narrow the pattern, or give None for what is no matrix."
        )
    return tuple(axis % rank for axis in rows)


def _matrix(shape, rows):
    """The order of the axes and the view in which it is a matrix, and in words how large it is."""
    columns = tuple(axis for axis in range(len(shape)) if axis not in rows)
    view = tuple(math.prod(shape[axis] for axis in axes) for axes in (rows, columns))
    order = (*rows, *columns)
    in_order = order == tuple(range(len(shape)))
    words = f"matrix of {view[0]:,} x {view[1]:,}"
    return Layout(view=view, order=None if in_order else order, words=words)
