"""A data set that does not say its shapes hides those of gradients, too."""

import numpy as np
import pytest
import tensorflow as tf
from support.frontends import FRONTENDS, every_frontend, new_variable
from support.references import NAMES


@every_frontend
@pytest.mark.parametrize("name", [*NAMES, "AdaScale", "MeasureNoise"])
def test_a_step_on_gradients_of_unknown_shape(frontend, name):
    _, ours = FRONTENDS[frontend]
    if name in ("AdaScale", "MeasureNoise"):
        inner = ours.LAMB(0.1, gradient_accumulation_steps=2, jit_compile=False)
        optimizer = ours.AdaScale(inner, 2) if name == "AdaScale" else ours.MeasureNoise(inner)
    else:
        optimizer = getattr(ours, name)(0.1, jit_compile=False)
    optimizer.build([w := new_variable(frontend, np.ones((3, 2)), path="w")])

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
    def step(gradient):
        optimizer.apply_gradients([(gradient, w)])

    for _ in range(2):
        step(tf.reshape(tf.range(6.0), (3, 2)))
    assert np.isfinite(np.asarray(w)).all() and (np.asarray(w) != 1).any()
