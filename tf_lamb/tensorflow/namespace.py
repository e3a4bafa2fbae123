"""The few NumPy-named functions that the mathematics uses, over TensorFlow.

Some depend on what the step is traced for: what is fastest on a CPU is not on a TPU.
"""

import contextlib
import functools
import math
import types

import tensorflow as tf

# Elements of a layer from which on XLA compiles its update on a CPU or GPU. XLA saves passes over
# memory; fewer elements lie in the cache, and a program of a tenth of a second is not earned back.
LARGE = 2**16

_tracing_for_tpu = False


def is_tpu():
    """Whether the step that is being traced will be compiled for a TPU, whole."""
    return _tracing_for_tpu or isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)


def has_accelerator():
    """Whether steps run on something else than a CPU."""
    return is_tpu() or bool(tf.config.list_logical_devices("GPU"))


@contextlib.contextmanager
def tracing_for_tpu():
    """Traces as `TPUStrategy` would, where there is no TPU."""
    global _tracing_for_tpu
    before, _tracing_for_tpu = _tracing_for_tpu, True
    try:
        yield
    finally:
        _tracing_for_tpu = before


abs = tf.abs
all = tf.reduce_all
any = tf.reduce_any
arange = tf.range
argsort = tf.argsort
bitcast = tf.bitcast
cast = tf.cast
clip = tf.clip_by_value
cond = tf.cond
convert_to_tensor = tf.convert_to_tensor
cos = tf.cos
equal = tf.equal
exp = tf.exp
expand_dims = tf.expand_dims
expm1 = tf.math.expm1
eye = tf.eye
floor = tf.floor
isfinite = tf.math.is_finite
logical_and = tf.logical_and
logical_not = tf.logical_not
max = tf.reduce_max
maximum = tf.maximum
mean = tf.reduce_mean
minimum = tf.minimum
ones_like = tf.ones_like
reshape = tf.reshape
right_shift = tf.bitwise.right_shift
sign = tf.sign
sqrt = tf.sqrt
square = tf.square
stack = tf.stack
stop_gradient = tf.stop_gradient
take = tf.gather
transpose = tf.transpose
zeros = tf.zeros
zeros_like = tf.zeros_like


_PARTS = 8


def sum(x, axis=None, keepdims=False):
    """Sums as NumPy's does.

    XLA's CPU compiler writes an array out before it sums its elements, but not before it adds it to
    another: the sum of all elements begins as the sum of an eighth of the rows and the others.
    """
    plain = axis is not None or keepdims or is_tpu()
    if plain or x.shape.rank < 2 or x.shape.num_elements() < LARGE:
        return tf.reduce_sum(x, axis, keepdims)
    x = tf.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))
    rows = x.shape[0] // _PARTS
    *parts, rest = tf.split(x, [rows] * _PARTS + [x.shape[0] - _PARTS * rows])
    return tf.reduce_sum(tf.add_n(parts)) + tf.reduce_sum(rest)


def where(condition, x, y):
    """Chooses as NumPy's does; a number has the dtype of what it stands for."""
    if tf.is_tensor(y) and not tf.is_tensor(x):  # where it traces, TensorFlow makes it float32
        x = tf.convert_to_tensor(x, y.dtype)
    return tf.where(condition, x, y)


def concatenate(arrays):
    """Along the first axis."""
    return tf.concat(arrays, 0)


def shape(x):
    """The length of each axis: a number where it is known, else a scalar."""
    return [n if n is not None else tf.shape(x)[i] for i, n in enumerate(x.shape)]


def true_divide(x, y):
    """Divides as NumPy's does; integers in float32, as rates are."""
    return (tf.cast(x, tf.float32) if x.dtype.is_integer else x) / y


def take_along_axis(x, indices, axis):
    """As NumPy's does, where the indices of a vector count for all vectors along an axis."""
    order = tf.squeeze(indices, -1 if axis == -2 else -2)
    return tf.gather(x, order, axis=x.shape.rank + axis, batch_dims=order.shape.rank - 1)


def precise(x, y):
    """x @ y as three products of what bfloat16 holds of each and of what it leaves.

    TensorFlow has no precision of one product: by default a GPU drops 13 bits, and a TPU 16.
    """
    if not has_accelerator() or x.dtype == tf.float64:
        return x @ y
    (x, dx), (y, dy) = map(_parts, (x, y))
    return x @ y + (x @ dy + dx @ y)


def _parts(x):
    rounded = tf.cast(tf.cast(x, tf.bfloat16), x.dtype)
    return rounded, x - rounded


@functools.partial(tf.function, jit_compile=True, autograph=False)
def _cholesky(x):
    """The lower factor, and NaN where there is none: there, TensorFlow's own kernel raises."""
    return tf.linalg.cholesky(x)


linalg = types.SimpleNamespace(
    eigh=tf.linalg.eigh, qr=tf.linalg.qr, cholesky=_cholesky,
    solve_triangular=tf.linalg.triangular_solve,
)  # fmt: skip
