"""The update as it is traced for a TPU: the same numbers."""

import contextlib
import functools
import itertools

import numpy as np
import pytest

pytest.importorskip("libtpu")

import tensorflow as tf
from support.cases import assert_same

import tf_lamb.tf_keras
from tf_lamb.tensorflow import namespace

SHAPES = [(64, 32), (32,), (32, 48), (48,)]


def updated(dtype, tpu):
    """What computes the weights after two steps with the same gradients; compiled once."""
    random = np.random.default_rng(0)
    start = [random.normal(size=s) for s in SHAPES]
    weights = [tf.Variable(w, dtype=dtype, name=f"w{i}") for i, w in enumerate(start)]
    optimizer = tf_lamb.tf_keras.LAMB(0.1, weight_decay=0.01, on_nonfinite="propagate")
    optimizer.build(weights)

    @tf.function(jit_compile=True)
    def step(gradients):
        optimizer.apply_gradients(zip(gradients, weights, strict=True))

    def after(gradients):
        for variable, value in zip(weights, start, strict=True):
            variable.assign(tf.cast(value, dtype))
        for variable in (optimizer.iterations, *itertools.chain(*optimizer._storage.slots)):
            variable.assign(tf.zeros_like(variable))
        with namespace.tracing_for_tpu() if tpu else contextlib.nullcontext():
            for _ in range(2):
                step([tf.constant(g, dtype) for g in gradients])
        return [w.numpy().astype("float64") for w in weights]

    return after


@pytest.fixture(scope="module")
def update():
    return functools.cache(updated)


@pytest.fixture
def gradients():
    random = np.random.default_rng(1)
    return [random.normal(size=s) for s in SHAPES]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_it_computes_what_any_other_does(dtype, update, gradients):
    tolerance = {"float32": 1e-6, "float64": 1e-12, "bfloat16": 1e-2}[dtype]
    ours, others = (update(dtype, tpu)(gradients) for tpu in (True, False))
    assert_same(ours, others, tolerance)
