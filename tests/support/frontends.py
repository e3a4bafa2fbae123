"""Both Kerases side by side: what a test of the two is parametrized by."""

import contextlib
import importlib

import keras
import numpy as np
import pytest

BACKEND = keras.backend.backend()
# Name -> the host and our half of it. tf_keras is TensorFlow's alone.
FRONTENDS = {
    name: (importlib.import_module(name), importlib.import_module(f"tf_lamb.{name}"))
    for name in (("keras", "tf_keras") if BACKEND == "tensorflow" else ("keras",))
}


def extra(name):
    """Of an extra that both Kerases have: name -> the host and the extra's half of it."""
    return {
        keras: (host, importlib.import_module(f"tf_lamb_extras.{name}.{keras}"))
        for keras, (host, _) in FRONTENDS.items()
    }


every_frontend = pytest.mark.parametrize("frontend", FRONTENDS)
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="needs TensorFlow")
on_jax = pytest.mark.skipif(BACKEND != "jax", reason="needs JAX")
# PyTorch 2.13 gives its own folder to the C++ compiler unquoted, which fails if it has a space.
compiled_whole = pytest.mark.skipif(
    BACKEND == "torch" and " " in importlib.import_module("torch").__file__,
    reason="PyTorch compiles nothing from a folder with a space in its path",
)


@contextlib.contextmanager
def uncompiled(fits=False):
    """Nothing is traced or compiled: the quickest way through a table of a few small steps.

    Args:
        fits: Whether it is a host's `fit` that runs; its step is quicker compiled on JAX.
    """
    if BACKEND == "tensorflow":
        import tensorflow as tf

        before = tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(True)
        try:
            yield
        finally:
            tf.config.run_functions_eagerly(before)
    elif BACKEND == "jax" and not fits:
        import jax

        with jax.disable_jit():
            yield
    else:
        yield


def as_compiled(model):
    """`fit` inside runs operation by operation where the model runs eagerly."""
    return uncompiled() if model.run_eagerly else contextlib.nullcontext()


@contextlib.contextmanager
def precision(frontend, floatx="float32", policy=None):
    """The host's default dtype, or the policy of its layers."""
    host, _ = FRONTENDS[frontend]
    set_policy = host.mixed_precision.set_global_policy
    host.backend.set_floatx(floatx)
    set_policy(policy or floatx)
    try:
        yield
    finally:
        host.backend.set_floatx("float32")
        set_policy("float32")


def array(variable):
    """A variable's value, of either frontend and any backend."""
    return np.array(keras.ops.convert_to_numpy(variable))


def new_variable(frontend, value, dtype="float32", path="variable"):
    """A variable of the host, at this path."""
    if frontend == "tf_keras":
        import tensorflow as tf

        return tf.Variable(tf.cast(value, dtype), name=path)
    *scopes, name = path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(value, dtype=dtype, name=name)


def dtype_of(variable):
    return keras.backend.standardize_dtype(variable.dtype)


def apply(optimizer, gradients, variables):
    """One step; a gradient of None is none."""
    optimizer.apply_gradients([
        (None if g is None else keras.ops.convert_to_tensor(g, dtype_of(v)), v)
        for g, v in zip(gradients, variables, strict=True)
    ])  # fmt: skip


def train(frontend, optimizer, start, gradients, dtype="float32", rates=(), steps=3):
    """The weights after each step on fixed gradients, or on those of a function, by path.

    Args:
        frontend: Of the optimizer.
        optimizer: One of ours.
        start: Path -> where its variable begins.
        gradients: A list of path -> gradient, or a function of the weights.
        dtype: Of the variables.
        rates: The learning rate of each step, where it changes.
        steps: Of a function, how many.
    """
    variables = {path: new_variable(frontend, w, dtype, path) for path, w in start.items()}
    for t in range(steps if callable(gradients) else len(gradients)):
        if rates:
            optimizer.learning_rate = rates[t]
        weights = {path: array(v) for path, v in variables.items()}
        step = gradients(weights) if callable(gradients) else gradients[t]
        apply(optimizer, [step[path] for path in variables], variables.values())
        yield {path: array(v) for path, v in variables.items()}
