"""Both doors under `MirroredStrategy`: replicas equal each other, and one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_lamb.keras
import tf_lamb.tf_keras

DOORS = {"keras": (keras, tf_lamb.keras), "tf_keras": (tf_keras, tf_lamb.tf_keras)}


def mirrored(replicas):
    """Collectives of two sizes do not live in one process; a reduction to one device does.

    One device is no replica: what goes wrong under every mirrored strategy must show.
    """
    if replicas == 1:
        return tf.distribute.OneDeviceStrategy("CPU:0")
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


def native(variable):
    return variable if callable(variable.value) else variable.value


def train(door, replicas, eager, steps=4, **arguments):
    """Trains a model on one global batch a step; returns each variable's copies."""
    host, ours = DOORS[door]
    strategy = mirrored(replicas)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(steps, 8, 4)), rng.normal(size=(steps, 8, 2))
    with strategy.scope():
        model = host.Sequential(
            [host.layers.InputLayer((4,)), host.layers.Dense(8, activation="tanh"),
             host.layers.LayerNormalization(), host.layers.Dense(2)]
        )  # fmt: skip
        model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
        optimizer = ours.LAMB(0.05, weight_decay=0.1, exclude_from_weight_decay=["bias$", "gamma$"],
                              **arguments)  # fmt: skip
        optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2) / replicas
        gradients = tape.gradient(loss, [native(v) for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    def run(x, y):
        strategy.run(step, args=(x, y))

    run = run if eager else tf.function(run)
    for batch_x, batch_y in zip(x, y, strict=True):
        parts = [
            strategy.experimental_distribute_values_from_function(
                lambda context, whole=whole: tf.constant(
                    np.split(whole, replicas)[context.replica_id_in_sync_group], tf.float32
                )
            )
            for whole in (batch_x, batch_y)
        ]
        run(*parts)
    variables = [*model.trainable_variables, *optimizer.variables]
    return [
        [copy.numpy() for copy in strategy.experimental_local_results(native(v))] for v in variables
    ]


SETTINGS = {
    "plain": {},
    "clipped": {"global_clipnorm": 0.1},
    "averaged": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
    "accumulated": {"gradient_accumulation_steps": 2, "clipnorm": 0.5},
}


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "graph"])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("door", DOORS)
def test_replicas_are_one_device(door, settings, eager):
    one = train(door, 1, eager, **SETTINGS[settings])
    for replicas in (2, 4):
        many = train(door, replicas, eager, **SETTINGS[settings])
        for (expected,), copies in zip(one, many, strict=True):
            assert len(copies) == replicas
            for copy in copies:
                np.testing.assert_array_equal(copy, copies[0])
            np.testing.assert_allclose(copies[0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("door", DOORS)
def test_clipping_sees_the_aggregated_gradient(door):
    """Replica gradients [100, 0] and [0, 1], clipped to norm 1: clipped apart they would sum to
    [1, 1] / sqrt 2 and turn the step."""
    _, ours = DOORS[door]
    strategy = mirrored(2)
    with strategy.scope():
        variable = tf.Variable([1.0, 1.0])
        optimizer = ours.LAMB(1.0, beta_1=0.0, beta_2=0.0, epsilon=1.0, clipnorm=1.0,
                              exclude_from_layer_adaptation=[""])  # fmt: skip

    def step():
        here = tf.distribute.get_replica_context().replica_id_in_sync_group
        gradient = tf.where(tf.equal(here, 0), [100.0, 0.0], [0.0, 1.0])
        optimizer.apply_gradients([(gradient, variable)])

    strategy.run(step)
    clipped = np.array([100.0, 1.0]) / np.hypot(100.0, 1.0)
    np.testing.assert_allclose(variable.numpy(), 1 - clipped / (clipped + 1), rtol=1e-6)


@pytest.mark.parametrize("door", DOORS)
def test_fit_under_replicas(door):
    host, ours = DOORS[door]
    strategy = mirrored(2)
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    with strategy.scope():
        model = host.Sequential([host.layers.InputLayer((4,)), host.layers.Dense(2)])
        model.compile(optimizer=ours.LAMB(0.05, use_ema=True), loss="mse")
    losses = model.fit(x, x[:, :2], batch_size=16, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
