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

from tf_lamb.core.layouts import Layout, Variable
from tf_lamb.core.patterns import is_norm_or_bias

# The layers of attention in Keras, KerasHub and Model Garden.
_END = r"(_dense|_new|_reuse)?(_\d+)?$"
_INTO_HEADS = re.compile(
    r"^(query|key|value|query_key_value|qkv|[qkv]_proj|encoding|attention_weights)" + _END
)
_OUT_OF_HEADS = re.compile(r"^(attention_output|output|output_proj|out_proj|o_proj)" + _END)
_STACKS = ("expert", "block_diag")


def layout(variable: Variable, embeddings: bool = False) -> Layout:
    """The layout of a variable as a matrix; not adapted, with the reason, where it is none.

    Args:
        embeddings: whether a variable with "embedding" in its path may be a matrix without the
            user's rows.

    Raises:
        ValueError: where a variable does not have the axes that are given.
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
    own, number = path.rpartition("/")[0], variable.name.removeprefix(path)
    layer = own.rpartition("/")[0]
    beside = f"{layer}/query/kernel", f"{layer}/attention_output/kernel", f"{own}/bias"
    return _found(path, shape, *(variable.shapes.get(of + number, ()) for of in beside))


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
    made = _matrix(shape, rows)
    return _none("one row or column") if 1 in made.view else made


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
            f"treatments[{pattern!r}] makes {asked} the rows of {path}, whose shape is "
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
