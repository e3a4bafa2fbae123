"""Both Kerases side by side: what a test of the two is parametrized by."""

import importlib

import keras
import numpy as np
import pytest

BACKEND = keras.backend.backend()
# Name -> the host and our half of it. tf_keras is TensorFlow's alone.
DOORS = {
    name: (importlib.import_module(name), importlib.import_module(f"tf_lamb.{name}"))
    for name in (("keras", "tf_keras") if BACKEND == "tensorflow" else ("keras",))
}

every_door = pytest.mark.parametrize("door", DOORS)
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="needs TensorFlow")
on_jax = pytest.mark.skipif(BACKEND != "jax", reason="needs JAX")


def array(variable):
    """A variable's value, of either door and any backend."""
    return np.array(keras.ops.convert_to_numpy(variable))
