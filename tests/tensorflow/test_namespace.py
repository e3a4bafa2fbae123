"""The few functions over TensorFlow that rules take for NumPy."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from tf_lamb.tensorflow import namespace


@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (3, 0), (7, 5), (8, 5), (19, 2), (3, 3, 4, 2)])
def test_the_sum_over_tensorflow_is_numpys(shape, monkeypatch):
    """That of a large array begins with an eighth of its rows; here every array is large."""
    monkeypatch.setattr(namespace, "XLA_MIN_ELEMENTS", 0)
    x = np.random.default_rng(1).standard_normal(shape)
    for jit_compile in (False, True):
        total = tf.function(namespace.sum, jit_compile=jit_compile)(tf.constant(x))
        np.testing.assert_allclose(total, np.sum(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("for_tpu", [False, True])
def test_a_taken_branch_is_a_function_of_its_own_except_for_a_tpu(for_tpu):
    def double_if_positive(x):
        return namespace.cond(x > 0, lambda: [2 * x], lambda: [x])

    with namespace.tracing_for_tpu() if for_tpu else contextlib.nullcontext():
        program = tf.function(double_if_positive).get_concrete_function(tf.TensorSpec([]))
    functions = program.graph.as_graph_def().library.function
    assert any(function.attr["_noinline"].b for function in functions) != for_tpu
    for x, expected in ((3.0, 6.0), (-3.0, -3.0)):
        assert program(tf.constant(x))[0] == expected
