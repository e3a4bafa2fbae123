"""A SavedModel of a compiled model: tf_keras takes weights and options from it, and no slots."""

import numpy as np
import pytest
import tf_keras

import tf_lamb.tf_keras as tf_lamb

SCHEDULE = tf_keras.optimizers.schedules.CosineDecay(0.01, 10)
PARTS = {"gradient_accumulation_steps": 2}
OPTIMIZERS = {
    "a rate": lambda: tf_lamb.LAMB(0.01),
    "a schedule": lambda: tf_lamb.LAMB(SCHEDULE, use_ema=True, **PARTS),
    "its noise": lambda: tf_lamb.MeasureNoise(tf_lamb.LAMB(0.01, **PARTS)),
    "a loss scale": lambda: tf_keras.mixed_precision.LossScaleOptimizer(tf_lamb.LAMB(0.01)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_is_loaded_and_trained(name, tmp_path):
    model = tf_keras.Sequential([tf_keras.layers.Input((4,)), tf_keras.layers.Dense(2)])
    model.compile(OPTIMIZERS[name](), "mse")
    x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
    model.fit(x, x[:, :2], batch_size=4, verbose=0)
    model.save(folder := str(tmp_path / "saved"))

    plain = tf_keras.models.load_model(folder, compile=False)
    np.testing.assert_array_equal(plain(x), model(x))
    loaded = tf_keras.models.load_model(folder)
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    loaded.fit(x, x[:, :2], batch_size=4, verbose=0)
    assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations) > 0
