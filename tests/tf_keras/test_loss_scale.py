"""tf_keras's LossScaleOptimizer around ours: an update is taken, or is dropped, as one."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from support.clusters import all_reduces
from support.feeding import LAYOUTS, Feed, assert_never_been, gradients, maker
from support.frontends import precision

import tf_lamb.tf_keras
from tf_lamb.api.variables import step_of

FIXED = {"dynamic": False, "initial_scale": 8.0}
COUNTS = ("skipped_steps", "micro_step")


def feed(layout, own=(), around=lambda own: own, traced=False, strategy=None, **arguments):
    replicas, micro = LAYOUTS[layout]
    make = maker("tf_keras", "LAMB", micro=micro, **arguments)

    def wrapped():
        return tf_keras.mixed_precision.LossScaleOptimizer(around(make()), **dict(own))

    return Feed("tf_keras", wrapped, replicas, traced=traced, strategy=strategy)


def steps(layout, count=3):
    replicas, micro = LAYOUTS[layout]
    return gradients(count, replicas * micro)


def spoiled(parts, which=0):
    parts = [dict(part) for part in parts]
    parts[which]["bias"] = np.full_like(parts[which]["bias"], np.inf)
    return parts


def counts(run):
    """Updates, and those that were skipped."""
    inner = run.optimizer.inner_optimizer
    return step_of(inner), inner.skipped_steps


@pytest.mark.parametrize(
    ("own", "which"), [({}, 0), ({}, -1), (FIXED, 0)],
    ids=["the first part", "the last part", "a fixed scale"],
)  # fmt: skip
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_update_that_overflows_is_dropped_as_one(layout, own, which):
    met, spared = (feed(layout, own, use_ema=True) for _ in range(2))
    for i, parts in enumerate(steps(layout)):
        if i == 1:
            before = met.bits(COUNTS)
            met.step(spoiled(parts, which))
            assert met.bits(COUNTS) == before
        met.step(parts)
        spared.step(parts)
    assert met.bits(COUNTS) == spared.bits(COUNTS)
    assert counts(met) == (3, 1)
    if not own:
        assert float(met.optimizer.loss_scale) == 2.0**14
        assert met.optimizer.dynamic_counter.numpy() == 2  # updates since


@pytest.mark.parametrize(
    ("layout", "meets"),
    [("micro-batches", True), ("replicas and micro-batches", True),
     ("replicas and micro-batches", False)],
)  # fmt: skip
def test_a_traced_step_drops_as_one(layout, meets, monkeypatch):
    """Also where replicas do not meet, as in a step that XLA compiles whole for GPUs."""
    strategy = None if "replicas" not in layout else tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"]
    )  # fmt: skip
    met, spared = (feed(layout, traced=True, strategy=strategy) for _ in range(2))
    if not meets:
        monkeypatch.setattr(type(strategy.extended), "_use_merge_call", lambda self: False)
    assert_never_been(met, spared, steps(layout, 2), spoiled, COUNTS)
    assert counts(met) == (2, 2)
    assert float(met.optimizer.loss_scale) == 2.0**13


def test_the_scale_grows_with_updates_and_stays_within_one():
    run = feed("micro-batches", {"initial_scale": 4.0, "dynamic_growth_steps": 2})
    scales = []
    for part in [part for parts in steps("micro-batches", 4) for part in parts]:
        scales.append(float(run.optimizer.loss_scale))
        run.step([part])
    assert scales == [4.0] * 6 + [8.0] * 6
    assert float(run.optimizer.loss_scale) == 16.0


@pytest.mark.parametrize("own", [{}, FIXED], ids=["dynamic", "fixed"])
def test_replicas_are_summed_once_an_update(own):
    def count(micro):
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        make = maker("tf_keras", "LAMB", micro=micro)
        wrap = tf_keras.mixed_precision.LossScaleOptimizer
        run = Feed("tf_keras", lambda: wrap(make(), **own), 2, traced=True, strategy=strategy)
        (parts,) = gradients(1, 2)
        seen = all_reduces(run.call, *(run.tensors(parts, key) for key in parts[0]))
        return tuple(number / run.replicas for number in seen)

    assert count(1) == (1, 0)
    assert count(8) == (0, 1)


@pytest.mark.parametrize("on_nonfinite", ["raise", "propagate"])
def test_a_dynamic_scale_drops_whatever_on_nonfinite_says(on_nonfinite):
    """Its first steps overflow, until it is found."""
    run = feed("micro-batches", on_nonfinite=on_nonfinite)
    before = run.bits(COUNTS)
    run.step(spoiled(steps("micro-batches", 1)[0], 1))
    assert run.bits(COUNTS) == before
    assert counts(run) == (0, 1)


def test_a_fit_in_float16_counts_updates_and_does_not_warn():
    tf_keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 4)).astype("float32")
    x[9] *= 1e4  # whose gradient float16 does not hold, in the second micro-batch of four
    with precision("tf_keras", policy="mixed_float16"):
        model = tf_keras.Sequential([
            tf_keras.layers.Input((4,)), tf_keras.layers.Dense(2),
            tf_keras.layers.Activation("linear", dtype="float32"),
        ])  # fmt: skip
        model.compile(maker("tf_keras", "LAMB", rate=0.01, micro=4)(), "mse")
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            model.fit(x, x[:, :2], batch_size=8, epochs=3, shuffle=False, verbose=0)
    own = model.optimizer.inner_optimizer
    assert isinstance(own, tf_lamb.tf_keras.LAMB)
    assert own.skipped_steps >= 3  # the first update of each epoch
    assert int(own.iterations) == 6 - own.skipped_steps
    assert float(model.optimizer.loss_scale) == 2.0 ** (15 - own.skipped_steps)
