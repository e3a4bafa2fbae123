"""Decides the shape in which a rule sees a variable, with one function per family of optimizers.

    layout(variable) -> Layout

LAMB's family uses `slices`, AdamP's uses `channels`, and Muon and SOAP use `matrix`.
"""

import dataclasses
import math
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

from tf_lamb.core.patterns import is_norm_or_bias, numbered

Given = Mapping[str, tuple[str, Any]]  # key of a treatment -> (pattern that sets it, value)


@dataclasses.dataclass(frozen=True)
class Variable:
    """A variable, with everything that its layout may depend on.

    Attributes:
        path: The path of the variable.
        name: The path with its number, as `numbered` writes it.
        shape: Its shape.
        excluded: Whether the user excludes it from layer adaptation.
        given: The entries of the user's treatments for it.
        shapes: The shapes of all variables of the model, by name.
    """

    path: str
    name: str
    shape: tuple[int, ...]
    excluded: bool
    given: Given
    shapes: Mapping[str, tuple[int, ...]]

    def get(self, key: str, otherwise=None):
        """Returns what the user's `treatments` argument sets for this variable.

        Args:
            key: A setting of that argument, such as "rate".
            otherwise: What to return if no matching pattern sets it. Defaults to None.
        """
        return self.given[key][1] if key in self.given else otherwise


def variables(
    paths: Sequence[str], shapes: Sequence[Sequence[int]], excluded: Container[int] = (),
    given: Sequence[Given] = (),
) -> list[Variable]:  # fmt: skip
    """Makes the `Variable` of each variable of a model.

    Args:
        paths: The path of each variable.
        shapes: The shape of each variable.
        excluded: The positions of those that the user excludes from layer adaptation.
        given: For each variable, the entries of the user's treatments; empty if there are none.
    """
    names = numbered(paths)
    shape_by_name = {name: tuple(shape) for name, shape in zip(names, shapes, strict=True)}
    return [
        Variable(
            path, name, shape_by_name[name], i in excluded, given[i] if given else {}, shape_by_name
        )
        for i, (path, name) in enumerate(zip(paths, names, strict=True))
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The shape in which a rule sees a variable.

    Attributes:
        adapt: Whether its layer has a trust ratio, may be projected, or is a matrix. Defaults to
            True.
        view: The shape in which the rule sees it. Defaults to None: its own. That of a matrix is
            (rows, columns), and (heads, rows, columns) where each head is a matrix of its own.
        axes: The axes of that shape over which norms run. Defaults to None: the rule's choice.
        order: The order into which its axes are transposed before the view is taken. Defaults to
            None: as they are.
        cut: The shape that it has before that, in which an axis is cut into heads. Defaults to
            None: its own.
        words: A text that says which slices are layers, or which matrix it is. Defaults to none.
    """

    adapt: bool = True
    view: tuple[int, ...] | None = None
    axes: tuple[int, ...] | None = None
    order: tuple[int, ...] | None = None
    cut: tuple[int, ...] | None = None
    words: str = ""


def slices(variable: Variable) -> Layout:
    """Returns the layout in which each block along the axis that the user names is a layer.

    Raises:
        ValueError: if the variable does not have the axis, or if the blocks do not divide it.
    """
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
    """Returns the layout in which norms run over all axes except those of output channels.

    The output channels are the last axis, and the last two in a depthwise kernel. A norm runs over
    one axis at least. The rule chooses the axes of a variable with fewer than two.
    """
    rank, adapt = len(variable.shape), not variable.excluded
    if rank < 2:
        return Layout(adapt=adapt)
    channel_axes = 2 if variable.get("depthwise", "depthwise" in variable.path.lower()) else 1
    return Layout(adapt=adapt, axes=tuple(range(max(rank - channel_axes, 1))))


# Names of the attention layers in Keras, KerasHub and Model Garden.
_END = r"(_dense|_new|_reuse)?(_\d+)?$"
_INTO_HEADS = re.compile(
    r"^(query|key|value|query_key_value|qkv|[qkv]_proj|encoding|attention_weights)" + _END
)
_OUT_OF_HEADS = re.compile(r"^(attention_output|output|output_proj|out_proj|o_proj)" + _END)
_STACKS = ("expert", "block_diag")  # words in the paths of stacks of matrices


def matrix(variable: Variable, embeddings: bool = False, heads: str | None = None) -> Layout:
    """Returns the layout of a variable as a matrix, or one that is not adapted, with the reason.

    A layer maps a vector that rows index to a vector that columns index. An optimizer gets
    variables, not layers. So paths and shapes decide, and the user where they do not suffice:

        two axes                          (in, out)                      rows are axis 0
        convolution                       (..., in, out)                 all axes but the last
        attention, into heads             (model, heads, head size)      axis 0
        attention, out of heads           (heads, head size, model)      axes 0 and 1
        Gemma's attention, into heads     (heads, model, head size)      axis 1
        XLNet's attention, out of heads   (model, heads, head size)      axes 1 and 2
        LoRA's first factor               that of its kernel, rank       those of its kernel

    LoRA's second factor has two axes and is a matrix, so the first one is a matrix, too: where its
    kernel would be none, all its axes but the rank are rows.

    With heads="each", each head of a kernel into heads is a matrix, (model, head size), of a stack,
    and norms are those of a head. LoRA's factors, kernels out of heads, and those whose rows the
    user gives stay one matrix, unless the user gives them heads.

    No matrix are: a bias, a variable of a normalization, a depthwise kernel, a stack of matrices,
    such as those of experts, and a kernel of three axes that is named neither as a convolution nor
    as attention. A convolution in groups has the name and the axes of one without groups, so only
    the user can tell them apart.

    Args:
        variable: The variable.
        embeddings: Whether a variable with "embedding" in its path may be a matrix without rows
            from the user. Defaults to False.
        heads: "each" if each head of a kernel into heads is a matrix. Defaults to None: all heads
            together are one.

    Raises:
        ValueError: if the user's rows are not some of its axes, if it has no such heads, or if
            slices are no rows or columns.
    """
    layout = _as_matrix(variable, embeddings, heads)
    if not layout.adapt:  # a pattern for kernels may well match their biases
        unused = [key for key in ("heads", "slices") if variable.given.get(key, (0, None))[1]]
        return dataclasses.replace(layout, words="; no ".join([layout.words, *unused]))
    return _with_slices(layout, variable) if "slices" in variable.given else layout


def _with_slices(layout, variable):
    """Returns the layout of a matrix whose rows, or columns, have a norm each."""
    pattern, (axis, blocks) = variable.given["slices"]
    shape, rank = variable.shape, len(variable.shape)
    order = layout.order or tuple(range(len(layout.cut or shape)))
    position, count = None, 0
    if -rank <= axis < rank:
        is_behind_cut = layout.cut is not None and axis % rank > order[0]  # the axis of heads
        position, count = order.index(axis % rank + is_behind_cut), shape[axis]
    first = len(layout.view) - 2  # the axis of rows in the view; an axis of heads is before it
    rows, columns = layout.view[first:]
    lengths = [(layout.cut or shape)[i] for i in order]
    before = None if position is None else math.prod(lengths[:position])
    is_row = count == rows and before == math.prod(layout.view[:first])
    is_column = count == columns and before == math.prod(layout.view[: first + 1])
    if not (is_row or is_column) or blocks not in (None, count):
        raise ValueError(
            f"treatments[{pattern!r}] asks for slices {[axis, blocks] if blocks else axis} of "
            f"{variable.path}, whose shape is {shape}, a {layout.words}: a slice of it is one row "
            "or one column. Name the axis that is all of its rows, or all of its columns."
        )
    words = f"{layout.words}, {count} slices along axis {axis % rank}"
    return dataclasses.replace(layout, axes=(first + 1,) if is_row else (first,), words=words)


def _as_matrix(variable, embeddings, heads):
    """Returns what `matrix` does, without slices."""
    path, shape = variable.path, variable.shape
    if variable.excluded:
        return _none("excluded")
    if is_norm_or_bias(path, shape) or path.lower().endswith(("bias", "/scale")):
        return _none("bias or normalization")
    if "rows" in variable.given:
        rows, reason = _rows_by_user(variable), "no matrix, by treatments"
    elif "embedding" in path and not embeddings:
        rows, reason = None, "no matrix, by its name"
    else:
        rows, reason = _rows_by_name(variable)
    axis_and_count = None
    if "heads" in variable.given:  # which are checked where there are no rows, too
        axis_and_count = _heads_by_user(variable)
    elif heads == "each" and rows is not None and "rows" not in variable.given:
        axis_and_count = _heads_by_name(variable, rows)
    return _none(reason) if rows is None else _matrix(shape, rows, axis_and_count)


def _none(reason):
    """Returns the layout of a variable that is no matrix, with the reason."""
    return Layout(adapt=False, words=f"fallback: {reason}")


def _rows_by_user(variable):
    """Returns the user's rows as axes counted from the first; None for what is no matrix.

    Raises `ValueError` if they are not some of its axes.
    """
    pattern, rows = variable.given["rows"]
    if rows is None:
        return None
    rank = len(variable.shape)
    distinct = {axis % rank for axis in rows} if rank else set()
    is_outside = any(not -rank <= axis < rank for axis in rows)
    if is_outside or len(distinct) < len(rows) or len(distinct) == rank:
        axes_text = f"axis {rows[0]}" if len(rows) == 1 else f"axes {', '.join(map(str, rows))}"
        raise ValueError(
            f"treatments[{pattern!r}] makes {axes_text} the rows of {variable.path}, whose shape "
            f"is {variable.shape}: a matrix has some of a variable's axes as rows, each once, and "
            "the others as columns. Narrow the pattern, or give None for what is no matrix."
        )
    return tuple(axis % rank for axis in rows)


def _rows_by_name(variable):
    """Returns the axes that are rows, by path and shape, or None and the reason."""
    path, shape = variable.path, variable.shape
    layer, name = _layer_and_name(path)
    if len(shape) < 2:
        return None, "one axis"
    if len(shape) == 2:
        return (0,), ""
    if re.fullmatch(r"lora_\w+_a", name):
        rows = _rows_of_kernel(variable, layer, "kernel")
        # These may be Gemma's heads, whose query and output kernels are frozen and not known here.
        if rows == (0,) and shape[0] < shape[1]:
            rows = (1,)
        return rows or tuple(range(len(shape) - 1)), ""
    if "depthwise" in (layer if name == "kernel" else name):
        return None, "depthwise"
    if any(word in path.lower() for word in _STACKS):
        return None, "stack of matrices"
    if not name.endswith("kernel"):
        return None, "no kernel"
    rows = _rows_of_kernel(variable, layer, name)
    if rows is None:
        return None, "rows not known: give them in treatments"
    if 1 in _rows_and_columns(shape, rows)[1]:
        return None, "one row or column"
    return rows, ""


def _layer_and_name(path):
    """Returns the last two parts of a path in small letters: those of a layer and of a variable."""
    return ("", *path.lower().split("/"))[-2:]


def _rows_of_kernel(variable, layer, name):
    """Returns the rows of a kernel of three axes or more; None if they are not known."""
    path, shape = variable.path, variable.shape
    rank, all_but_last = len(shape), tuple(range(len(shape) - 1))
    if name != "kernel":
        return all_but_last  # such as Keras's pointwise_kernel
    # The shapes of the kernels of its attention, and of the bias beside it; () if there is none.
    parent, number = path.rpartition("/")[0], variable.name.removeprefix(path)
    attention = parent.rpartition("/")[0]
    query, output, bias = (
        variable.shapes.get(neighbour + number, ())
        for neighbour in (
            f"{attention}/query/kernel", f"{attention}/attention_output/kernel", f"{parent}/bias",
        )
    )  # fmt: skip
    if _INTO_HEADS.match(layer) and rank == 3:
        if len(bias) == 1:  # a bias of channels, because that of heads has two axes
            return all_but_last
        # Gemma's query is (heads, model, head size), and its output (heads, head size, model).
        is_transposed = len(query) == 3 and output == (query[0], query[2], query[1])
        return (1,) if is_transposed and query[0] != query[1] else (0,)
    if layer == "attention_output" and rank == 3 and shape == query:
        return (1, 2)  # XLNet's output is (model, heads, head size)
    if _OUT_OF_HEADS.match(layer) or "conv" in path.lower():
        return all_but_last
    if layer == "sampling_offsets":
        return (0,)
    return all_but_last if rank > 3 and "einsum_dense" not in layer else None


def _heads_by_user(variable):
    """Returns the user's axis of heads, and their number; None if all is one matrix."""
    pattern, axis_and_count = variable.given["heads"]
    if axis_and_count is None:
        return None
    (axis, count), shape, rank = axis_and_count, variable.shape, len(variable.shape)
    has_axis = -rank <= axis < rank
    count = shape[axis] if has_axis and count is None else count
    if not has_axis or rank < 2 or shape[axis] % (count or 1):
        raise ValueError(
            f"treatments[{pattern!r}] makes {count or 'all'} heads of axis {axis} of "
            f"{variable.path}, whose shape is {shape}: heads are all of an axis, or as many blocks "
            "of it as divide it. Narrow the pattern, or give None for what is one matrix."
        )
    return axis % rank, count


def _heads_by_name(variable, rows):
    """Returns the axis of a kernel into heads along which heads lie, and their number, or None."""
    shape = variable.shape
    layer, name = _layer_and_name(variable.path)
    is_kernel = name == "kernel" and len(shape) == 3
    if not (is_kernel and _INTO_HEADS.match(layer) and len(rows) == 1):
        return None
    axis = 1 - rows[0]
    return axis, shape[axis]


def _matrix(shape, rows, heads):
    """Returns the layout in which a variable is a matrix with these axes as rows, or a stack.

    `heads` has the axis along which each block is a matrix, and the number of blocks; None if all
    of the variable is one matrix. One head is one matrix.
    """
    if heads is None or heads[1] < 2:
        order, view = _rows_and_columns(shape, rows)
        words = f"matrix of {view[0]:,} x {view[1]:,}"
        return Layout(view=view, order=_unless_in_order(order), words=words)
    axis, count = heads
    cut = (*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :])
    rows = tuple(row + (row >= axis) for row in rows)  # the axis of blocks is cut off before them
    order, view = _rows_and_columns(cut, rows, (axis,))
    if 1 in view:
        return _none("one row or column")
    return Layout(
        view=(count, *view),
        axes=(1, 2),
        order=_unless_in_order((axis, *order)),
        cut=cut,
        words=f"matrix of {view[0]:,} x {view[1]:,} for each of {count:,} heads",
    )


def _rows_and_columns(shape, rows, left_out=()):
    """Returns the axes in the order rows, columns, and the numbers of rows and of columns."""
    columns = tuple(axis for axis in range(len(shape)) if axis not in (*rows, *left_out))
    view = tuple(math.prod(shape[axis] for axis in axes) for axes in (rows, columns))
    return (*rows, *columns), view


def _unless_in_order(order):
    """Returns an order of axes; None where that leaves them as they are."""
    return None if order == tuple(range(len(order))) else order
