"""On JAX a step donates each array once, so no two variables may have the same one."""

import keras
import numpy as np
import pytest
from support.own_arrays import assert_own_arrays

import tf_lamb.keras

if keras.backend.backend() != "jax":
    pytest.skip("other backends donate nothing", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("quickly_compiled", "undistributed")


def network():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(4)])


def compiled(name="LAMB", **arguments):
    model = network()
    model.compile(getattr(tf_lamb.keras, name)(0.05, **arguments), "mse")
    return model


def data():
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    return x, x * 2 + 1


def fit(model):
    model.fit(*data(), batch_size=16, shuffle=False, verbose=0)
    assert_own_arrays(model)


@pytest.mark.parametrize("arguments", [{}, {"shard_update": True}], ids=str)
def test_averages_on_several_devices(arguments):
    """Where the same array twice was a segmentation fault."""
    devices = keras.distribution.list_devices()[:4]
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    model = compiled(use_ema=True, ema_overwrite_frequency=2, **arguments)
    for _ in range(3):
        fit(model)
    assert int(model.optimizer.iterations) == 6


@pytest.mark.parametrize("choice", ["skip", "propagate"])
def test_trust_ratios_of_a_joined_layer(choice):
    """Which all of its variables show: after an eager step, and after a fit."""
    model = compiled(treatments={".": {"join": True}}, on_nonfinite=choice)
    optimizer = model.optimizer
    optimizer.observe_trust_ratios()
    optimizer.apply([keras.ops.ones(v.shape) for v in model.weights], model.trainable_variables)
    assert_own_arrays(model)
    fit(model)
    fit(model)


@pytest.mark.parametrize("wrap", [
    lambda own: own, keras.optimizers.LossScaleOptimizer, tf_lamb.keras.MeasureNoise,
], ids=["alone", "scaled", "measured"])  # fmt: skip
def test_a_second_model_is_refused_before_its_first_step(wrap):
    """Its variables would be stepped with the slots of the first one's."""
    first, second = network(), network()
    optimizer = wrap(tf_lamb.keras.LAMB(0.05, gradient_accumulation_steps=2))
    for model in (first, second):
        model.compile(optimizer, "mse")
    fit(first)
    x, y = data()
    with pytest.raises(ValueError, match="built for .* Make a new optimizer for a new model"):
        second.fit(x, y, verbose=0)
