"""Similarity learning that took TensorFlow Addons' `LAMB(rate)`, and nothing else.

So gamma, beta and biases are adapted, too, and so is a layer that begins at zero.
"""

import warnings

import numpy as np
import pytest
from support.frontends import FRONTENDS, array, every_frontend

pytestmark = pytest.mark.usefixtures("quickly_compiled", "uncompiled_fits")

RATE = 0.01
rng = np.random.default_rng(0)
VIEWS = rng.normal(size=(32, 6)).astype("float32")
TARGETS = VIEWS[:, :4] @ rng.normal(size=(4, 4)).astype("float32")
MARK = "At or near zero: "


def encoder(host, start="zeros"):
    """Whose supervised head begins at zero, or does not."""
    host.utils.set_random_seed(0)
    layers = host.layers
    return host.Sequential(
        [layers.Input((6,)), layers.Dense(8, name="project"),
         layers.BatchNormalization(name="batch_normalization"), layers.Activation("relu"),
         layers.Dense(4, kernel_initializer=start, name="head_supervised")]
    )  # fmt: skip


def told(optimizer, model):
    """What the build says of layers near zero."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.build(model.trainable_variables)
    return [str(each.message) for each in caught if MARK in str(each.message)]


def trained(host, optimizer, start="zeros", epochs=4, callbacks=()):
    model = encoder(host, start)
    model.compile(optimizer, "mse")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", MARK)
        model.fit(
            VIEWS, TARGETS, batch_size=8, epochs=epochs, shuffle=False, verbose=0,
            callbacks=list(callbacks),
        )  # fmt: skip
    return model


def way_out(message):
    return eval(message.partition("exclude_from_layer_adaptation=")[2].rstrip("."))


@every_frontend
@pytest.mark.once
def test_a_head_at_zero_is_told_of_by_name(frontend):
    host, ours = FRONTENDS[frontend]
    (message,) = told(ours.LAMB(RATE), encoder(host))
    named = message.removeprefix(MARK).partition(". A trust ratio")[0]
    assert named.endswith("head_supervised/kernel'") and "," not in named


@every_frontend
@pytest.mark.once
def test_without_such_a_head_nothing_is_told(frontend):
    """Biases and offsets begin at zero in any model."""
    host, ours = FRONTENDS[frontend]
    assert told(ours.LAMB(RATE), encoder(host, "glorot_uniform")) == []


@every_frontend
@pytest.mark.once
def test_everything_is_adapted(frontend):
    host, ours = FRONTENDS[frontend]
    optimizer = ours.LAMB(RATE)
    optimizer.build(encoder(host, "glorot_uniform").trainable_variables)
    assert len(optimizer.plan.paths) == 6
    assert all(each.adapt for each in optimizer.plan.treatments)


@every_frontend
def test_what_is_told_is_right(frontend):
    """With a ratio, the head's length grows by a factor of at most 1 + rate a step.

    The first step from zero has no ratio, and Adam's step moves each weight by the rate at most.
    """
    host, ours = FRONTENDS[frontend]
    (message,) = told(ours.LAMB(RATE), encoder(host))
    alone, led_out = (
        trained(host, ours.LAMB(RATE, **own))
        for own in ({}, {"exclude_from_layer_adaptation": way_out(message)})
    )
    lengths = [
        np.linalg.norm(model.get_layer("head_supervised").get_weights()[0])
        for model in (alone, led_out)
    ]
    bound = RATE * np.sqrt(8 * 4) * (1 + RATE) ** 15  # sixteen steps
    assert 0 < lengths[0] <= bound * (1 + 1e-5)
    assert lengths[1] > 3 * bound
    losses = [model.evaluate(VIEWS, TARGETS, verbose=0) for model in (alone, led_out)]
    assert losses[1] < losses[0]


@every_frontend
@pytest.mark.once
def test_after_the_way_out_nothing_is_told(frontend):
    host, ours = FRONTENDS[frontend]
    (message,) = told(ours.LAMB(RATE), encoder(host))
    again = ours.LAMB(RATE, exclude_from_layer_adaptation=way_out(message))
    assert told(again, encoder(host)) == []


@every_frontend
@pytest.mark.once
def test_the_list_of_the_other_copies_leads_out_too(frontend):
    """It was written for the decay, and what does not decay is not adapted."""
    host, ours = FRONTENDS[frontend]
    names = ["batch_normalization", "bias", "head_supervised"]
    optimizer = ours.LAMB(RATE, weight_decay=1e-6, exclude_from_weight_decay=names)
    assert told(optimizer, encoder(host)) == []
    plan = zip(optimizer.plan.paths, optimizer.plan.treatments, strict=True)
    (kernel,) = (path for path, each in plan if each.adapt)
    assert kernel.endswith("project/kernel")


@every_frontend
def test_a_callback_that_saves_weights_alone_saves_those_of_the_epoch(frontend, tmp_path):
    host, ours = FRONTENDS[frontend]
    path = str(tmp_path / "epoch-{epoch}.weights.h5")
    save = host.callbacks.ModelCheckpoint(path, save_weights_only=True)
    model = trained(host, ours.LAMB(RATE), "glorot_uniform", 2, [save])
    loaded = encoder(host, "glorot_uniform")
    loaded.compile(ours.LAMB(RATE), "mse")
    loaded.load_weights(path.format(epoch=2))
    for a, b in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert int(array(model.optimizer.iterations)) == 8
