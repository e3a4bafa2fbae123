"""Small fits over a grid, each after `clear_session`, with Keras's Muon and the usual callbacks.

One such script asks TensorFlow for ops that are deterministic before all else.
"""

import itertools
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from packaging.version import Version
from support.frontends import FRONTENDS, array, every_frontend, on_tensorflow

pytestmark = pytest.mark.usefixtures("quickly_compiled")

rng = np.random.default_rng(0)
FRAMES = rng.normal(size=(16, 8, 3)).astype("float32")
COUNTS = np.abs(FRAMES.sum((1, 2)))[:, None].astype("float32")
# Two layers of frog calls whose kernels stay Adam's.
EXCLUDED = ["slice_dense", "count_dense"]


def network(host):
    host.utils.set_random_seed(0)
    layers = host.layers
    return host.Sequential(
        [layers.Input((8, 3)), layers.Conv1D(4, 3, activation="relu", name="conv"),
         layers.Flatten(), layers.Dense(6, activation="relu", name="hidden"),
         layers.Dense(4, activation="relu", name="slice_dense"),
         layers.Dense(1, name="count_dense")]
    )  # fmt: skip


def compiled(host, optimizer, **how):
    model = network(host)
    model.compile(optimizer, "mse", **how)
    return model


def fit(model, *callbacks, epochs=2, x=FRAMES, **arguments):
    return model.fit(
        x, COUNTS, batch_size=8, epochs=epochs, shuffle=False, verbose=0,
        callbacks=list(callbacks), **arguments,
    )  # fmt: skip


@pytest.mark.usefixtures("uncompiled_fits")
@pytest.mark.once
@pytest.mark.skipif(
    Version(keras.__version__) < Version("3.13"),
    reason="up to Keras 3.12 its Muon takes convolutions too, and trains nothing on TensorFlow",
)
def test_keras_muon_leaves_the_convolution_to_adam_and_ours_does_not():
    theirs = keras.optimizers.Muon(1e-3, exclude_layers=EXCLUDED)
    model = compiled(keras, theirs)
    fit(model, epochs=1)
    kernels = [v for v in model.trainable_variables if v.path.endswith("kernel")]
    by_muon = [v.path.split("/")[-2] for v in kernels if not theirs._should_use_adamw(v)]
    optimizer = FRONTENDS["keras"][1].Muon(1e-3, exclude_from_layer_adaptation=EXCLUDED)
    optimizer.build(network(keras).trainable_variables)
    plan = zip(optimizer.plan.paths, optimizer.plan.treatments, strict=True)
    ours = [path.split("/")[-2] for path, each in plan if each.adapt]
    assert (by_muon, ours) == (["hidden"], ["conv", "hidden"])


@every_frontend
@pytest.mark.once
@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({"exclude_layers": EXCLUDED}, {"exclude_from_layer_adaptation": [*EXCLUDED, "embedding"]}),
        ({"weight_decay": 0.01, "adam_weight_decay": 0.01}, {"weight_decay": 0.01}),
    ],
    ids=["exclude_layers", "adam_weight_decay"],
)
def test_the_words_of_keras_muon_are_answered_with_a_call_that_works(frontend, given, written):
    muon = FRONTENDS[frontend][1].Muon
    with pytest.raises(TypeError) as caught:
        muon(learning_rate=1e-3, **given)
    call = str(caught.value).partition("write ")[2].partition("). ")[0].rstrip(").") + ")"
    made = eval(call, {"Muon": muon})
    assert made.get_config() == muon(1e-3, **written).get_config()


# A process of its own, for what is asked for cannot be taken back. It fits the
# first of the grid again at the end.
GRID = """
import json, sys
import numpy as np
import tensorflow as tf
import {host} as host
import tf_lamb.{host} as ours

tf.config.experimental.enable_op_determinism()
rng = np.random.default_rng(0)
x = rng.normal(size=(16, 8, 3)).astype("float32")
y = np.abs(x.sum((1, 2)))[:, None]
seen = []
for rate, decay in {grid}:
    host.backend.clear_session()
    host.utils.set_random_seed(0)
    layers = host.layers
    model = host.Sequential(
        [layers.Input((8, 3)), layers.Conv1D(4, 3, activation="relu"), layers.Flatten(),
         layers.Dropout(0.2), layers.Dense({width}, activation="relu"), layers.Dense(1)])
    model.compile(ours.Muon(rate, weight_decay=decay), "mse")
    model.fit(x, y, batch_size=4, epochs=2, verbose=0)
    seen.append([w.tolist() for w in model.get_weights()])
half = len(seen) // 2
print(json.dumps([seen[:half] == seen[half:], seen[0] == seen[1]]))
"""
FOUR = [(1e-3, 0.0), (1e-2, 0.1)] * 2
HUNDRED = [(rate, decay) for rate in (1e-4, 1e-3, 3e-3, 1e-2, 3e-2) for decay in range(10)] * 2


@on_tensorflow
@every_frontend
@pytest.mark.parametrize(
    ("grid", "width"), [(FOUR, 70), pytest.param(HUNDRED, 6, marks=pytest.mark.slow)],
    ids=["4 fits", "100 fits"],
)  # fmt: skip
def test_a_grid_of_deterministic_fits_has_the_same_bits_again(frontend, grid, width):
    """Keras compiles the whole step with XLA, tf_keras our update alone."""
    done = subprocess.run(
        [sys.executable, "-c", GRID.format(host=frontend, grid=grid, width=width)],
        capture_output=True, text=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip
    assert not done.returncode, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [True, False]


@every_frontend
def test_a_fit_after_clear_session_is_as_the_first_one(frontend):
    host, ours = FRONTENDS[frontend]
    ends = []
    for _ in range(2):
        host.backend.clear_session()
        model = compiled(host, ours.Muon(1e-3, exclude_from_layer_adaptation=EXCLUDED))
        fit(model, epochs=1)
        ends.append(model.get_weights())
        names = [path.split("/")[-2] for path in model.optimizer.plan.paths]
        assert names[::2] == ["conv", "hidden", "slice_dense", "count_dense"]
    for a, b in zip(*ends, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("uncompiled_fits")
@every_frontend
def test_a_plateau_lowers_a_rate_that_is_a_number(frontend):
    """By half after each epoch but the first, as no epoch can be better by 1,000."""
    host, ours = FRONTENDS[frontend]
    model = compiled(host, ours.Muon(learning_rate=1e-3))
    plateau = host.callbacks.ReduceLROnPlateau(
        "loss", factor=0.5, patience=1, min_delta=1e3, min_lr=2e-4
    )
    history = fit(model, plateau, epochs=5).history
    rates = history["learning_rate" if "learning_rate" in history else "lr"]
    np.testing.assert_allclose(rates, [1e-3, 1e-3, 5e-4, 2.5e-4, 2e-4], rtol=1e-6)
    assert float(array(model.optimizer.learning_rate)) == pytest.approx(2e-4)
    assert model.optimizer.get_config()["learning_rate"] == pytest.approx(2e-4)


@pytest.mark.usefixtures("uncompiled_fits")
@every_frontend
def test_the_lowered_rate_is_that_of_the_next_steps(frontend):
    """At a rate of zero nothing moves, without decay."""
    host, ours = FRONTENDS[frontend]
    model = compiled(host, ours.Muon(learning_rate=1e-3))
    plateau = host.callbacks.ReduceLROnPlateau("loss", factor=0.0, patience=1, min_delta=1e3)
    seen = []
    see = host.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(model.get_weights())
    )
    fit(model, plateau, see, epochs=3)
    moves = [
        max(np.abs(a - b).max() for a, b in zip(*pair, strict=True))
        for pair in itertools.pairwise(seen)
    ]
    assert moves[0] > 0 and moves[1] == 0


@pytest.mark.usefixtures("uncompiled_fits")
@every_frontend
def test_early_stopping_puts_the_best_weights_back(frontend):
    host, ours = FRONTENDS[frontend]
    model = compiled(host, ours.Muon(learning_rate=1e-3))
    seen = []
    see = host.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(model.get_weights())
    )
    stop = host.callbacks.EarlyStopping(
        "loss", patience=2, min_delta=1e3, restore_best_weights=True
    )
    fit(model, see, stop, epochs=9)
    assert len(seen) == 3
    for a, b in zip(model.get_weights(), seen[0], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("uncompiled_fits")
@every_frontend
@pytest.mark.filterwarnings("ignore:.*skipped")
def test_a_loss_that_is_no_number_ends_the_fit_and_leaves_the_weights_finite(frontend):
    """The callback sees it after the step, which was skipped."""
    host, ours = FRONTENDS[frontend]
    model = compiled(host, ours.Muon(learning_rate=1e-3))
    frames = FRAMES.copy()
    frames[9] = np.nan  # of the second batch
    fit(model, host.callbacks.TerminateOnNaN(), x=frames, epochs=4)
    assert int(array(model.optimizer.iterations)) == 1
    assert model.optimizer.skipped_steps == 1
    assert all(np.isfinite(weights).all() for weights in model.get_weights())
