"""A SavedModel of a compiled model: tf_keras takes weights and options from it, and no slots.

TensorFlow restores the slots from it, into a model that is compiled with such an optimizer.
"""

import re

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_lamb.tf_keras as tf_lamb

SCHEDULE = tf_keras.optimizers.schedules.CosineDecay(0.01, 10)
PARTS = {"gradient_accumulation_steps": 2}
OPTIMIZERS = {
    "a rate": lambda: tf_lamb.LAMB(0.01),
    "a schedule": lambda: tf_lamb.LAMB(SCHEDULE, use_ema=True, **PARTS),
    "its noise": lambda: tf_lamb.MeasureNoise(tf_lamb.LAMB(0.01, **PARTS)),
    "its gain": lambda: tf_lamb.AdaScale(tf_lamb.LARS(0.01, **PARTS), 2),
    "a loss scale": lambda: tf_keras.mixed_precision.LossScaleOptimizer(tf_lamb.LAMB(0.01)),
}


def compiled(optimizer):
    model = tf_keras.Sequential([tf_keras.layers.Input((4,)), tf_keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    return model


def trained(optimizer):
    model = compiled(optimizer)
    x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
    model.fit(x, x[:, :2], batch_size=4, verbose=0)
    return model, x


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_is_loaded_and_trained(name, tmp_path):
    model, x = trained(OPTIMIZERS[name]())
    model.save(folder := str(tmp_path / "saved"))

    plain = tf_keras.models.load_model(folder, compile=False)
    np.testing.assert_array_equal(plain(x), model(x))
    loaded = tf_keras.models.load_model(folder)
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    loaded.fit(x, x[:, :2], batch_size=4, verbose=0)
    assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations) > 0


def values(variables):
    return [variable.numpy() for variable in (variables() if callable(variables) else variables)]


@pytest.mark.parametrize("save", ["save", "save_weights"])
@pytest.mark.parametrize(
    "make", [*OPTIMIZERS.values(), tf_keras.optimizers.Adam], ids=[*OPTIMIZERS, "of tf_keras"]
)
def test_migrate_says_how_to_restore_moments_and_step(make, save, tmp_path):
    model, _ = trained(make())
    getattr(model, save)(path := str(tmp_path / "saved"))
    old = make()
    again = compiled(old)
    with pytest.raises(ValueError, match=r"Checkpoint\(model\)\.restore.*and pass old") as error:
        tf_lamb.migrate(path, tf_lamb.LAMB(0.1), again, weights=True)
    way = re.search(
        r"(model\.compile\(old\)), (old\.build.*) and then (tf\..*)\.restore", str(error.value)
    )
    assert way.groups() == (
        "model.compile(old)", "old.build(model.trainable_variables)", "tf.train.Checkpoint(model)",
    )  # fmt: skip
    (prefix,) = re.findall(r"restore\('(.*)'\), which", str(error.value))
    old.build(again.trainable_variables)
    tf.train.Checkpoint(again).restore(prefix)
    for there, here in [
        (model.optimizer.variables, old.variables), (model.weights, again.weights),
    ]:  # fmt: skip
        there, here = values(there), values(here)
        assert len(there) == len(here) > 0
        for array, restored in zip(there, here, strict=True):
            np.testing.assert_array_equal(array, restored)


def test_what_was_restored_migrates(tmp_path):
    model, _ = trained(tf_lamb.LAMB(0.01))
    model.save(folder := str(tmp_path / "saved"))
    old, new = tf_lamb.LAMB(0.01), tf_lamb.LAMB(0.02, **PARTS)
    again = compiled(old)
    old.build(again.trainable_variables)
    tf.train.Checkpoint(again).restore(f"{folder}/variables/variables")
    assert tf_lamb.migrate(old, new, again).step == 4
    for slot in ("m", "v"):
        np.testing.assert_array_equal(new.state_of(0)[slot], model.optimizer.state_of(0)[slot])


def test_of_hdf5_migrate_says_to_load_the_model(tmp_path):
    model, _ = trained(tf_lamb.LAMB(0.01))
    model.save(path := str(tmp_path / "model.h5"))
    with pytest.raises(ValueError, match=r"newer interface.*load the model, and pass model\.opt"):
        tf_lamb.migrate(path, tf_lamb.LAMB(0.1), model)
    loaded, new = tf_keras.models.load_model(path), tf_lamb.LAMB(0.1)
    assert tf_lamb.migrate(loaded.optimizer, new, loaded).step == 4
    np.testing.assert_array_equal(new.state_of(0)["m"], model.optimizer.state_of(0)["m"])
