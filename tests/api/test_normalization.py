"""Batch normalization in parts: its definition, its host, replicas, and as a replacement."""

import os

import numpy as np
import pytest
from keras import ops
from support.frontends import BACKEND, FRONTENDS, every_frontend, on_tensorflow

if BACKEND == "tensorflow":
    import tensorflow as tf
    from support.clusters import mirrored, native


def ghost_oracle(x, gamma, beta, mean, variance, *, size, axis=-1, momentum, epsilon=1e-3):
    """Hoffer et al., algorithm 1, group after group, in float64."""
    x = np.moveaxis(np.asarray(x, np.float64), axis, -1)
    parts = []
    for begin in range(0, len(x), size):
        group = x[begin : begin + size].reshape(-1, x.shape[-1])
        m, v = group.mean(0), group.var(0)
        mean, variance = (momentum * a + (1 - momentum) * b for a, b in ((mean, m), (variance, v)))
        parts.append((x[begin : begin + size] - m) / np.sqrt(v + epsilon) * gamma + beta)
    return np.moveaxis(np.concatenate(parts), -1, axis), mean, variance


def evaluated(x, gamma, beta, mean, variance, axis=-1, epsilon=1e-3):
    x = np.moveaxis(np.asarray(x, np.float64), axis, -1)
    return np.moveaxis((x - mean) / np.sqrt(variance + epsilon) * gamma + beta, -1, axis)


def close(actual, expected, **tolerance):
    actual = [np.asarray(ops.convert_to_numpy(a)) for a in actual]
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, **{"rtol": 2e-6, "atol": 2e-6, **tolerance})


# The layers.


def weights_of(channels, seed=3):
    random = np.random.default_rng(seed)
    return [random.uniform(0.5, 2, channels).astype("float32") for _ in range(4)]


def built(frontend, shape, cls="GhostBatchNormalization", seed=3, **arguments):
    layer = getattr(FRONTENDS[frontend][1], cls)(momentum=0.9, **arguments)
    layer.build(shape)
    channels = shape[arguments.get("axis", -1)]
    layer.set_weights(
        (weights_of(channels, seed) + weights_of(channels, seed + 1))[: len(layer.weights)]
    )
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

    def loss(x):
        return (ghost_oracle(x, *weights_of(3), size=2, momentum=0.9)[0] * weight).sum()

    x, h = np.array(x, np.float64), 1e-6
    numeric = np.array([(loss(x + h * e) - loss(x - h * e)) / (2 * h)
                        for e in np.eye(x.size).reshape(x.size, *x.shape)])  # fmt: skip
    np.testing.assert_allclose(eager[1].ravel(), numeric, rtol=1e-4, atol=1e-4)


@on_tensorflow
def test_whether_it_trains_may_be_a_tensor():
    x = np.random.default_rng(2).normal(size=(4, 3)).astype("float32")
    layer = built("tf_keras", x.shape, group_size=2)
    call = tf.function(lambda training: layer(x, training=training))
    close([call(tf.constant(False))], [evaluated(x, *weights_of(3))], rtol=2e-5, atol=5e-6)
    expected = ghost_oracle(x, *weights_of(3), size=2, momentum=0.9)
    close([call(tf.constant(True)), layer.moving_mean, layer.moving_variance], expected, rtol=2e-5)


# Two sets.


NAMES = ("gamma", "beta", "moving_mean", "moving_variance")


def set_of(layer, prefix=""):
    return [np.array(ops.convert_to_numpy(getattr(layer, prefix + name))) for name in NAMES]


@every_frontend
def test_each_half_has_statistics_of_its_own(frontend):
    x = np.random.default_rng(2).normal(1, 2, (6, 3, 4)).astype("float32")
    layer = built(frontend, x.shape, "SplitBatchNormalization")
    before = {prefix: set_of(layer, prefix) for prefix in ("", "auxiliary_")}
    y = layer(x, training=True)
    for half, prefix in ((slice(0, 3), ""), (slice(3, 6), "auxiliary_")):
        expected = ghost_oracle(x[half], *before[prefix], size=3, momentum=0.9)
        close([y[half], *set_of(layer, prefix)[2:]], expected, rtol=2e-5, atol=5e-6)
    plain = evaluated(x, *set_of(layer))
    close([layer(x, training=False)], [plain], rtol=2e-5, atol=5e-6)


@every_frontend
def test_a_whole_batch_by_the_auxiliary_set(frontend):
    x = np.random.default_rng(2).normal(1, 2, (5, 3, 4)).astype("float32")
    layer = built(frontend, x.shape, "SplitBatchNormalization")
    before, auxiliary = layer.get_weights(), set_of(layer, "auxiliary_")
    with FRONTENDS[frontend][1].auxiliary_statistics():
        outputs = layer(x, training=True), layer(x, training=False)
    expected = ghost_oracle(x, *auxiliary, size=5, momentum=0.9)[0], evaluated(x, *auxiliary)
    close(outputs, expected, rtol=2e-5, atol=5e-6)
    for one, other in zip(layer.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)


# Replacing.


def a_model(host, kind):
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
    if kind == "nested":
        inner = host.Sequential([host.Input((6, 6, 2)), *parts[:2]])
        inputs = host.Input((6, 6, 2))
        x = inner(inputs)
        for part in parts[2:]:
            x = part(x)
        return host.Model(inputs, x)

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
@pytest.mark.parametrize(
    ("kind", "how"),
    [("nested", {"group_size": 4}), ("subclassed", {"split": True})],
    ids=["nested-ghost", "subclassed-split"],
)
def test_a_model_goes_on_with_its_weights(frontend, kind, how):
    host, (x, y) = FRONTENDS[frontend][0], pictures()
    host.utils.set_random_seed(1)
    model = a_model(host, kind)
    model.compile("sgd", "mse")
    if "split" not in how:  # whose optimizer must not be built
        model.fit(x, y, batch_size=8, verbose=0)
    before, predicted = model.get_weights(), model.predict(x, verbose=0)
    variables = [id(v) for v in model.weights]
    assert FRONTENDS[frontend][1].replace_batch_normalization(model, **how) is model
    np.testing.assert_array_equal(model.predict(x, verbose=0), predicted)
    assert set(variables) <= {id(v) for v in model.weights}
    name = "GhostBatchNormalization" if "group_size" in how else "SplitBatchNormalization"
    replaced = [part for part in model._flatten_layers() if hasattr(part, "moving_mean")]
    assert [type(part).__name__ for part in replaced] == [name] * 3
    if "group_size" in how:
        for one, other in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(one, other)
    else:
        paths = [getattr(w, "path", w.name) for w in model.weights]
        auxiliary = [p for p in paths if "auxiliary_" in p]
        assert len(auxiliary) == 12 and all("batch_normalization" in p for p in auxiliary)
    moving = [np.array(ops.convert_to_numpy(part.moving_mean)) for part in replaced]
    model.fit(x, y, batch_size=8, verbose=0)  # traced again
    for part, old in zip(replaced, moving, strict=True):
        assert not np.array_equal(ops.convert_to_numpy(part.moving_mean), old)
    if "split" in how:
        assert all(np.isfinite(w).all() for w in model.get_weights())
        first = replaced[0]
        gap = ops.convert_to_numpy(first.gamma) - ops.convert_to_numpy(first.auxiliary_gamma)
        assert np.abs(gap).max() > 0  # both were trained


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
@pytest.mark.parametrize("how", [{"group_size": 4}, {"split": True}], ids=["ghost", "split"])
def test_a_replaced_model_is_saved_and_loaded(frontend, how, tmp_path):
    host, (x, y) = FRONTENDS[frontend][0], pictures()
    layers = [host.layers.Conv2D(3, 3), host.layers.BatchNormalization(axis=-1, epsilon=1e-5),
              host.layers.GlobalAveragePooling2D(), host.layers.Dense(2)]  # fmt: skip
    model = host.Sequential([host.Input((6, 6, 2)), *layers])
    FRONTENDS[frontend][1].replace_batch_normalization(model, **how)
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
    ours = FRONTENDS[frontend][1]
    ghost, split = ours.GhostBatchNormalization, ours.SplitBatchNormalization
    refused(ValueError, "group_size must be a whole number >= 1, not 0", ghost, 0)
    refused(TypeError, "group_size must be a whole number >= 1, not 2.5", ghost, 2.5)
    for cls in (ghost, split):
        refused(ValueError, "cannot have synchronized=True", cls, synchronized=True)
        refused(ValueError, "cannot have renorm=True", cls, renorm=True)
        refused(ValueError, "axis 0 is that of the examples", cls, axis=0)
    x = np.zeros((10, 3), "float32")
    text = "group_size=4 does not divide the 10 examples"
    refused(ValueError, text, ghost(4), x, training=True)
    refused(ValueError, "Take group_size=2, or batches of 8;", ghost(4), x, training=True)
    refused(ValueError, "Take group_size=2, or at least 16 ex", ghost(16), x, training=True)
    mask = np.ones((10,), bool)
    refused(ValueError, "takes no mask", ghost(5), x, training=True, mask=mask)
    refused(ValueError, "Take an even number", split(), x[:5], training=True)


@every_frontend
def test_what_cannot_be_replaced(frontend):
    host, replace = FRONTENDS[frontend][0], FRONTENDS[frontend][1].replace_batch_normalization
    layers = host.layers
    plain = host.Sequential([host.Input((3,)), layers.Dense(2)], name="plain")
    refused(ValueError, "plain has no BatchNormalization to replace", replace, plain, 4)
    model = host.Sequential([host.Input((3,)), layers.BatchNormalization(name="n")], name="m")
    refused(ValueError, "group_size must be a whole number >= 1, not -1", replace, model, -1)
    refused(ValueError, "group_size or split=True, and not both", replace, model)
    refused(ValueError, "not both: it got group_size=4", replace, model, 4, split=True)
    refused(TypeError, "is neither of Keras nor of", replace, object(), 4)
    unbuilt = host.Sequential([layers.BatchNormalization(name="n")], name="m")
    refused(ValueError, "n has no weights yet", replace, unbuilt, split=True)
    if BACKEND == "tensorflow":
        one, other = layers.BatchNormalization(), layers.BatchNormalization(synchronized=True)
        mixed = host.Sequential([host.Input((3,)), one, other])
        refused(ValueError, "cannot have synchronized=True", replace, mixed, 4)
        assert type(one) is layers.BatchNormalization
    model.compile("sgd", "mse")
    model.fit(np.zeros((4, 3)), np.zeros((4, 3)), verbose=0)
    refused(ValueError, "The optimizer of m is built", replace, model, split=True)
    assert type(model.layers[-1]) is layers.BatchNormalization


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


@every_frontend
def test_a_split_model_is_split_already(frontend):
    host, (x, y) = FRONTENDS[frontend][0], pictures(8)
    rest = [host.layers.GlobalAveragePooling2D(), host.layers.Dense(2)]
    model = host.Sequential([host.Input((6, 6, 2)), host.layers.BatchNormalization(), *rest])
    FRONTENDS[frontend][1].replace_batch_normalization(model, split=True)
    model.compile("sgd", "mse")
    model.fit(x, y, batch_size=8, verbose=0)
    before = model.get_weights()
    FRONTENDS[frontend][1].replace_batch_normalization(model, split=True)
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)
