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
