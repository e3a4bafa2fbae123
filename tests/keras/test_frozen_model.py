"""`fit` of a model in which everything is frozen, as one half of a GAN is at times."""

import keras
import numpy as np
import pytest
from support.frontends import array

import tf_lamb.keras as ours

OPTIMIZERS = {
    "LAMB": lambda: ours.LAMB(0.1),
    "averages": lambda: ours.LARS(0.1, use_ema=True, gradient_accumulation_steps=2),
    "AdaScale": lambda: ours.AdaScale(ours.SGDP(0.1, gradient_accumulation_steps=2), 2.0),
    "noise": lambda: ours.MeasureNoise(ours.Muon(0.1, gradient_accumulation_steps=2)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_nothing_moves_until_something_learns(name):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.trainable = False
    model.compile(OPTIMIZERS[name](), "mse")
    x, before = np.ones((8, 3), "float32"), [array(v) for v in model.weights]
    model.fit(x, x[:, :1], batch_size=2, epochs=2, verbose=0)
    for variable, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(array(variable), value)
    assert int(array(model.optimizer.iterations)) == 0
    model.trainable = True
    model.compile(model.optimizer, "mse")
    model.fit(x, x[:, :1], batch_size=2, epochs=1, verbose=0)
    assert any((array(v) != w).any() for v, w in zip(model.weights, before, strict=True))
