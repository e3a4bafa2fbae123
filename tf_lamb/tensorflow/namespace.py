"""The array functions that update rules call on TensorFlow, with NumPy's names if it has them.

Some functions use other operations on a TPU than on a CPU, because other operations are fast there.
"""

import contextlib
import functools
import math
import types

import tensorflow as tf

# On a CPU or GPU, XLA compiles an update of at least this many elements, because XLA makes fewer
# passes over memory. A smaller update fits into the cache, so that XLA would save less than the
# tenth of a second that it takes to compile the update.
XLA_MIN_ELEMENTS = 2**16
# Layers of one shape with fewer elements than this are updated as one stack. With more elements, it
# takes longer to copy the layers into a stack than to call the operations for each.
STACK_MAX_ELEMENTS = 2**13

_tracing_for_tpu = False


def compiles_for_tpu():
    """Returns whether XLA will compile the whole step that is being traced for a TPU."""
    return _tracing_for_tpu or isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)


def has_accelerator():
    """Returns whether steps run on a GPU or a TPU."""
    return compiles_for_tpu() or bool(tf.config.list_logical_devices("GPU"))


@contextlib.contextmanager
def tracing_for_tpu():
    """Lets a `with` block trace steps as for a TPU, on a machine that has none.

    It is for steps that are compiled for a TPU but not run, and not only for tests.
    """
    global _tracing_for_tpu
    previous, _tracing_for_tpu = _tracing_for_tpu, True
    try:
        yield
    finally:
        _tracing_for_tpu = previous


abs = tf.abs
all = tf.reduce_all
any = tf.reduce_any
arange = tf.range
argsort = tf.argsort
bitcast = tf.bitcast
cast = tf.cast
clip = tf.clip_by_value
convert_to_tensor = tf.convert_to_tensor
cos = tf.cos
einsum = tf.einsum
equal = tf.equal
exp = tf.exp
expand_dims = tf.expand_dims
expm1 = tf.math.expm1
eye = tf.eye
floor = tf.floor
isfinite = tf.math.is_finite
log = tf.math.log
log1p = tf.math.log1p
logical_and = tf.logical_and
logical_not = tf.logical_not
matmul = tf.matmul
max = tf.reduce_max
maximum = tf.maximum
mean = tf.reduce_mean
min = tf.reduce_min
minimum = tf.minimum
ones_like = tf.ones_like
power = tf.pow
prod = tf.reduce_prod
reshape = tf.reshape
right_shift = tf.bitwise.right_shift
sign = tf.sign
sin = tf.sin
sort = tf.sort
sqrt = tf.sqrt
square = tf.square
stack = tf.stack
std = tf.math.reduce_std
stop_gradient = tf.stop_gradient
take = tf.gather
tanh = tf.tanh
transpose = tf.transpose
unstack = tf.unstack
var = tf.math.reduce_variance
zeros = tf.zeros
zeros_like = tf.zeros_like


_SUM_SPLITS = 8  # the number of parts into which `sum` splits the rows of an array


def sum(x, axis=None, keepdims=False):
    """Sums as NumPy does.

    A large array that is summed over all axes for a CPU or GPU is first split by its rows into
    eight parts, which are added elementwise; then the elements of the result are summed. This is
    faster, because XLA's CPU compiler writes a computed array to memory before it sums the
    elements, but not before it adds the array to another one.

    Args:
        x: The array.
        axis: The axes to sum over; None sums over all axes.
        keepdims: Whether to keep the summed axes, with length 1.
    """
    sums_plainly = axis is not None or keepdims or compiles_for_tpu()
    if sums_plainly or x.shape.rank < 2 or x.shape.num_elements() < XLA_MIN_ELEMENTS:
        return tf.reduce_sum(x, axis, keepdims)
    x = tf.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))
    rows = x.shape[0] // _SUM_SPLITS
    *parts, remainder = tf.split(x, [rows] * _SUM_SPLITS + [x.shape[0] - _SUM_SPLITS * rows])
    return tf.reduce_sum(tf.add_n(parts)) + tf.reduce_sum(remainder)


def cond(condition, if_true, if_false):
    """Returns if_true() or if_false(); only the chosen one runs.

    `if_true` stays a function of its own. TensorFlow would otherwise copy its operations into the
    step for each variable of a shape, and optimize each copy. With the decompositions of SOAP, that
    takes a third of the time of the first step.

    Args:
        condition: A boolean scalar.
        if_true, if_false: Functions without arguments that return tensors of the same shapes.
    """
    if not compiles_for_tpu():
        # seam: TensorFlow 2.20, an attribute by which its optimizer leaves a function as it is.
        separate = {"_noinline": True}
        if_true = tf.function(if_true, autograph=False, experimental_attributes=separate)
    return tf.cond(condition, if_true, if_false)


def where(condition, x, y):
    """Chooses elements of `x` or `y`, as NumPy does; a number `x` gets the dtype of an array `y`.

    Args:
        condition: The boolean array.
        x, y: The arrays, or numbers, to choose from.
    """
    if tf.is_tensor(y) and not tf.is_tensor(x):  # `tf.where` would make the number float32
        x = tf.convert_to_tensor(x, y.dtype)
    return tf.where(condition, x, y)


def concatenate(arrays):
    """Joins arrays along the first axis."""
    return tf.concat(arrays, 0)


def shape(x):
    """Returns the length of each axis: an int where it is known, else a scalar tensor."""
    return [n if n is not None else tf.shape(x)[i] for i, n in enumerate(x.shape)]


def ndim(x):
    """Returns the number of axes."""
    return x.shape.rank


def size(x):
    """Returns the number of elements."""
    return math.prod(x.shape)


def true_divide(x, y):
    """Divides as NumPy does, except that an integer `x` becomes float32, as learning rates are.

    Args:
        x: The tensor to divide.
        y: What to divide by: a tensor or a number.
    """
    return (tf.cast(x, tf.float32) if x.dtype.is_integer else x) / y


def take_along_axis(x, indices, axis):
    """Reorders the rows (axis -2) or columns (axis -1) of each matrix, as NumPy's function does.

    Args:
        x: A matrix, or a stack of matrices.
        indices: The indices, with an axis of length 1.
        axis: -2 or -1.
    """
    order = tf.squeeze(indices, -1 if axis == -2 else -2)
    return tf.gather(x, order, axis=x.shape.rank + axis, batch_dims=order.shape.rank - 1)


def precise_matmul(x, y):
    """Computes x @ y nearly to the precision of float32, also where a device rounds x and y first.

    Each matrix is split into its value in bfloat16 and the remainder. The products of these parts
    are added, except that of the two remainders, which is too small to matter. TensorFlow has no
    setting for the precision of a single product: by default, a GPU drops 13 bits of each input,
    and a TPU drops 16.

    Args:
        x, y: Matrices, or stacks of matrices.
    """
    if not has_accelerator() or x.dtype == tf.float64:
        return x @ y
    (x, dx), (y, dy) = map(_split_bfloat16, (x, y))
    return x @ y + (x @ dy + dx @ y)


def _split_bfloat16(x):
    """Returns x rounded to bfloat16, and x minus that value, both in the dtype of x."""
    rounded = tf.cast(tf.cast(x, tf.bfloat16), x.dtype)
    return rounded, x - rounded


@functools.partial(tf.function, jit_compile=True, autograph=False)
def _cholesky(x):
    """Computes the lower Cholesky factor by XLA.

    For a matrix that has no such factor it returns NaN, whereas TensorFlow's own kernel raises.
    """
    return tf.linalg.cholesky(x)


def _qr(x, mode="reduced"):
    """Computes a QR decomposition; `mode` is "reduced" or "complete", as in NumPy."""
    return tf.linalg.qr(x, full_matrices=mode == "complete")


linalg = types.SimpleNamespace(
    eigh=tf.linalg.eigh, qr=_qr, cholesky=_cholesky,
    solve_triangular=tf.linalg.triangular_solve,
)  # fmt: skip


def __getattr__(name):
    """Raises AttributeError for a function that is not here, with the names of those that are."""
    here = sorted(name for name, value in globals().items() if name[0] != "_" and callable(value))
    raise AttributeError(f"xp has no {name!r} on TensorFlow, which has {', '.join(here)}.")
