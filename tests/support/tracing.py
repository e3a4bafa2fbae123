"""Tables of mathematics run operation by operation: tracing so few numbers would take longer."""

import contextlib

from support.doors import BACKEND

if BACKEND == "tensorflow":
    import tensorflow as tf


@contextlib.contextmanager
def uncompiled():
    """Nothing is traced or compiled inside, not even what asks for it."""
    if BACKEND == "tensorflow":
        before = tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(True)
        try:
            yield
        finally:
            tf.config.run_functions_eagerly(before)
    elif BACKEND == "jax":
        import jax

        with jax.disable_jit():
            yield
    else:
        yield


def as_compiled(model):
    """`fit` inside runs operation by operation where the model runs eagerly."""
    return uncompiled() if model.run_eagerly else contextlib.nullcontext()
