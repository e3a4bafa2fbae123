"""The axes of a variable that are rows, for an optimizer that works on matrices.

A layer maps what the rows index to what the columns index. An optimizer is given variables, not
layers, so paths and shapes tell, and the user where they do not:

    two axes                          (in, out)                      rows are axis 0
    convolution                       (..., in, out)                 all axes but the last
    attention, into heads             (model, heads, head size)      axis 0
    attention, out of heads           (heads, head size, model)      axes 0 and 1
    Gemma's attention, into heads     (heads, model, head size)      axis 1
    XLNet's attention, out of heads   (model, heads, head size)      axes 1 and 2
    LoRA's first factor               that of its kernel, rank       those of its kernel

LoRA's second factor has two axes, so that the first is a matrix whatever its kernel is: where that
would be none, all its axes but the rank are rows.

No matrix: a bias, what belongs to a normalization, a depthwise kernel, in which no channel meets
another, and a stack of matrices, as of experts. A kernel of three axes whose name is neither a
convolution's nor attention's may be either, and is taken for none. A convolution in groups has the
name and the axes of one without: that, only the user knows.
"""

import math
import re
from collections.abc import Mapping, Sequence, Set

from tf_lamb.core.patterns import is_norm_or_bias, numbered

Rows = tuple[int, ...]

# The layers of attention in Keras, KerasHub and Model Garden.
_END = r"(_dense|_new|_reuse)?(_\d+)?$"
_INTO_HEADS = re.compile(
    r"^(query|key|value|query_key_value|qkv|[qkv]_proj|encoding|attention_weights)" + _END
)
_OUT_OF_HEADS = re.compile(r"^(attention_output|output|output_proj|out_proj|o_proj)" + _END)
_STACKS = ("expert", "block_diag")


def layouts(
    paths: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    *,
    excluded: Set[int],
    no_matrix: Set[int],
    given: Mapping[int, tuple[str, Rows | None]],
) -> list[dict | str]:
    """Finds how each variable is laid out as a matrix, or the reason for which it is none.

    Args:
        paths, shapes: of all variables, for those of a layer of attention tell of each other.
        excluded: the positions of those that the user wants left out.
        no_matrix: of those that their name leaves out, unless the user gives them rows.
        given: position -> the pattern that finds it, and its rows, or None where it is no matrix.

    Raises:
        ValueError: where a variable does not have the axes that are given.
    """
    names = numbered(paths)
    by_name = dict(zip(names, shapes, strict=True))
    made: list[dict | str] = []
    for i, (path, name, shape) in enumerate(zip(paths, names, shapes, strict=True)):
        if i in excluded:
            made.append("excluded")
        elif is_norm_or_bias(path, shape) or path.lower().endswith(("bias", "/scale")):
            made.append("bias or normalization")
        elif i in given:
            pattern, rows = given[i]
            made.append(
                "no matrix, by matrix_rows"
                if rows is None
                else _layout(shape, _given(path, shape, pattern, rows))
            )
        elif i in no_matrix:
            made.append("no matrix, by its name")
        else:
            own, number = path.rpartition("/")[0], name.removeprefix(path)
            layer = own.rpartition("/")[0]
            beside = f"{layer}/query/kernel", f"{layer}/attention_output/kernel", f"{own}/bias"
            made.append(_found(path, shape, *(by_name.get(of + number, ()) for of in beside)))
    return made


def _found(path, shape, query, output, bias):
    """Finds a layout from path and shape; of two kernels of its attention and its bias, or ()."""
    layer, name = ("", *path.lower().split("/"))[-2:]
    if len(shape) < 2:
        return "one axis"
    if len(shape) == 2:
        return _layout(shape, (0,))
    if re.fullmatch(r"lora_\w+_a", name):
        rows = _rows(path, layer, "kernel", shape, query, output, bias)
        if rows == (0,) and shape[0] < shape[1]:  # Gemma's heads; what would tell is frozen
            rows = (1,)
        return _layout(shape, rows or tuple(range(len(shape) - 1)))
    if "depthwise" in (layer if name == "kernel" else name):
        return "depthwise"
    if any(word in path.lower() for word in _STACKS):
        return "stack of matrices"
    if not name.endswith("kernel"):
        return "no kernel"
    rows = _rows(path, layer, name, shape, query, output, bias)
    if rows is None:
        return "rows not known: give matrix_rows"
    made = _layout(shape, rows)
    return "one row or column" if 1 in made["view"] else made


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
    found = {axis % rank for axis in rows} if rank else set()
    outside = any(not -rank <= axis < rank for axis in rows)
    if outside or len(found) < len(rows) or len(found) == rank:
        asked = f"axis {rows[0]}" if len(rows) == 1 else f"axes {', '.join(map(str, rows))}"
        raise ValueError(
            f"matrix_rows[{pattern!r}] makes {asked} the rows of {path}, whose shape is "
            f"{tuple(shape)}: a matrix has some of a variable's axes as rows, each once, and the "
            "others as columns. Narrow the pattern, or give None for what is no matrix."
        )
    return tuple(axis % rank for axis in rows)


def _layout(shape, rows):
    """The order of the axes and the view in which it is a matrix, and in words how large it is."""
    columns = tuple(axis for axis in range(len(shape)) if axis not in rows)
    view = tuple(math.prod(shape[axis] for axis in axes) for axes in (rows, columns))
    order = (*rows, *columns)
    in_order = order == tuple(range(len(shape)))
    words = f"matrix of {view[0]:,} x {view[1]:,}"
    return {"view": view, "order": None if in_order else order, "layout": words}
