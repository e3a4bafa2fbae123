"""AdaScale in both frontends: its gain and its steps are those of float64 NumPy.

`Feed` hands fixed gradients to an optimizer, so that the reference sees the very same; `fit` trains
a linear regression, whose gradients NumPy knows. Replicas: `tensorflow/test_adascale_replicas.py`.
"""

import math
import os
import warnings

import keras
import numpy as np
import pytest
from support.feeding import START, Feed, close, gradients, maker, mean_of, scaled
from support.frontends import BACKEND, FRONTENDS, array, compiled_whole, every_frontend
from support.noise import AdaScale
from support.regression import (
    assert_fit_is_the_papers_loop,
    assert_same_state,
    fit,
    regression,
    weights_of,
)


@every_frontend
def test_gain_and_tau_are_the_papers(frontend):
    """Of another scale, too, that is set in mid-run: the averages are those of a base batch."""
    feed, reference = Feed(frontend, scaled(frontend)), AdaScale(4.0)
    assert (feed.optimizer.gain, feed.optimizer.base_steps) == (1.0, 0.0)
    for i, parts in enumerate(gradients(6, 4)):
        if i == 4:
            feed.optimizer.scale = reference.scale = 8.0
        reference.step(parts)
        optimizer = feed.step(parts)
        assert optimizer.parts == 4
        close(optimizer.gain, reference.r)
        close(optimizer.base_steps, reference.tau)
    assert 1 < reference.r < 8
    assert optimizer.updates == 6


@every_frontend
def test_a_scale_below_1_is_refused_and_the_one_before_stays(frontend):
    optimizer = Feed(frontend, scaled(frontend)).optimizer
    optimizer.scale = 8.0
    with pytest.raises(ValueError, match="scale must be a number in"):
        optimizer.scale = 0.5
    assert optimizer.scale == 8.0


# Inner optimizers: name, whether of the host, arguments, power of the gain, measured from.
INNER = {
    "Keras SGD": ("SGD", True, {"momentum": 0.9}, {}, 1.0),
    "LARS": ("LARS", False, {"trust_coefficient": 0.1}, {}, 1.0),
    "SGDP": ("SGDP", False, {"momentum": 0.9}, {}, 1.0),
    "LAMB, plainly": ("LAMB", False, {"weight_decay": 0.1}, {"preconditioned": False}, 1.0),
    "LAMB": ("LAMB", False, {"weight_decay": 0.1, "epsilon": 1e-3}, {}, 0.5),
    "AdamP": ("AdamP", False, {"epsilon": 1e-3, "beta_2": 0.9}, {}, 0.5),
    "Keras Adam": ("Adam", True, {"epsilon": 1e-3}, {}, 0.5),
    "Keras AdamW": ("AdamW", True, {"epsilon": 1e-3, "weight_decay": 0.1}, {}, 0.5),
}
UNMEASURED = 5


@pytest.mark.parametrize("name", INNER)
@every_frontend
def test_the_inner_optimizer_steps_at_the_scaled_rate(frontend, name):
    """Weights equal those of the inner optimizer alone, given the learning rate by hand."""
    inner, host, own, outer, power = INNER[name]
    # Those of TensorFlow's Kerases measure replicas, for tf_keras's accumulate nothing.
    replicas, micro = (2, 1) if host and BACKEND == "tensorflow" else (1, 2)
    make = scaled(frontend, micro, inner=inner, host=host, own=own, rate=0.05, **outer)
    feed, alone = (
        Feed(frontend, make, replicas),
        Feed(frontend, maker(frontend, inner, 0.05, host, **own)),
    )
    reference = AdaScale(4.0, power=power)
    v, beta = dict.fromkeys(START, 0.0), own.get("beta_2", 0.999)
    for t, parts in enumerate(gradients(9, 2)):
        weighed = parts
        if power == 0.5 and t:
            roots = {k: np.sqrt(v[k] / (1 - beta**t)) + own["epsilon"] for k in v}
            weighed = [{k: p[k] / roots[k] for k in p} for p in parts]
        factor = reference.step(weighed, measured=power == 1 or t >= UNMEASURED)
        mean = mean_of(parts)
        v = {k: beta * v[k] + (1 - beta) * mean[k] ** 2 for k in v}
        optimizer = feed.step(parts)
        close(optimizer.gain, reference.r, 2e-6)
        close(optimizer.scaled_learning_rate, 0.05 * factor, 2e-6)
        alone.optimizer.learning_rate = 0.05 * factor
        alone.step([mean])
        for ours, expected in zip(feed.weights(), alone.weights(), strict=True):
            close(ours, expected, 2e-6)
    assert optimizer.power == power
    assert reference.r > 1
    assert float(array(optimizer.learning_rate)) == pytest.approx(0.05)


@every_frontend
def test_the_first_gradient_of_an_element_is_not_measured(frontend):
    """As of a row of an embedding that no batch had before: it would be divided by epsilon."""
    first, none = (Feed(frontend, scaled(frontend, 2, inner="LAMB")) for _ in range(2))
    *before, last = gradients(8, 2)
    untouched = {"kernel": np.float32([[1], [0]]), "bias": 1}
    for parts in before:
        parts = [{k: p[k] * untouched[k] for k in p} for p in parts]
        close(first.step(parts).gain, none.step(parts).gain)
    first.step(last)
    none.step([{k: p[k] * untouched[k] for k in p} for p in last])
    assert first.optimizer.gain == pytest.approx(none.optimizer.gain) != 4


# --- Schedules and callbacks ---


@every_frontend
def test_a_schedule_reads_whole_steps_of_the_base_batch(frontend):
    schedules = FRONTENDS[frontend][0].optimizers.schedules
    boundaries, values = [3, 9], [0.1, 0.05, 0.025]
    # Keras holds a value up to and including its boundary.
    schedule = schedules.PiecewiseConstantDecay([b - 1 for b in boundaries], values)
    feed = Feed(frontend, scaled(frontend, rate=schedule, own={"weight_decay": 0.0}))
    alone = Feed(frontend, maker(frontend))
    reference, rates = AdaScale(4.0), []
    for parts in gradients(6, 4):
        at = math.floor(reference.tau)
        rates.append(values[sum(at >= b for b in boundaries)])
        alone.optimizer.learning_rate = rates[-1] * reference.step(parts)
        feed.step(parts)
        alone.step([mean_of(parts)])
        for ours, expected in zip(feed.weights(), alone.weights(), strict=True):
            close(ours, expected, 2e-6)
    assert sorted(set(rates)) == sorted(values)
    with pytest.raises(TypeError, match="is a schedule; a number cannot be put in its place"):
        feed.optimizer.learning_rate = 0.1


def _piecewise(frontend):
    return FRONTENDS[frontend][0].optimizers.schedules.PiecewiseConstantDecay([1000], [2, 1])


def _half(frontend):
    base = FRONTENDS[frontend][0].optimizers.schedules.LearningRateSchedule

    class InHalfPrecision(base):
        def __call__(self, step):
            return keras.ops.cast(keras.ops.convert_to_tensor(2.0), "float16")

    return InHalfPrecision()


# What a user may give as a learning rate of 2: schedules of whole numbers, in half precision, and a
# function that returns a whole number.
RATES_OF_2 = {"whole": _piecewise, "half": _half, "function": lambda frontend: lambda: 2}


@pytest.mark.parametrize("kind", RATES_OF_2)
@pytest.mark.parametrize("inner", ["LARS", "LAMB", "SGD"])
@every_frontend
def test_the_gain_is_whole_whatever_the_dtype_of_the_rate(frontend, inner, kind):
    rate = RATES_OF_2[kind](frontend)
    host = inner == "SGD"
    replicas, micro = (2, 1) if host and BACKEND == "tensorflow" else (1, 2)
    own = {} if host else {"weight_decay": 0.0}
    outer = {"preconditioned": False} if inner == "LAMB" else {}
    make = scaled(frontend, micro, inner=inner, host=host, rate=rate, own=own, **outer)
    feed, reference = Feed(frontend, make, replicas), AdaScale(4.0)
    alone = Feed(frontend, maker(frontend, inner, 0.1, host, **own))
    for parts in gradients(4, 2):
        alone.optimizer.learning_rate = 2 * reference.step(parts)
        optimizer = feed.step(parts)
        alone.step([mean_of(parts)])
        close(array(optimizer.scaled_learning_rate), 2 * reference.r, 2e-6)
        for ours, expected in zip(feed.weights(), alone.weights(), strict=True):
            close(ours, expected, 2e-5)
    assert 1 < reference.r < 4 and reference.r % 0.5 > 1e-3


@every_frontend
def test_the_learning_rate_can_be_set_between_steps(frontend):
    feed, reference = Feed(frontend, scaled(frontend)), AdaScale(4.0)
    alone = Feed(frontend, maker(frontend))
    assert float(array(feed.optimizer.scaled_learning_rate)) == pytest.approx(0.1)
    for i, parts in enumerate(gradients(4, 4)):
        rate = 0.1 / 2**i
        feed.optimizer.learning_rate = rate
        alone.optimizer.learning_rate = rate * reference.step(parts)
        feed.step(parts)
        alone.step([mean_of(parts)])
        assert float(array(feed.optimizer.learning_rate)) == pytest.approx(rate)
        close(array(feed.optimizer.scaled_learning_rate), rate * reference.r, 2e-6)
    for ours, expected in zip(feed.weights(), alone.weights(), strict=True):
        close(ours, expected, 2e-6)


# --- Fitting a regression ---


@every_frontend
def test_fit_is_the_papers_loop_and_traces_it_once(frontend, monkeypatch):
    """Data in, weights out: what losses are divided by is Keras's business."""
    make = scaled(frontend, inner="SGDP", own={"momentum": 0.0, "delta": 0.0})
    model = regression(frontend, make)
    meter = type(model.optimizer._meter)
    calls, measure = [], meter.measure
    monkeypatch.setattr(meter, "measure", lambda *a, **k: calls.append(1) or measure(*a, **k))
    fit(model, batch=4, epochs=1)
    once = len(calls)
    fit(model, batch=4, epochs=1)
    assert_fit_is_the_papers_loop(model, micro=4, epochs=2)
    assert once > 0
    if BACKEND != "torch":  # which traces nothing
        assert once == len(calls)


@every_frontend
@compiled_whole
def test_the_whole_step_compiled_is_the_step(frontend):
    seen = []
    for how in ({"run_eagerly": True}, {"jit_compile": True}):
        model = regression(frontend, scaled(frontend, 2), **how)
        fit(model)
        seen.append((model.optimizer.gain, model.optimizer.base_steps, *weights_of(model)))
    for plain, compiled in zip(*seen, strict=True):
        close(compiled, plain, 2e-6)


@every_frontend
def test_a_callback_lowers_the_rate_of_the_base_batch(frontend):
    host, _ = FRONTENDS[frontend]
    model = regression(frontend, scaled(frontend, 2))
    lower = host.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=1e3)
    fit(model, epochs=4, callbacks=[lower])
    assert float(array(model.optimizer.learning_rate)) == pytest.approx(0.1 / 2**3)
    gain = model.optimizer.gain
    assert gain > 1
    assert float(array(model.optimizer.scaled_learning_rate)) == pytest.approx(gain * 0.1 / 2**3)


@every_frontend
def test_mixed_precision_scales_the_loss_around_it(frontend):
    host, ours = FRONTENDS[frontend]
    set_policy = host.mixed_precision.set_global_policy
    set_policy("mixed_float16")
    try:
        model = regression(frontend, scaled(frontend, 2))
    finally:
        set_policy("float32")
    assert type(model.optimizer).__name__.startswith("LossScaleOptimizer")
    before = weights_of(model)
    watch = ours.NoiseScale(16, verbose=False)
    fit(model, epochs=4, callbacks=[watch, ours.StopAtBaseSteps(1000)])
    adascale = model.optimizer.inner_optimizer
    assert adascale.updates > 4
    assert 1 < adascale.gain <= 4
    assert adascale.base_steps > adascale.updates
    assert np.isfinite(watch.history["noise_scale"][-1])
    for one, other in zip(before, weights_of(model), strict=True):
        assert np.all(np.isfinite(other)) and np.any(one != other)


@every_frontend
def test_training_stops_when_the_steps_are_spent(frontend, tmp_path):
    host, ours = FRONTENDS[frontend]
    model = regression(frontend, scaled(frontend, 2, scale=2.0))
    logs = fit(model, epochs=20, callbacks=[ours.StopAtBaseSteps(9)]).history
    spent, gain = model.optimizer.base_steps, model.optimizer.gain
    assert 9 <= spent < 9 + gain
    assert logs["base_step"][-1] == spent
    assert logs["gain"][-1] == gain
    model.save(tmp_path / "model.keras")
    resumed = host.models.load_model(tmp_path / "model.keras")
    before = weights_of(resumed)
    fit(resumed, epochs=20, callbacks=[ours.StopAtBaseSteps(9, every=50)])
    # Keras looks after a batch: half an update.
    assert resumed.optimizer.base_steps == spent
    for one, other in zip(before, weights_of(resumed), strict=True):
        np.testing.assert_array_equal(one, other)


@every_frontend
def test_a_training_that_ends_before_warns(frontend):
    model = regression(frontend, scaled(frontend, 2, scale=1.0), run_eagerly=True)
    with pytest.warns(UserWarning, match=r"has ended after [24]\.0 of 1,000 base steps"):
        fit(model, epochs=1, callbacks=[FRONTENDS[frontend][1].StopAtBaseSteps(1000)])


# --- What is saved ---


@every_frontend
def test_saved_and_resumed_is_uninterrupted(frontend, tmp_path):
    host, _ = FRONTENDS[frontend]
    rate = host.optimizers.schedules.PolynomialDecay(0.1, 200)
    make = scaled(frontend, 2, inner="LAMB", rate=rate, smoothing=0.5)
    model = regression(frontend, make, run_eagerly=True)
    fit(model, epochs=1)
    model.save(tmp_path / "model.keras")
    resumed = host.models.load_model(tmp_path / "model.keras")
    resumed.run_eagerly = True
    assert resumed.optimizer.get_config() == model.optimizer.get_config()
    for each in (model, resumed):
        fit(each, epochs=1)
    assert_same_state(resumed, model)


# --- Gradients that are not as they should be ---


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@every_frontend
def test_a_step_that_is_not_finite_changes_nothing(frontend, bad):
    feed, reference = Feed(frontend, scaled(frontend)), AdaScale(4.0)
    for i, parts in enumerate(gradients(6, 4)):
        before = [array(v) for v in feed.optimizer._meter.state.values()]
        if i == 3:
            parts[-1]["kernel"][0, 0] = bad
        else:
            reference.step(parts)
        optimizer = feed.step(parts)
        close(optimizer.gain, reference.r)
        close(optimizer.base_steps, reference.tau)
        if i == 3:
            for one, other in zip(before, optimizer._meter.state.values(), strict=True):
                np.testing.assert_array_equal(one, array(other))
    assert reference.r > 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@every_frontend
def test_other_precisions_are_summed_in_float32(frontend, dtype):
    if dtype == "float64" and BACKEND == "jax" and not os.environ.get("JAX_ENABLE_X64"):
        pytest.skip("JAX_ENABLE_X64 is not set")
    feed, reference = Feed(frontend, scaled(frontend), dtype=dtype), AdaScale(4.0)
    for parts in gradients(4, 4):
        for p in parts:
            for k in p:
                p[k] = array(keras.ops.cast(keras.ops.cast(p[k], dtype), "float32"))
        reference.step(parts)
        optimizer = feed.step(parts)
        state = optimizer._meter.state.values()
        assert {keras.backend.standardize_dtype(v.dtype) for v in state} == {"float32", "int32"}
        close(optimizer.gain, reference.r, 2e-6)


@every_frontend
def test_a_variable_without_a_gradient_counts_for_nothing(frontend):
    feed, reference = Feed(frontend, scaled(frontend)), AdaScale(4.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras's own: it has no gradient
        for parts in gradients(3, 4):
            reference.step([{"kernel": p["kernel"]} for p in parts])
            optimizer = feed.step([{**p, "bias": None} for p in parts])
            close(optimizer.gain, reference.r)
    np.testing.assert_array_equal(feed.weights()[1], START["bias"].astype("float32"))
