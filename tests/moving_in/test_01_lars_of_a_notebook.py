"""A notebook that trains a small head on embeddings, and took Model Garden's LARS for it.

The rate is a cosine of tensors, there is no decay, losses and metrics are dicts, and the head is
saved.
"""

import json

import keras
import numpy as np
import pytest
from support.frontends import FRONTENDS, array, every_frontend, on_tensorflow

pytestmark = pytest.mark.usefixtures("quickly_compiled", "uncompiled_fits")

FINDINGS = ("effusion", "edema")
rng = np.random.default_rng(0)
EMBEDDINGS = rng.normal(size=(32, 12)).astype("float32")
LABELS = {name: (EMBEDDINGS[:, [i]] > 0).astype("float32") for i, name in enumerate(FINDINGS)}
# A label that is missing has no weight.
WEIGHTS = {name: (rng.random(32) < 0.8).astype("float32") for name in FINDINGS}


def head(host):
    inputs = host.Input((12,))
    x = inputs
    for units in (16, 8):
        x = host.layers.Dense(units, kernel_regularizer=host.regularizers.L2(1e-4))(x)
        x = host.layers.BatchNormalization()(x)
        x = host.layers.Activation("relu")(x)
    findings = host.layers.Dense(2, activation="sigmoid")(x)
    outputs = {
        "effusion": host.layers.Lambda(lambda x: x[:, :1], name="effusion")(findings),
        "edema": host.layers.Lambda(lambda x: x[:, 1:], name="edema")(findings),
    }
    return host.Model(inputs, outputs)


def tensor(number):
    """What `tf.cast(number, tf.float32)` gives on TensorFlow."""
    return keras.ops.cast(number, "float32")


def cosine(host):
    schedules = host.optimizers.schedules
    return schedules.CosineDecay(tensor(0.2), decay_steps=tensor(8), alpha=tensor(0.1))


def trained(host, optimizer, epochs=2):
    host.utils.set_random_seed(0)
    model = head(host)
    model.compile(
        optimizer,
        loss={name: "binary_crossentropy" for name in FINDINGS},
        weighted_metrics={name: ["accuracy"] for name in FINDINGS},
    )
    return go_on(model, epochs)


def go_on(model, epochs):
    model.fit(
        EMBEDDINGS, LABELS, sample_weight=WEIGHTS, batch_size=8, epochs=epochs, shuffle=False,
        verbose=0,
    )  # fmt: skip
    return model


def assert_equal_weights(one, other, **tolerance):
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


def rates(optimizer):
    """Before, within and after the cosine."""
    return [float(array(optimizer._learning_rate(step))) for step in (0, 4, 8, 100)]


@on_tensorflow
@pytest.mark.parametrize("own", [{}, {"form": {"denominator": "norm_of_sum"}}], ids=["ours", "sum"])
def test_the_head_ends_where_model_gardens_lars_ends(own):
    """Without decay both forms are one; biases and offsets begin at zero, where no ratio is."""
    lars = pytest.importorskip("official.modeling.optimization.lars")
    host, ours = FRONTENDS["tf_keras"]
    before = trained(host, lars.LARS(learning_rate=cosine(host)))
    after = trained(host, ours.LARS(learning_rate=cosine(host), **own))
    assert_equal_weights(after, before, rtol=1e-4, atol=1e-6)


@every_frontend
@pytest.mark.parametrize("argument", ["learning_rate", "weight_decay"])
def test_a_schedule_of_tensors_comes_back_from_the_config(frontend, argument):
    host, ours = FRONTENDS[frontend]
    schedule = cosine(host)
    optimizer = ours.LARS(**{"learning_rate": 0.2, argument: schedule})
    config = json.loads(json.dumps(optimizer.get_config()))
    assert config[argument]["config"]["decay_steps"] == 8.0
    again = ours.LARS.from_config(config).get_config()
    assert again[argument]["config"] == config[argument]["config"]


@every_frontend
def test_a_schedule_of_tensors_inside_ours_comes_back_from_the_config(frontend):
    host, ours = FRONTENDS[frontend]
    warm = ours.schedules.Warmup(4, cosine(host))
    again = ours.LARS.from_config(ours.LARS(warm).get_config())
    assert rates(again) == rates(ours.LARS(warm))
    assert rates(again)[0] == 0.0 and rates(again)[-1] == pytest.approx(0.02)


@every_frontend
@pytest.mark.once
def test_one_of_keras_own_optimizers_does_not_come_back(frontend):
    """So that the notebook saved weights alone; the page says it."""
    sgd = FRONTENDS[frontend][0].optimizers.SGD
    with pytest.raises((TypeError, ValueError)):
        sgd.from_config(sgd(cosine(FRONTENDS[frontend][0])).get_config())


@every_frontend
def test_a_config_that_keras_wrote_of_tensors_is_read(frontend):
    """As in the files of its own optimizers, which Keras does not load."""
    host, ours = FRONTENDS[frontend]
    written = host.optimizers.schedules.serialize(cosine(host))
    assert written["config"]["decay_steps"]["class_name"] == "__tensor__"
    optimizer = ours.LARS.from_config({"learning_rate": written})
    np.testing.assert_allclose(rates(optimizer), [0.2, 0.11, 0.02, 0.02], rtol=1e-6)


@every_frontend
def test_boundaries_of_tensors_come_back_from_the_config(frontend):
    host, ours = FRONTENDS[frontend]
    schedule = host.optimizers.schedules.PiecewiseConstantDecay(
        [tensor(4)], np.array([0.5, 0.25], "float32")
    )
    optimizer = ours.LARS.from_config(ours.LARS(schedule).get_config())
    assert rates(optimizer) == [0.5, 0.5, 0.25, 0.25]


# Layers of functions are loaded by who knows the file.
UNSAFE = {"safe_mode": False}


@every_frontend
def test_a_saved_head_goes_on_along_its_cosine(frontend, tmp_path):
    """The order of the two losses, which is that of a sum, may be another one."""
    host, ours = FRONTENDS[frontend]
    model = trained(host, ours.LARS(learning_rate=cosine(host)), epochs=1)
    model.save(tmp_path / "head.keras")
    loaded = host.models.load_model(tmp_path / "head.keras", **UNSAFE)
    assert int(array(loaded.optimizer.iterations)) == 4
    assert rates(loaded.optimizer) == rates(model.optimizer)
    assert_equal_weights(go_on(loaded, 1), go_on(model, 1), rtol=1e-5, atol=1e-6)


@every_frontend
@pytest.mark.once
def test_a_head_in_hdf5_has_its_cosine_again(frontend, tmp_path):
    """Keras 3 reads no moments from such a file, but the settings."""
    host, ours = FRONTENDS[frontend]
    model = trained(host, ours.LARS(learning_rate=cosine(host)), epochs=1)
    model.save(tmp_path / "head.h5")
    loaded = host.models.load_model(tmp_path / "head.h5", **UNSAFE)
    assert rates(loaded.optimizer) == rates(model.optimizer)


@every_frontend
def test_batch_normalization_is_adapted_until_it_is_excluded(frontend):
    host, ours = FRONTENDS[frontend]
    adapted = []
    for own in ({}, {"exclude_from_layer_adaptation": "norm_and_bias"}):
        optimizer = ours.LARS(learning_rate=cosine(host), **own)
        optimizer.build(head(host).trainable_variables)
        kinds = zip(optimizer.plan.paths, optimizer.plan.treatments, strict=True)
        adapted.append({path.rpartition("/")[2] for path, each in kinds if each.adapt})
    assert adapted == [{"kernel", "bias", "gamma", "beta"}, {"kernel"}]


@every_frontend
@pytest.mark.once
def test_the_notebooks_word_for_decay_is_answered(frontend):
    with pytest.raises(TypeError, match=r"write LARS\(0\.2, weight_decay=1e-06\)\."):
        FRONTENDS[frontend][1].LARS(0.2, weight_decay_rate=1e-6)
