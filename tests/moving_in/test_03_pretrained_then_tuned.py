"""A fusion of images and tables: one script pretrains and saves, another loads and tunes.

Both have Keras's Lamb, along a cosine that warms up to ten times its start, with averages.
"""

import subprocess
import sys

import keras
import numpy as np
import pytest
from support.frontends import FRONTENDS, array, every_frontend

pytestmark = pytest.mark.usefixtures("quickly_compiled", "uncompiled_fits")

rng = np.random.default_rng(0)
IMAGES, TABLES = (rng.normal(size=(16, n)).astype("float32") for n in (8, 3))
SURVIVED = (IMAGES[:, :1] + TABLES[:, :1] > 0).astype("float32")
INPUTS = [IMAGES, TABLES]


def fusion(host):
    inputs = [host.Input((8,)), host.Input((3,))]
    image = host.layers.Dense(6, activation="relu", name="image")(inputs[0])
    table = host.layers.Dense(6, activation="relu", name="table")(inputs[1])
    fused = host.layers.Concatenate()([image, table])
    return host.Model(inputs, host.layers.Dense(1, activation="sigmoid", name="head")(fused))


def cosine(host, rate):
    return host.optimizers.schedules.CosineDecay(
        rate, decay_steps=8, alpha=0.1, warmup_target=10 * rate, warmup_steps=4
    )


def lamb(host, cls, rate=0.01):
    return cls(cosine(host, rate), use_ema=True, ema_momentum=0.99, clipvalue=3.0, epsilon=1e-6)


def fit(model, epochs=4, batch_size=4):
    model.fit(INPUTS, SURVIVED, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0)
    return model


def pretrained(host, cls, epochs=4, batch_size=4):
    host.utils.set_random_seed(0)
    model = fusion(host)
    model.compile(lamb(host, cls), "binary_crossentropy")
    return fit(model, epochs, batch_size)


def assert_equal_weights(one, other, **tolerance):
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


@pytest.fixture
def saved(frontend, tmp_path):
    """What the first script leaves: the model in memory, and its file."""
    host, ours = FRONTENDS[frontend]
    model = pretrained(host, ours.LAMB)
    model.save(tmp_path / "pretrained.keras")
    return model, tmp_path / "pretrained.keras"


@pytest.mark.skipif(not hasattr(keras.optimizers, "Lamb"), reason="this Keras has no Lamb")
def test_pretraining_ends_where_keras_lamb_does():
    before = pretrained(keras, keras.optimizers.Lamb)
    after = pretrained(keras, FRONTENDS["keras"][1].LAMB)
    assert_equal_weights(after, before, rtol=1e-4, atol=1e-6)


@every_frontend
def test_the_first_step_has_the_rate_that_the_cosine_begins_with(frontend):
    """Above zero: an adapted kernel moves by that part of its length."""
    host, ours = FRONTENDS[frontend]
    host.utils.set_random_seed(0)
    weights = fusion(host).get_weights()
    end = pretrained(host, ours.LAMB, epochs=1, batch_size=16)
    for before, after in zip(weights, end.get_weights(), strict=True):
        length = np.linalg.norm(before)
        if length:
            assert np.linalg.norm(after - before) == pytest.approx(0.01 * length, rel=1e-4)


@every_frontend
def test_the_file_holds_the_averages_as_weights(frontend, saved):
    model, path = saved
    loaded = FRONTENDS[frontend][0].models.load_model(path)
    assert_equal_weights(loaded, model, rtol=0)


@every_frontend
def test_a_loaded_run_averages_on(frontend, saved):
    model, path = saved
    loaded = FRONTENDS[frontend][0].models.load_model(path)
    assert_equal_weights(fit(loaded), fit(model), rtol=0)


@every_frontend
def test_compiled_anew_it_begins_anew_from_the_loaded_weights(frontend, saved):
    """As a model that never was trained, but has these weights."""
    host, ours = FRONTENDS[frontend]
    tuned = host.models.load_model(saved[1])
    fresh = fusion(host)
    fresh.set_weights(tuned.get_weights())
    for model in (tuned, fresh):
        model.compile(lamb(host, ours.LAMB, 1e-3), "binary_crossentropy")
        fit(model, epochs=2)
    assert int(array(tuned.optimizer.iterations)) == 8
    assert_equal_weights(tuned, fresh, rtol=0)


@every_frontend
def test_compiled_anew_with_a_frozen_part_it_tunes_the_rest(frontend, saved):
    host, ours = FRONTENDS[frontend]
    tuned = host.models.load_model(saved[1])
    tuned.get_layer("image").trainable = False
    before = {layer.name: layer.get_weights() for layer in tuned.layers}
    tuned.compile(lamb(host, ours.LAMB, 1e-3), "binary_crossentropy")
    fit(tuned)
    assert len(tuned.optimizer.plan.paths) == 4
    moved = {
        name
        for name, weights in before.items()
        for a, b in zip(weights, tuned.get_layer(name).get_weights(), strict=True)
        if (a != b).any()
    }
    assert moved == {"table", "head"}


TUNING = """
import sys

import numpy as np
import {host} as host

model = host.models.load_model(sys.argv[1], compile=False)
assert "tf_lamb" not in sys.modules
import tf_lamb.{host} as ours

model.compile(ours.LAMB(0.01), "binary_crossentropy")
before = model.get_weights()
inputs = [np.ones((8, 8), "float32"), np.ones((8, 3), "float32")]
model.fit(inputs, np.ones((8, 1)), batch_size=4, verbose=0)
moved = any((a != b).any() for a, b in zip(before, model.get_weights()))
print(int(model.optimizer.iterations), moved)
"""


@every_frontend
def test_a_file_of_ours_loads_without_us_and_is_tuned_by_ours(frontend, saved):
    _, path = saved
    done = subprocess.run(
        [sys.executable, "-c", TUNING.format(host=frontend), str(path)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert not done.returncode, done.stderr
    assert done.stdout.splitlines()[-1] == "2 True"
