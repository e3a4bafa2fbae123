"""A step inside of `torch.autocast`: the update's arithmetic is its own."""

import keras
import numpy as np
import pytest
from support.frontends import BACKEND, array
from support.references import NAMES

import tf_lamb.keras

if BACKEND != "torch":
    pytest.skip("needs torch", allow_module_level=True)

import torch


def trained(name, step):
    """The weights after three steps, of which each is taken by a function of the optimizer."""
    rng = np.random.default_rng(0)
    kernel, bias = rng.normal(size=(24, 16)).astype("float32"), np.ones(16, "float32")
    variables = [keras.Variable(kernel, name="kernel"), keras.Variable(bias, name="bias")]
    optimizer = getattr(tf_lamb.keras, name)(0.1, weight_decay=0.01)
    optimizer.build(variables)
    for _ in range(3):
        gradients = [rng.normal(size=v.shape).astype("float32") for v in variables]
        step(optimizer, list(map(keras.ops.convert_to_tensor, gradients)), variables)
    return [array(v) for v in variables]


def apply(optimizer, gradients, variables):
    optimizer.apply(gradients, variables)


def one_by_one(optimizer, gradients, variables):
    for gradient, variable in zip(gradients, variables, strict=True):
        optimizer.update_step(gradient, variable, 0.1)


@pytest.mark.parametrize("step", [apply, one_by_one])
@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_the_same_inside(name, step):
    def inside(*given):
        with torch.autocast("cpu", torch.bfloat16):
            step(*given)

    for ours, expected in zip(trained(name, inside), trained(name, step), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_the_step_of_a_user_stays_inside():
    """What comes after the step is cast as it was before."""
    variable = keras.Variable(np.ones((4, 4), "float32"))
    optimizer = tf_lamb.keras.Muon(0.1)
    with torch.autocast("cpu", torch.bfloat16):
        optimizer.apply([keras.ops.ones((4, 4))], [variable])
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
