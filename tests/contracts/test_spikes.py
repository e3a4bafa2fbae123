"""Steps skipped as spikes, of every optimizer: a run that meets one is the run that never did."""

import keras
import numpy as np
import pytest
from oracle import Spikes
from support.feeding import LAYOUTS, Feed, gradients, maker, mean_of, scaled
from support.frontends import BACKEND, FRONTENDS, array, every_frontend, uncompiled
from support.references import NAMES

EVERY = [(name, "one device", False) for name in NAMES]
EVERY += [(NAMES[i], layout, False) for i, layout in enumerate(LAYOUTS) if i]
EVERY += [("LAMB", [*LAYOUTS][-1 if BACKEND == "tensorflow" else 0], True)]
WATCHED = ("gradient_norms", "spiked", "micro_step")


def leap(parts):
    return [{key: 100 * g for key, g in part.items()} for part in parts]


@every_frontend
@pytest.mark.parametrize(("name", "layout", "traced"), EVERY)
def test_a_spike_has_never_been(frontend, name, layout, traced):
    replicas, micro = LAYOUTS[layout]
    make = maker(frontend, name, micro=micro, on_spike=[8, 6.0], use_ema=True, weight_decay=0.1)
    met, spared = (Feed(frontend, make, replicas, traced=traced) for _ in range(2))
    for i, parts in enumerate(gradients(6, replicas * micro, spread=0.1)):
        if i == 4:
            before = met.bits(WATCHED)
            met.step(leap(parts))
            assert met.bits(WATCHED) == before
        met.step(parts)
        spared.step(parts)
    assert met.bits(WATCHED) == spared.bits(WATCHED)
    assert (met.optimizer.spiked_steps, spared.optimizer.spiked_steps) == (1, 0)
    assert met.optimizer.skipped_steps == 0
    if met.strategy:
        for variable in met.optimizer._guard.spike_variables:
            own = variable.value if isinstance(variable, keras.Variable) else variable
            one, other = met.strategy.experimental_local_results(own)
            np.testing.assert_array_equal(one, other)


@every_frontend
@pytest.mark.parametrize("clip", [{}, {"global_clipnorm": 0.01}], ids=str)
def test_it_is_maxtexts(frontend, clip):
    """Of norms that wander, before they are clipped."""
    run, reference = Feed(frontend, maker(frontend, on_spike=[6, 1.5], **clip)), Spikes(6, 1.5)
    spikes = 0
    scales = np.random.default_rng(0).lognormal(size=30)
    for scale, parts in zip(scales, gradients(30, 1), strict=True):
        parts = [{key: np.float32(scale) * g for key, g in part.items()} for part in parts]
        norm = np.sqrt(sum(np.sum(np.square(g)) for g in mean_of(parts).values()))
        run.step(parts)
        spikes += reference.is_spike(norm)
        assert run.optimizer.spiked_steps == spikes
        assert run.optimizer.gradient_norm == pytest.approx(norm, rel=1e-6)
        assert int(array(run.optimizer.iterations)) == reference.count - spikes
    assert 2 < spikes < 15


@every_frontend
def test_what_is_not_finite_is_counted_by_itself(frontend):
    run = Feed(frontend, maker(frontend, on_spike=[4, 6.0]))
    assert run.optimizer.gradient_norm is None
    for parts in gradients(3, 1, spread=0.1):
        run.step(parts)
    norms = array(run.optimizer._guard.norms)
    for value in (np.nan, 1e30):
        run.step([{key: np.full_like(g, value) for key, g in part.items()} for part in parts])
    assert (run.optimizer.skipped_steps, run.optimizer.spiked_steps) == (2, 0)
    np.testing.assert_array_equal(array(run.optimizer._guard.norms), norms)


@every_frontend
def test_a_resumed_run_goes_on_with_the_window(frontend):
    steps = gradients(6, 1, spread=0.1)
    first, second, other = (
        Feed(frontend, maker(frontend, on_spike=[window, 6.0])) for window in (8, 8, 6)
    )
    for parts in steps[:4]:
        first.step(parts)
    first.optimizer.save_own_variables(store := {})
    for run in (second, other):
        run.optimizer.load_own_variables(store)
    for run in (first, second, other):
        run.step(leap(steps[4]))
    assert [run.optimizer.spiked_steps for run in (first, second, other)] == [1, 1, 0]
    np.testing.assert_array_equal(*(array(run.optimizer._guard.norms) for run in (first, second)))
    assert np.count_nonzero(array(other.optimizer._guard.norms)) == 1  # of 8 are none of 6


PARTS = {"micro-batches": (1, 2), **{k: v for k, v in LAYOUTS.items() if "replicas" in k}}


@every_frontend
@pytest.mark.parametrize("parts", PARTS)
def test_adascale_has_never_seen_it(frontend, parts):
    """A bad part would make the gain that of noise, for hundreds of steps."""
    replicas, micro = PARTS[parts]
    make = scaled(frontend, micro, 4.0, own={"on_spike": [8, 6.0]})
    run = Feed(frontend, make, replicas)
    for step in gradients(5, replicas * micro, spread=0.1):
        run.step(step)
    before = run.bits(WATCHED)
    run.step([*step[:-1], *leap(step[-1:])])
    assert run.optimizer.inner_optimizer.spiked_steps == 1
    assert run.bits(WATCHED) == before
    run.step(step)
    assert run.bits(WATCHED) != before and run.optimizer.updates == 6


@every_frontend
def test_a_loss_scale_does_not_move_by_it(frontend):
    host, ours = FRONTENDS[frontend]
    wrap = host.mixed_precision.LossScaleOptimizer
    run = Feed(frontend, lambda: wrap(ours.LAMB(on_spike=[8, 6.0]), initial_scale=4.0))
    for parts in gradients(5, 1, spread=0.1):
        run.step(parts)
    run.step(leap(parts))
    assert run.optimizer.inner_optimizer.spiked_steps == 1
    scale = run.optimizer.loss_scale if frontend == "tf_keras" else run.optimizer.dynamic_scale
    assert float(scale) == 4.0


def problem(rows):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 8)).astype("float32")
    return x, np.tanh(x[:, :2]) + 0.1 * rng.normal(size=(rows, 2)).astype("float32")


def network(frontend, **arguments):
    host, ours = FRONTENDS[frontend]
    host.utils.set_random_seed(0)
    layers = [host.layers.Dense(8, "relu"), host.layers.Dense(2)]
    model = host.Sequential([host.Input((8,)), *layers])
    model.compile(ours.LAMB(0.01, **arguments), "mse")
    return model


@every_frontend
@pytest.mark.parametrize("micro", [1, 2])
@uncompiled(fits=True)
def test_a_bad_batch_is_skipped_and_told_of(frontend, micro):
    x, y = problem(8 * micro * 24)
    y[-8 * micro :] *= 1000
    model = network(frontend, on_spike=[16, 20.0], gradient_accumulation_steps=micro)
    report = FRONTENDS[frontend][1].StopOnDivergence()
    with pytest.warns(UserWarning, match="of 24 steps, 1 have been skipped because .* a spike"):
        history = model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[report])
    assert history.history["spiked_steps"] == [1]
    assert history.history["gradient_norm"][0] == model.optimizer.gradient_norm > 100


@every_frontend
@pytest.mark.once
def test_on_spike_with_propagate_is_refused(frontend):
    with pytest.raises(ValueError, match="on_nonfinite='propagate' at none.* Leave one"):
        FRONTENDS[frontend][1].LAMB(on_spike="skip", on_nonfinite="propagate")
