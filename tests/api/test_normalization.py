"""Batch normalization in parts: its definition, its host, replicas, and as a replacement."""

import os

import numpy as np
import pytest
from keras import ops
from support.frontends import BACKEND, FRONTENDS, every_frontend, on_tensorflow
from support.normalizing import close, evaluated, ghost_oracle, weights_of

if BACKEND == "tensorflow":
    import tensorflow as tf
    from support.clusters import mirrored, native


# The layers.


def built(frontend, shape, **arguments):
    layer = FRONTENDS[frontend][1].GhostBatchNormalization(momentum=0.9, **arguments)
    layer.build(shape)
    layer.set_weights(weights_of(shape[arguments.get("axis", -1)]))
    return layer


@every_frontend
@pytest.mark.parametrize(
    ("shape", "axis", "size"),
    [((12, 5), -1, 4), ((12, 5), -1, 12), ((6, 4, 3, 5), -1, 2), ((6, 5, 4, 3), 1, 3),
     ((4, 7, 3), 2, 1)],
)  # fmt: skip
def test_a_layer_is_its_definition(frontend, shape, axis, size):
    layer = built(frontend, shape, group_size=size, axis=axis)
    x = np.random.default_rng(2).normal(1, 2, shape).astype("float32")
    weights = weights_of(shape[axis])
    expected = ghost_oracle(x, *weights, size=size, axis=axis, momentum=0.9)
    y = layer(x, training=True)
    close([y, layer.moving_mean, layer.moving_variance], expected, rtol=2e-5, atol=5e-6)
    plain = evaluated(x, *weights[:2], *expected[1:], axis)
    close([layer(x, training=False)], [plain], rtol=2e-5, atol=5e-6)


@every_frontend
def test_one_group_is_batch_normalization(frontend):
    x = np.random.default_rng(2).normal(1, 2, (12, 5)).astype("float32")
    host = FRONTENDS[frontend][0].layers.BatchNormalization(momentum=0.9)
    host.build(x.shape)
    host.set_weights(weights_of(5))
    ghost = built(frontend, x.shape, group_size=12)
    expected = ops.convert_to_numpy(host(x, training=True))
    # Here torch's own kernel is 2.2e-6 from float64, and ours 3e-7.
    atol = 5e-6 if BACKEND == "torch" else 1e-6
    close([ghost(x, training=True)], [expected], rtol=1e-6, atol=atol)
    close(ghost.weights, [ops.convert_to_numpy(w) for w in host.weights], rtol=3e-7, atol=0)


@on_tensorflow
def test_whether_it_trains_may_be_a_tensor():
    x = np.random.default_rng(2).normal(size=(4, 3)).astype("float32")
    layer = built("tf_keras", x.shape, group_size=2)
    call = tf.function(lambda training: layer(x, training=training))
    close([call(tf.constant(False))], [evaluated(x, *weights_of(3))], rtol=2e-5, atol=5e-6)
    expected = ghost_oracle(x, *weights_of(3), size=2, momentum=0.9)
    close([call(tf.constant(True)), layer.moving_mean, layer.moving_variance], expected, rtol=2e-5)


@every_frontend
def test_frozen_is_evaluation(frontend):
    x = np.random.default_rng(2).normal(size=(5, 3)).astype("float32")
    layer = built(frontend, x.shape, group_size=2)
    layer.trainable = False
    np.testing.assert_array_equal(layer(x, training=True), layer(x, training=False))


@every_frontend
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_statistics_are_float32_in_mixed_precision(frontend, dtype):
    x = np.random.default_rng(2).normal(300, 1, (8, 4, 4, 2)).astype("float32")
    half = ops.convert_to_numpy(ops.cast(ops.cast(x, dtype[6:]), "float32"))
    policy = dtype if frontend == "keras" else FRONTENDS[frontend][0].mixed_precision.Policy(dtype)
    layer = built(frontend, x.shape, group_size=4, dtype=policy)
    y = layer(x, training=True)
    assert dtype[6:] in str(y.dtype)
    _, mean, variance = ghost_oracle(half, *weights_of(2), size=4, momentum=0.9)
    close([layer.moving_mean, layer.moving_variance], [mean, variance], rtol=1e-5)


@on_tensorflow
@every_frontend
@pytest.mark.parametrize("jit", [False, True])
def test_compiled_is_eager_and_so_is_its_gradient(frontend, jit):
    x = tf.constant(np.random.default_rng(2).normal(size=(8, 3)), tf.float32)
    layer = built(frontend, x.shape, group_size=2)
    weight = np.random.default_rng(4).normal(size=(8, 3))

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
            loss = tf.reduce_sum(y * tf.constant(weight, tf.float32))
        return [y, *tape.gradient(loss, [x])]

    before = layer.get_weights()
    eager = [*map(np.array, step(x)), *layer.get_weights()]
    layer.set_weights(before)
    unknown = [tf.TensorSpec([None, 3], tf.float32)]
    compiled = tf.function(step, jit_compile=jit, input_signature=unknown)(x)
    close([*compiled, *layer.get_weights()], eager)


# Replacing.


def a_model(host):
    """Subclassed, with layers in lists and in layers."""
    layers = host.layers

    class Block(layers.Layer):
        """Holds its layers as Model Garden's residual blocks do."""

        def __init__(self):
            super().__init__()
            self.convolution = layers.Conv2D(3, 3, padding="same")
            self.normalizations = [layers.BatchNormalization(), layers.BatchNormalization()]

        def call(self, x, training=None):
            y = self.normalizations[0](x, training=training)
            return x + self.normalizations[1](self.convolution(y), training=training)

    parts = [layers.Conv2D(3, 3), layers.BatchNormalization(), Block(),
             layers.GlobalAveragePooling2D(), layers.Dense(2)]  # fmt: skip

    class Model(host.Model):
        def __init__(self):
            super().__init__()
            self.parts = parts

        def call(self, x, training=None):
            for part in self.parts:
                takes = isinstance(part, (layers.BatchNormalization, Block))
                x = part(x, training=training) if takes else part(x)
            return x

    model = Model()
    model(np.zeros((2, 6, 6, 2), "float32"))
    return model


def pictures(n=16):
    random = np.random.default_rng(5)
    return random.normal(1, 2, (n, 6, 6, 2)).astype("float32"), random.normal(size=(n, 2))


@every_frontend
def test_a_model_goes_on_with_its_weights(frontend):
    host, (x, y) = FRONTENDS[frontend][0], pictures()
    host.utils.set_random_seed(1)
    model = a_model(host)
    model.compile("sgd", "mse")
    model.fit(x, y, batch_size=8, verbose=0)
    before, predicted = model.get_weights(), model.predict(x, verbose=0)
    variables = [id(v) for v in model.weights]
    assert FRONTENDS[frontend][1].replace_batch_normalization(model, group_size=4) is model
    np.testing.assert_array_equal(model.predict(x, verbose=0), predicted)
    assert set(variables) == {id(v) for v in model.weights}
    replaced = [part for part in model._flatten_layers() if hasattr(part, "moving_mean")]
    assert [type(part).__name__ for part in replaced] == ["GhostBatchNormalization"] * 3
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)
    moving = [np.array(ops.convert_to_numpy(part.moving_mean)) for part in replaced]
    model.fit(x, y, batch_size=8, verbose=0)  # traced again
    for part, old in zip(replaced, moving, strict=True):
        assert not np.array_equal(ops.convert_to_numpy(part.moving_mean), old)


@every_frontend
def test_training_after_the_replacement_is_by_groups(frontend):
    host, (x, y) = FRONTENDS[frontend][0], pictures(8)
    host.utils.set_random_seed(1)
    layer = host.layers.BatchNormalization(momentum=0.9)
    rest = [host.layers.GlobalAveragePooling2D(), host.layers.Dense(2)]
    model = host.Sequential([host.Input((6, 6, 2)), layer, *rest])
    model.compile("sgd", "mse")
    model.fit(x, y, batch_size=8, verbose=0)
    old = [ops.convert_to_numpy(w) for w in (layer.moving_mean, layer.moving_variance)]
    FRONTENDS[frontend][1].replace_batch_normalization(model, group_size=2)
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    expected = ghost_oracle(x, 1, 0, *old, size=2, momentum=0.9)[1:]
    close([layer.moving_mean, layer.moving_variance], expected, rtol=1e-5)


@every_frontend
def test_a_replaced_model_is_saved_and_loaded(frontend, tmp_path):
    host, (x, y) = FRONTENDS[frontend][0], pictures()
    layers = [host.layers.Conv2D(3, 3), host.layers.BatchNormalization(axis=-1, epsilon=1e-5),
              host.layers.GlobalAveragePooling2D(), host.layers.Dense(2)]  # fmt: skip
    model = host.Sequential([host.Input((6, 6, 2)), *layers])
    FRONTENDS[frontend][1].replace_batch_normalization(model, group_size=4)
    model.compile("sgd", "mse")
    model.fit(x, y, batch_size=8, verbose=0)
    path = os.path.join(tmp_path, "model.keras")
    model.save(path)
    loaded = host.models.load_model(path)
    assert loaded.layers[1].get_config() == model.layers[1].get_config()
    assert type(loaded.layers[1]) is type(model.layers[1])
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    for one in (model, loaded):
        one.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    close(loaded.weights, model.get_weights())


@on_tensorflow
def test_a_checkpoint_of_the_host_is_restored(tmp_path):
    tf_keras, ours = FRONTENDS["tf_keras"]
    model = tf_keras.Sequential([tf_keras.Input((3,)), tf_keras.layers.BatchNormalization()])
    model.set_weights([w + 0.5 for w in model.get_weights()])
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "of_the_host"))
    ghost = tf_keras.Sequential([tf_keras.Input((3,)), ours.GhostBatchNormalization(2)])
    tf.train.Checkpoint(model=ghost).read(path).assert_existing_objects_matched()
    for one, other in zip(ghost.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


# Replicas.


@on_tensorflow
@every_frontend
def test_groups_are_formed_within_a_replica(frontend):
    x = np.random.default_rng(2).normal(1, 2, (8, 3)).astype("float32")
    strategy = mirrored(2)
    with strategy.scope():
        layer = built(frontend, (None, 3), group_size=2)
    data = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(np.split(x, 2)[context.replica_id_in_sync_group])
    )
    step = tf.function(lambda part: layer(part, training=True))
    outputs = strategy.experimental_local_results(strategy.run(step, args=(data,)))
    halves = [ghost_oracle(h, *weights_of(3), size=2, momentum=0.9) for h in np.split(x, 2)]
    close(outputs, [half[0] for half in halves], rtol=2e-5, atol=5e-6)
    # Each replica has running averages of its own, as those of the host.
    averages = strategy.experimental_local_results(native(layer.moving_mean))
    close(averages, [half[1] for half in halves], rtol=1e-5)


# What is refused.


def refused(error, text, function, *arguments, **named):
    with pytest.raises(error) as raised:
        function(*arguments, **named)
    assert text in str(raised.value), raised.value


@every_frontend
def test_what_cannot_be(frontend):
    ghost = FRONTENDS[frontend][1].GhostBatchNormalization
    refused(ValueError, "group_size must be a whole number >= 1, not 0", ghost, 0)
    refused(ValueError, "cannot have synchronized=True", ghost, synchronized=True)
    refused(ValueError, "cannot have renorm=True", ghost, renorm=True)
    refused(ValueError, "axis 0 is that of the examples", ghost, axis=0)
    x = np.zeros((10, 3), "float32")
    text = "group_size=4 does not divide the 10 examples"
    refused(ValueError, text, ghost(4), x, training=True)
    refused(ValueError, "Take group_size=2, or batches of 8;", ghost(4), x, training=True)
    mask = np.ones((10,), bool)
    refused(ValueError, "takes no mask", ghost(5), x, training=True, mask=mask)


@every_frontend
def test_what_cannot_be_replaced(frontend):
    host, replace = FRONTENDS[frontend][0], FRONTENDS[frontend][1].replace_batch_normalization
    layers = host.layers
    plain = host.Sequential([host.Input((3,)), layers.Dense(2)], name="plain")
    refused(ValueError, "plain has no BatchNormalization to replace", replace, plain, 4)
    if BACKEND == "tensorflow":
        one, other = layers.BatchNormalization(), layers.BatchNormalization(synchronized=True)
        mixed = host.Sequential([host.Input((3,)), one, other])
        refused(ValueError, "cannot have synchronized=True", replace, mixed, 4)
        assert type(one) is layers.BatchNormalization


@on_tensorflow
@every_frontend
@pytest.mark.parametrize("jit", [False, True])
def test_a_last_smaller_batch_says_what_it_is(frontend, jit):
    host = FRONTENDS[frontend][0]
    model = host.Sequential([host.Input((3,)), FRONTENDS[frontend][1].GhostBatchNormalization(4)])
    model.compile("sgd", "mse", jit_compile=jit)
    data = np.zeros((14, 3)), np.zeros((14, 3))
    with pytest.raises(Exception, match="group_size_4_must_divide_the_batch"):
        model.fit(*data, batch_size=8, verbose=0)
    model.fit(*data, batch_size=8, steps_per_epoch=1, verbose=0)  # the run can go on
