"""What a step is traced for: what is fastest on a CPU is not on a TPU."""

import contextlib

import tensorflow as tf

# Elements of a layer from which on XLA compiles its update on a CPU or GPU. XLA saves passes over
# memory; fewer elements lie in the cache, and a program of a tenth of a second is not earned back.
LARGE = 2**16

_tracing_for_tpu = False


def is_tpu():
    """Whether the step that is being traced will be compiled for a TPU, whole."""
    return _tracing_for_tpu or isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)


@contextlib.contextmanager
def tpu():
    """Traces as `TPUStrategy` would, where there is no TPU."""
    global _tracing_for_tpu
    before, _tracing_for_tpu = _tracing_for_tpu, True
    try:
        yield
    finally:
        _tracing_for_tpu = before


def zero_after(x):
    """0.0, which XLA cannot know before it has x: what is added to it comes later.

    Layers are free of each other, and libtpu may begin several at once: then none of their arrays
    fits into the chip's own memory from the first pass over them to the second. Barriers it drops.
    """
    first = x[(0,) * x.shape.rank]  # not of a reshaped x, for which all of it may be copied
    bits = tf.bitcast(tf.cast(first, tf.float32), tf.int32)
    negative, other = (tf.bitwise.right_shift(b, 31) for b in (bits, tf.bitwise.invert(bits)))
    return tf.cast(tf.bitwise.bitwise_and(negative, other), tf.float32)
