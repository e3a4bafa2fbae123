"""A model of sequences whose own loop asks Model Garden's factory for LAMB, and for no trainer.

Its settings are made in code, and what is saved is a `tf.train.Checkpoint`.
"""

import warnings

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from official.modeling import optimization

import tf_lamb.model_garden
import tf_lamb.tf_keras
from tf_lamb.model_garden.experiments.optimizers import SETTINGS

rng = np.random.default_rng(0)
READS = rng.normal(size=(16, 5)).astype("float32")
BASES = READS[:, :2] * 2 + 1
# Some of these match in some models alone.
EXCLUDED = ["LayerNorm", "bias", "norm", "BatchNorm", "batch_normalization"]
MODEL_GARDENS = {"weight_decay_rate": 0.01, "epsilon": 1e-6, "exclude_from_weight_decay": EXCLUDED}
OURS = {"weight_decay": 0.01, "epsilon": 1e-6, "exclude_from_weight_decay": EXCLUDED}
RATE = {
    "learning_rate": {
        "type": "polynomial",
        "polynomial": {
            "initial_learning_rate": 0.05, "end_learning_rate": 0.0, "decay_steps": 8, "power": 1.0,
        },
    },
    "warmup": {"type": "linear", "linear": {"warmup_steps": 3, "warmup_learning_rate": 0.0}},
}  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore:No variable matches the pattern")


@pytest.fixture(scope="module", autouse=True)
def registered():
    tf_lamb.model_garden.register()


def optimizer_of(config):
    factory = optimization.OptimizerFactory(config)
    return factory.build_optimizer(factory.build_learning_rate())


def config(kind, settings):
    return optimization.OptimizationConfig({"optimizer": {"type": kind, kind: settings}, **RATE})


def ours():
    return optimizer_of(config("tf_lamb", OURS))


def sequences():
    tf_keras.utils.set_random_seed(0)
    layers = [
        tf_keras.layers.Dense(6, activation="relu", name="hidden"),
        tf_keras.layers.LayerNormalization(name="LayerNorm"),
        tf_keras.layers.Dense(2, name="head"),
    ]
    return tf_keras.Sequential([tf_keras.Input((5,)), *layers])


def loop(model, optimizer, steps):
    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(READS, training=True) - BASES))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return [float(step()) for _ in range(steps)]


def assert_equal_weights(one, other, **tolerance):
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


def test_the_loop_ends_where_model_gardens_lamb_ends():
    """Through warmup and decay to a rate of zero, and beyond."""
    before, after = sequences(), sequences()
    loop(before, optimizer_of(config("lamb", MODEL_GARDENS)), 10)
    optimizer = ours()
    assert type(optimizer) is tf_lamb.tf_keras.LAMB
    loop(after, optimizer, 10)
    assert_equal_weights(after, before, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("how", ["an instance", "attributes"])
def test_our_settings_are_a_class_whose_fields_can_be_set(how):
    assigned = optimization.OptimizationConfig(RATE)
    assigned.optimizer = optimization.OptimizerConfig(type="tf_lamb")
    if how == "an instance":
        assigned.optimizer.tf_lamb = SETTINGS["tf_lamb"](**OURS)
    else:
        for name, value in OURS.items():
            setattr(assigned.optimizer.tf_lamb, name, value)
    assert type(assigned.optimizer.get()) is SETTINGS["tf_lamb"]
    made = optimizer_of(assigned).get_config()
    assert made == ours().get_config() and made["weight_decay"] == 0.01


def test_model_gardens_word_for_decay_is_answered_when_the_optimizer_is_made():
    """The config takes any word, and has a decay of its own."""
    with pytest.raises(TypeError, match="'weight_decay_rate'.*weight_decay twice"):
        optimizer_of(config("tf_lamb", MODEL_GARDENS))


def test_patterns_that_match_nothing_are_told_of_and_do_no_harm():
    optimizer, model = ours(), sequences()
    with pytest.warns(UserWarning, match="(?s)No variable matches .*'BatchNorm'\n  'batch_norm"):
        optimizer.build(model.trainable_variables)
    plan = zip(optimizer.plan.paths, optimizer.plan.treatments, strict=True)
    assert {path for path, each in plan if each.decay} == {"hidden/kernel", "head/kernel"}


def test_a_checkpoint_goes_on_with_the_same_bits(tmp_path):
    model, optimizer = sequences(), ours()
    loop(model, optimizer, 4)
    path = tf.train.Checkpoint(model=model, optimizer=optimizer).save(tmp_path / "ckpt")
    losses = loop(model, optimizer, 4)
    resumed, again = sequences(), ours()
    status = tf.train.Checkpoint(model=resumed, optimizer=again).restore(path)
    assert loop(resumed, again, 4) == losses
    status.assert_consumed()
    assert_equal_weights(resumed, model, rtol=0)


def test_a_checkpoint_of_model_gardens_lamb_goes_on_with_ours(tmp_path):
    """As if nothing had been changed in the middle of the run."""
    model, optimizer = sequences(), optimizer_of(config("lamb", MODEL_GARDENS))
    loop(model, optimizer, 4)
    path = tf.train.Checkpoint(model=model, optimizer=optimizer).save(tmp_path / "ckpt")
    loop(model, optimizer, 3)
    moved, migrated = sequences(), ours()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        report = tf_lamb.tf_keras.migrate(path, migrated, moved, weights=True)
    assert report.step == 4 and not report.fresh
    loop(moved, migrated, 3)
    assert_equal_weights(moved, model, rtol=1e-4, atol=1e-6)
