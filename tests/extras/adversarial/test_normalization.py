"""Batch normalization with two sets of statistics: each half of a batch, and a whole model."""

import numpy as np
import pytest
from keras import ops
from support.frontends import FRONTENDS, every_frontend, extra
from support.normalizing import close, evaluated, ghost_oracle, weights_of

from tf_lamb_extras.adversarial.normalization import BY_AUXILIARY, split

LAYERS = {name: ours.SplitBatchNormalization for name, (_, ours) in extra("adversarial").items()}
NAMES = ("gamma", "beta", "moving_mean", "moving_variance")


def built(frontend, shape):
    layer = LAYERS[frontend](momentum=0.9)
    layer.build(shape)
    layer.set_weights(weights_of(shape[-1], 3) + weights_of(shape[-1], 4))
    return layer


def set_of(layer, prefix=""):
    return [np.array(ops.convert_to_numpy(getattr(layer, prefix + name))) for name in NAMES]


@every_frontend
def test_each_half_has_statistics_of_its_own(frontend):
    x = np.random.default_rng(2).normal(1, 2, (6, 3, 4)).astype("float32")
    layer = built(frontend, x.shape)
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
    layer = built(frontend, x.shape)
    before, auxiliary = layer.get_weights(), set_of(layer, "auxiliary_")
    with BY_AUXILIARY.up():
        outputs = layer(x, training=True), layer(x, training=False)
    expected = ghost_oracle(x, *auxiliary, size=5, momentum=0.9)[0], evaluated(x, *auxiliary)
    close(outputs, expected, rtol=2e-5, atol=5e-6)
    for one, other in zip(layer.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)


@every_frontend
def test_a_model_is_split_in_place_and_only_once(frontend, tmp_path):
    host, random = FRONTENDS[frontend][0], np.random.default_rng(5)
    x, y = random.normal(1, 2, (16, 3)).astype("float32"), random.normal(size=(16, 2))
    layers = [host.layers.BatchNormalization(name="norm"), host.layers.Dense(2)]
    model = host.Sequential([host.Input((3,)), *layers])
    predicted, variables = model.predict(x, verbose=0), {id(v) for v in model.weights}
    assert split(model, LAYERS[frontend]) is model
    np.testing.assert_array_equal(model.predict(x, verbose=0), predicted)
    assert variables < {id(v) for v in model.weights}
    auxiliary = [p for p in (getattr(w, "path", w.name) for w in model.weights) if "auxiliary" in p]
    assert len(auxiliary) == 4 and all("norm" in path for path in auxiliary)
    model.compile("sgd", "mse")
    model.fit(x, y, batch_size=8, verbose=0)
    before = model.get_weights()
    split(model, LAYERS[frontend])
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)
    gap = ops.convert_to_numpy(layers[0].gamma) - ops.convert_to_numpy(layers[0].auxiliary_gamma)
    assert np.abs(gap).max() > 0  # both were trained
    model.save(tmp_path / "model.keras")
    loaded = host.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))


@every_frontend
def test_an_odd_batch_cannot_be_split(frontend):
    with pytest.raises(ValueError, match="Take an even number"):
        LAYERS[frontend]()(np.zeros((5, 3), "float32"), training=True)


@every_frontend
def test_a_layer_without_weights_cannot_be_split(frontend):
    host, cls = FRONTENDS[frontend][0], LAYERS[frontend]
    unbuilt = host.Sequential([host.layers.BatchNormalization(name="n")])
    with pytest.raises(ValueError, match="n has no weights yet"):
        split(unbuilt, cls)


@every_frontend
def test_a_model_that_was_trained_cannot_be_split(frontend):
    host, cls = FRONTENDS[frontend][0], LAYERS[frontend]
    model = host.Sequential([host.Input((3,)), host.layers.BatchNormalization()], name="m")
    model.compile("sgd", "mse")
    model.fit(np.zeros((4, 3)), np.zeros((4, 3)), verbose=0)
    with pytest.raises(ValueError, match="The optimizer of m is built"):
        split(model, cls)
