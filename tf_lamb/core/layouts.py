"""Decides how a variable is reshaped for an update rule, and over which axes norms run.

There is one function for each family of optimizers, `layout(variable) -> Layout`: `slices` for
LAMB, LANS, LARS and rules that users write, `channels` for AdamP and SGDP, and `matrix` for Muon
and SOAP.
"""

import dataclasses
import math
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

from tf_lamb.core.patterns import is_norm_or_bias, numbered_paths


class UserChoice(NamedTuple):
    """Holds one setting of a variable from the user's argument treatments={regex: {key: value}}.

    Attributes:
        pattern: The regex, which matches the variable. Error messages quote it.
        value: The value of the setting.
    """

    pattern: str
    value: Any


UserChoices = Mapping[str, UserChoice]  # key in `treatments`, such as "rate" -> the setting


@dataclasses.dataclass(frozen=True)
class Variable:
    """Describes a variable by everything that its layout may depend on.

    Attributes:
        path: The path of the variable.
        name: The path with its number among equal paths, such as `dense/kernel#1of2`.
        shape: The shape of the variable.
        is_excluded: Whether the user excludes the variable from layer adaptation, so that it has no
            trust ratio, is not projected, and is not treated as a matrix.
        user_choices: What the user's `treatments` argument sets for the variable, by key.
        shapes: The shapes of all variables that the optimizer is built for, by name.
    """

    path: str
    name: str
    shape: tuple[int, ...]
    is_excluded: bool
    user_choices: UserChoices
    shapes: Mapping[str, tuple[int, ...]]

    def get(self, key: str, default=None):
        """Returns what the user's `treatments` argument sets for this variable.

        Args:
            key: A key of that argument, such as "rate".
            default: What to return if the argument does not set the key for this variable. Defaults
                to None.
        """
        return self.user_choices[key].value if key in self.user_choices else default


def make_variables(
    paths: Sequence[str], shapes: Sequence[Sequence[int]], excluded_positions: Container[int] = (),
    user_choices: Sequence[UserChoices] = (),
) -> list[Variable]:  # fmt: skip
    """Makes the `Variable` of each variable that an optimizer is built for.

    Args:
        paths: The path of each variable.
        shapes: The shape of each variable.
        excluded_positions: The positions of the variables that the user excludes from layer
            adaptation.
        user_choices: For each variable, what the user's `treatments` argument sets for it, as in
            `Variable`. Defaults to an empty sequence: no settings for any variable.

    Returns:
        The `Variable` objects, in the order of `paths`.
    """
    names = numbered_paths(paths)
    shape_by_name = {name: tuple(shape) for name, shape in zip(names, shapes, strict=True)}
    return [
        Variable(
            path,
            name,
            shape_by_name[name],
            i in excluded_positions,
            user_choices[i] if user_choices else {},
            shape_by_name,
        )  # fmt: skip
        for i, (path, name) in enumerate(zip(paths, names, strict=True))
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Describes how a variable is reshaped before an update rule sees it.

    The variable is reshaped to `split_shape`, its axes are transposed into `order`, and the result
    is reshaped to `view`. A step whose field is None is left out.

    Attributes:
        adapt: Whether the rule adapts its step to the variable: by trust ratios (LAMB, LANS, LARS),
            by a projection (AdamP, SGDP), or by treating it as a matrix (Muon, SOAP). Defaults to
            True.
        view: The shape that the rule sees. Defaults to None: that of the variable. For a matrix it
            is (rows, columns); where each attention head is a matrix, (heads, rows, columns).
        axes: The axes of `view` over which norms run. Defaults to None: the rule's choice.
        order: The order into which the axes are transposed. Defaults to None.
        split_shape: The shape in which the axis of the attention heads is split into (heads, size
            of a head). Defaults to None.
        description: The note on the layout in the table of `tf_lamb.describe`, such as "3 slices
            along axis 0". Defaults to "".
    """

    adapt: bool = True
    view: tuple[int, ...] | None = None
    axes: tuple[int, ...] | None = None
    order: tuple[int, ...] | None = None
    split_shape: tuple[int, ...] | None = None
    description: str = ""


def slices(variable: Variable) -> Layout:
    """Returns the layout in which each of several equal blocks along an axis has a trust ratio.

    The user sets the axis as "slices" in `treatments`, and optionally the number of blocks. Without
    the number, each index of the axis is a block. Without "slices", the variable has one trust
    ratio.

    Raises:
        ValueError: if the variable does not have the axis, or if the length of the axis is not a
            multiple of the number of blocks.
    """
    shape, adapt = variable.shape, not variable.is_excluded
    if "slices" not in variable.user_choices:
        return Layout(adapt=adapt)
    pattern, (axis, blocks) = variable.user_choices["slices"]
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
    block_count = shape[axis] if blocks is None else blocks
    if block_count == 0:  # the variable is empty, so there is nothing to slice
        return Layout(adapt=adapt)
    if shape[axis] % block_count:
        raise ValueError(
            f"{request} {block_count} blocks on axis {axis} of {variable.path}, whose shape is "
            f"{shape}: {shape[axis]} is not a multiple of {block_count}."
        )
    view = (*shape[:axis], block_count, shape[axis] // block_count, *shape[axis + 1 :])
    axes = tuple(i for i in range(len(view)) if i != axis)
    return Layout(
        adapt=adapt, view=view, axes=axes, description=f"{block_count} slices along axis {axis}"
    )


def channels(variable: Variable) -> Layout:
    """Returns the layout in which norms run over all axes except those of output channels.

    The output channels are the last axis, or the last two in a depthwise kernel. A kernel is
    depthwise if the user's `treatments` says so; by default, if its path contains "depthwise". A
    norm runs over at least one axis. For a variable with fewer than two axes, `axes` is None: the
    rule chooses.
    """
    rank, adapt = len(variable.shape), not variable.is_excluded
    if rank < 2:
        return Layout(adapt=adapt)
    channel_axis_count = 2 if variable.get("depthwise", "depthwise" in variable.path.lower()) else 1
    return Layout(adapt=adapt, axes=tuple(range(max(rank - channel_axis_count, 1))))


# The names of attention layers in Keras, KerasHub and Model Garden. A layer "into heads", such as
# the query projection, has the heads among its outputs; a layer "out of heads" has them among its
# inputs.
_NAME_SUFFIX = r"(_dense|_new|_reuse)?(_\d+)?$"
_LAYER_INTO_HEADS = re.compile(
    r"^(query|key|value|query_key_value|qkv|[qkv]_proj|encoding|attention_weights)" + _NAME_SUFFIX
)
_LAYER_OUT_OF_HEADS = re.compile(
    r"^(attention_output|output|output_proj|out_proj|o_proj)" + _NAME_SUFFIX
)
_STACK_WORDS = ("expert", "block_diag")  # a path with one of these is that of a stack of matrices


def matrix(variable: Variable, embeddings: bool = False, heads: str | None = None) -> Layout:
    """Returns the layout of a variable as a matrix, or adapt=False if the variable is no matrix.

    In the latter case, `description` gives the reason. The rows of a matrix belong to the inputs of
    its layer, and the columns to the outputs. An optimizer gets variables without their layers, so
    path and shape decide which axes are rows, unless the user sets "rows" in `treatments`:

        two axes                          (in, out)                      rows are axis 0
        convolution                       (..., in, out)                 all axes but the last
        attention, into heads             (model, heads, head size)      axis 0
        attention, out of heads           (heads, head size, model)      axes 0 and 1
        Gemma's attention, into heads     (heads, model, head size)      axis 1
        XLNet's attention, out of heads   (model, heads, head size)      axes 1 and 2
        LoRA's first factor               (..., rank)                    as in the adapted kernel

    LoRA's second factor has two axes and is therefore a matrix. So that both factors are matrices,
    the first one is a matrix even if the rows of the adapted kernel are not known. Then all of its
    axes except the last, the rank, are rows.

    With heads="each", a kernel into heads becomes a stack of matrices (model, head size), one for
    each head, and each norm is that of one head. LoRA's factors, kernels out of heads, and kernels
    whose rows the user sets stay one matrix, unless the user sets "heads" in `treatments`.

    These are no matrices: an excluded variable, a bias or another vector, a variable of a
    normalization, an embedding without `embeddings`, a depthwise kernel, a stack of matrices, such
    as those of experts, and a kernel of three axes whose name is neither that of a convolution nor
    of attention. A grouped convolution has the same name and axes as an ordinary one and is taken
    for a matrix, unless the user sets its "rows" to None.

    Args:
        variable: The variable.
        embeddings: Whether a variable with "embedding" in its path may be a matrix even if the user
            sets no "rows" for it. Defaults to False.
        heads: "each" if each head of a kernel into heads is a matrix. Defaults to None: all heads
            together are one matrix.

    Raises:
        ValueError: if the user's "rows" are not axes of the variable or are all of its axes, if the
            user's "heads" do not divide an axis, or if the user's "slices" are neither each row nor
            each column.
    """
    layout = _matrix_without_slices(variable, embeddings, heads)
    # Settings without effect raise no error, because a regex for kernels may also match biases. The
    # description names these settings instead.
    if not layout.adapt:
        ignored_keys = [key for key in ("heads", "slices") if variable.get(key)]
        return dataclasses.replace(
            layout, description="; no ".join([layout.description, *ignored_keys])
        )
    return _with_slices(layout, variable) if "slices" in variable.user_choices else layout


def _with_slices(layout, variable):
    """Returns the layout of a matrix in which each row, or each column, has its own norm.

    Args:
        layout: The layout of the variable as a matrix or as a stack of matrices.
        variable: The variable, for which the user sets "slices" in `treatments`.

    Raises:
        ValueError: if the slices are neither each row nor each column.
    """
    pattern, (axis, blocks) = variable.user_choices["slices"]
    shape, rank = variable.shape, len(variable.shape)
    order = layout.order or tuple(range(len(layout.split_shape or shape)))
    position, count = None, 0
    if -rank <= axis < rank:
        # If the heads are split off, `order[0]` is their axis, and `split_shape` has one more axis
        # than the variable, directly after `order[0]`.
        is_behind_heads = layout.split_shape is not None and axis % rank > order[0]
        position, count = order.index(axis % rank + is_behind_heads), shape[axis]
    row_axis = len(layout.view) - 2  # the axis of rows in the view; heads, if any, are before it
    rows, columns = layout.view[row_axis:]
    axis_lengths = [(layout.split_shape or shape)[i] for i in order]
    elements_before = None if position is None else math.prod(axis_lengths[:position])
    is_row = count == rows and elements_before == math.prod(layout.view[:row_axis])
    is_column = count == columns and elements_before == math.prod(layout.view[: row_axis + 1])
    if not (is_row or is_column) or blocks not in (None, count):
        raise ValueError(
            f"treatments[{pattern!r}] asks for slices {[axis, blocks] if blocks else axis} of "
            f"{variable.path}, whose shape is {shape}, a {layout.description}: a slice of it is "
            "one row or one column. Name the axis that is all of its rows, or all of its columns."
        )
    description = f"{layout.description}, {count} slices along axis {axis % rank}"
    return dataclasses.replace(
        layout, axes=(row_axis + 1,) if is_row else (row_axis,), description=description
    )


def _matrix_without_slices(variable, embeddings, heads):
    """Returns the `Layout` of a variable for Muon and SOAP, whose rules work on matrices.

    It is that of `matrix`, but the user's setting "slices" in `treatments` is ignored.
    """
    path, shape = variable.path, variable.shape
    if variable.is_excluded:
        return _not_a_matrix("excluded")
    if is_norm_or_bias(path, shape) or path.lower().endswith(("bias", "/scale")):
        return _not_a_matrix("bias or normalization")
    if "rows" in variable.user_choices:
        rows, reason = _rows_by_user(variable), "no matrix, by treatments"
    elif "embedding" in path and not embeddings:
        rows, reason = None, "no matrix, by its name"
    else:
        rows, reason = _rows_by_name(variable)
    axis_and_head_count = None
    if "heads" in variable.user_choices:  # raises an error if they do not fit, matrix or not
        axis_and_head_count = _heads_by_user(variable)
    elif heads == "each" and rows is not None and "rows" not in variable.user_choices:
        axis_and_head_count = _heads_by_name(variable, rows)
    return (
        _not_a_matrix(reason) if rows is None else _matrix_layout(shape, rows, axis_and_head_count)
    )


def _not_a_matrix(reason):
    """Returns the `Layout` of a variable to which Muon or SOAP apply AdamW, not their matrix rule.

    `reason` says why, and is shown in the printed plan.
    """
    return Layout(adapt=False, description=f"fallback: {reason}")


def _rows_by_user(variable):
    """Returns the axes, counted from 0, that the user sets as "rows" in `treatments`, or None.

    None is what the user sets for a variable that is no matrix.

    Raises `ValueError` if an axis does not exist or is named twice, or if all axes are rows.
    """
    pattern, rows = variable.user_choices["rows"]
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
    """Decides by path and shape which axes are rows.

    Returns:
        (the axes, "") for a matrix; (None, the reason) for a variable that is no matrix.
    """
    path, shape = variable.path, variable.shape
    layer, name = _layer_and_name(path)
    if len(shape) < 2:
        return None, "one axis"
    if len(shape) == 2:
        return (0,), ""
    if re.fullmatch(r"lora_\w+_a", name):
        rows = _rows_of_kernel(variable, layer, "kernel")
        # In Gemma, axis 0 holds the heads, and axis 1 is the rows. The shapes of the query and
        # output kernels would show this, but LoRA freezes these kernels, so their shapes are not
        # known here. Instead, axis 0 is assumed to hold the heads if it is shorter than axis 1.
        if rows == (0,) and shape[0] < shape[1]:
            rows = (1,)
        return rows or tuple(range(len(shape) - 1)), ""
    if "depthwise" in (layer if name == "kernel" else name):
        return None, "depthwise"
    if any(word in path.lower() for word in _STACK_WORDS):
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
    """Returns the last two parts of a path in lower case: the names of its layer and variable."""
    return ("", *path.lower().split("/"))[-2:]


def _rows_of_kernel(variable, layer, name):
    """Returns the axes that are the rows of a kernel of three axes or more; None if not known.

    Args:
        variable: The kernel, or LoRA's first factor of it.
        layer: The name of its layer, in lower case.
        name: The name of the kernel.
    """
    path, shape = variable.path, variable.shape
    rank, all_but_last = len(shape), tuple(range(len(shape) - 1))
    if name != "kernel":
        return all_but_last  # for example, pointwise_kernel of Keras's SeparableConv2D
    # Get the shapes of the query and output kernels of the same attention, and of the bias of the
    # same layer; () for a variable that does not exist.
    parent, number_suffix = path.rpartition("/")[0], variable.name.removeprefix(path)
    attention = parent.rpartition("/")[0]
    query, output, bias = (
        variable.shapes.get(neighbour + number_suffix, ())
        for neighbour in (
            f"{attention}/query/kernel", f"{attention}/attention_output/kernel", f"{parent}/bias",
        )
    )  # fmt: skip
    if _LAYER_INTO_HEADS.match(layer) and rank == 3:
        if len(bias) == 1:  # the bias of a layer into heads has two axes, so there are no heads
            return all_but_last
        # Gemma's query is (heads, model, head size), and its output (heads, head size, model).
        is_transposed = len(query) == 3 and output == (query[0], query[2], query[1])
        return (1,) if is_transposed and query[0] != query[1] else (0,)
    if layer == "attention_output" and rank == 3 and shape == query:
        return (1, 2)  # XLNet's output is (model, heads, head size)
    if _LAYER_OUT_OF_HEADS.match(layer) or "conv" in path.lower():
        return all_but_last
    if layer == "sampling_offsets":
        return (0,)
    return all_but_last if rank > 3 and "einsum_dense" not in layer else None


def _heads_by_user(variable):
    """Returns (axis, number of heads along it) from the user's "heads" in `treatments`, or None.

    None is what the user sets if the whole variable is one matrix.

    Raises `ValueError` if the variable has only one axis or does not have this one, or if the
    number of heads does not divide the length of the axis.
    """
    pattern, axis_and_head_count = variable.user_choices["heads"]
    if axis_and_head_count is None:
        return None
    (axis, head_count), shape, rank = axis_and_head_count, variable.shape, len(variable.shape)
    has_axis = -rank <= axis < rank
    head_count = shape[axis] if has_axis and head_count is None else head_count
    if not has_axis or rank < 2 or shape[axis] % (head_count or 1):
        raise ValueError(
            f"treatments[{pattern!r}] makes {head_count or 'all'} heads of axis {axis} of "
            f"{variable.path}, whose shape is {shape}: heads are all of an axis, or as many blocks "
            "of it as divide it. Narrow the pattern, or give None for what is one matrix."
        )
    return axis % rank, head_count


def _heads_by_name(variable, rows):
    """Returns (axis of the heads, their number) of a kernel whose outputs are attention heads.

    For every other variable it returns None.

    Args:
        variable: The variable.
        rows: The axes that are rows.
    """
    shape = variable.shape
    layer, name = _layer_and_name(variable.path)
    is_kernel = name == "kernel" and len(shape) == 3
    if not (is_kernel and _LAYER_INTO_HEADS.match(layer) and len(rows) == 1):
        return None
    axis = 1 - rows[0]
    return axis, shape[axis]


def _matrix_layout(shape, rows, heads):
    """Returns the layout of a variable as a matrix, or as a stack with a matrix for each head.

    If the matrices of a stack would have one row or one column, the layout has adapt=False.

    Args:
        shape: The shape of the variable.
        rows: The axes that are rows.
        heads: (axis, number of blocks along it) if each block is a matrix. None, or one block, if
            the whole variable is one matrix.
    """
    if heads is None or heads[1] < 2:
        order, view = _rows_and_columns(shape, rows)
        description = f"matrix of {view[0]:,} x {view[1]:,}"
        return Layout(view=view, order=_order_or_none(order), description=description)
    axis, head_count = heads
    split_shape = (*shape[:axis], head_count, shape[axis] // head_count, *shape[axis + 1 :])
    rows = tuple(row + (row >= axis) for row in rows)  # `axis` becomes two axes
    order, view = _rows_and_columns(split_shape, rows, (axis,))
    if 1 in view:
        return _not_a_matrix("one row or column")
    return Layout(
        view=(head_count, *view),
        axes=(1, 2),
        order=_order_or_none((axis, *order)),
        split_shape=split_shape,
        description=f"matrix of {view[0]:,} x {view[1]:,} for each of {head_count:,} heads",
    )


def _rows_and_columns(shape, rows, other_axes=()):
    """Returns the axes, rows before columns, and the shape (rows, columns) of the matrix.

    Args:
        shape: The shape of the variable.
        rows: The axes that are rows.
        other_axes: The axes that are neither rows nor columns, such as that of the heads. Defaults
            to none.
    """
    columns = tuple(axis for axis in range(len(shape)) if axis not in (*rows, *other_axes))
    view = tuple(math.prod(shape[axis] for axis in axes) for axes in (rows, columns))
    return (*rows, *columns), view


def _order_or_none(axis_order):
    """Returns an order of axes; None if it is 0, 1, 2, ..., where no transposition is needed."""
    return None if axis_order == tuple(range(len(axis_order))) else axis_order
