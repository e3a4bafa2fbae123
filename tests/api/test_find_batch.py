"""`find_batch`: what it answers, what it leaves as it was, and what it refuses."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from support.examples import run_example
from support.frontends import FRONTENDS, every_frontend, on_tensorflow
from support.notebooks import assert_shown

import tf_lamb
from tf_lamb.core import recipes
from tf_lamb.find import reach, trials
from tf_lamb.find.goodput import steps
from tf_lamb.find.trials import Trials

WIDTH, BATCH, EXAMPLES, RATE = 64, 16, 16000, 0.056
CURVATURES, VARIANCE = np.geomspace(1, 0.05, WIDTH), 2.0
TIMES = {16: 0.026, 256: 0.266}  # 10 ms and 1 ms an example
UP_TO_64 = {16: 0.026, 64: 0.074}
BASELINE = {"baseline_batch_size": BATCH, "baseline_epochs": 2}
LEAST = np.array([[1.0, -1.0] * (WIDTH // 2)]).T  # of the quadratic


def quadratic(examples=EXAMPLES, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(examples, WIDTH)) * np.sqrt(CURVATURES)
    y = x @ LEAST + math.sqrt(VARIANCE) * rng.normal(size=(examples, 1))
    return x.astype("float32"), y.astype("float32")


def linear(host, optimizer=None, **compiled):
    model = host.Sequential([
        host.layers.Input((WIDTH,)), host.layers.Dense(1, use_bias=False)
    ])  # fmt: skip
    model.set_weights([np.zeros((WIDTH, 1))])
    model.compile(optimizer or host.optimizers.SGD(RATE), "mse", **compiled)
    return model


def search(ours, model, of=None, **how):
    told = {**BASELINE, "step_seconds": TIMES, "verbose": False, **how}
    return ours.find_batch(model, quadratic() if of is None else of, **told)


def losses(batch):
    """Yields, step by step, the least expected loss of SGD: the square of the prediction's error.

    With v_i the expected square of the error of weight i, and Gaussian inputs. The least is that
    of many constant rates.
    """
    h, v = CURVATURES, np.ones(WIDTH)
    rate = 0.6 / 1.1 ** np.arange(70)[:, None]
    while True:
        noise = h**2 * v + h * (v @ h)[..., None] + VARIANCE * h
        v = np.minimum(v * (1 - 2 * rate * h) ** 2 + 4 * rate**2 / batch * noise, 1e6)
        yield np.min(v @ h)


def expected(batch, target):
    """The fewest expected steps to a loss."""
    return next(step for step, loss in enumerate(losses(batch), 1) if loss <= target)


def test_the_steps_of_a_noisy_quadratic_are_those_of_its_closed_form():
    host, ours = FRONTENDS["keras"]
    found = search(ours, linear(host), validation_data=quadratic(8192, seed=1))
    (x, y), curve = quadratic(8192, seed=1), found.answer.curve
    target = found.target - np.mean((y - x @ LEAST) ** 2)
    at_base, at_large = (expected(batch, target) for batch in (BATCH, 16 * BATCH))
    of_runs = [run for runs in reach.best_runs_by_batch(found.runs).values() for run in runs]
    short = steps.curve_from_runs((run.batch, run.steps) for run in of_runs)
    low, high = short.interval
    assert low <= steps.noise_of_two_runs((BATCH, at_base), (16 * BATCH, at_large)) <= high
    for batch in (4 * BATCH, 16 * BATCH):
        factor = short.steps_at(batch) / short.steps_at(BATCH) / (expected(batch, target) / at_base)
        assert 1 / 1.2 < factor < 1.2
    # The noise scale of the loss that 2,000 steps reach is six times as large.
    of_whole = next(itertools.islice(losses(BATCH), 1999, None))
    whole = steps.noise_of_two_runs((BATCH, 2000), (16 * BATCH, expected(16 * BATCH, of_whole)))
    low, high = curve.interval
    assert short.noise < curve.noise < high and low <= whole <= high
    assert "; both together: examples^0." in str(found)
    least, named, largest = (BATCH + 0.05 * (BATCH + n) for n in (low, curve.noise, high))
    assert found.largest_batch == int(named)
    kept = f"up to batch {int(named)} (likely {int(least)} to {int(largest)}): "
    assert str(found).startswith(f"the result is kept over the same examples {kept}")
    assert curve.steps_at(BATCH) == pytest.approx(2000)
    assert curve.largest_batch == 8 * 16 * BATCH
    assert {run.seed for run in found.runs} == {0, 1, 2}
    assert 0 < found.cost < 2
    text = str(found)
    assert "short runs to a held-out loss" in text and "fastest to the same loss: batch " in text


@every_frontend
def test_the_noise_scale_is_taken_to_the_whole_run(frontend):
    host, ours = FRONTENDS[frontend]
    how = {"baseline_epochs": 1, "large_batch_size": 64}
    found = search(ours, linear(host), quadratic(4000), **how)
    assert " from an extrapolation to 4,000 examples: " in str(found)
    assert found.answer.curve.steps_at(BATCH) == pytest.approx(250)
    left = f"{math.ceil(4000 / found.largest_batch):,} of 250 updates are left there"
    assert f"up to batch {found.largest_batch:,} (likely " in str(found) and left in str(found)


@every_frontend
def test_a_reading_of_noise_gives_a_table_a_recipe_and_code(frontend):
    host, ours = FRONTENDS[frontend]
    found = search(
        ours, linear(host), noise_scale=500, deadline_hours=0.05, device_counts={1: 0, 4: 0.001}
    )
    assert found.answer.curve.interval == pytest.approx((250, 1000))
    assert found.largest_batch == 41 and "up to batch 41 (likely 29 to 66): " in str(found)
    assert found.batch_size == found.answer.by_deadline.batch > BATCH
    text = str(found)
    assert "largest by the deadline" in text and "network 0 ms on 1, 1 ms on 4" in text
    recipe = found.recipe()
    assert recipe.batch_size == found.batch_size
    calls = found.row.accumulation
    an_epoch = math.ceil(found.examples / (found.batch_size // calls)) / calls
    assert 0 <= recipe.train_steps - found.row.steps < an_epoch  # whole epochs, as `fit` has them
    assert recipe.train_steps == math.floor(found.epochs * an_epoch)
    assert RATE < recipe.learning_rate < RATE * found.batch_size / BATCH
    # Whatever Keras `tf_lamb.find_rate` is of; tf_keras's own optimizers accumulate no gradients.
    searches = (
        f"tf_lamb.{frontend}.find_rate(\n    model, (x, y), {found.batch_size}," in found.script
    )
    assert searches == (frontend == "keras" or calls == 1)
    averaged = linear(host, ours.LAMB(0.01, beta_1=0.8, use_ema=True, ema_momentum=0.999))
    averaged = search(ours, averaged, noise_scale=500).recipe()
    assert averaged.ema_momentum == pytest.approx(0.999 ** (averaged.batch_size / BATCH))
    assert averaged.beta_1 == ours.LAMB.from_recipe(averaged).beta_1 == 0.8
    assert recipe.ema_momentum is None
    late = search(ours, linear(host), noise_scale=500, deadline_hours=1e-6)
    with pytest.raises(ValueError, match="No batch ends within 1e-06 hours"):
        late.batch_size  # noqa: B018


def test_a_run_that_was_given_up_is_printed_as_a_bound():
    host, ours = FRONTENDS["keras"]
    runs = (
        reach.Run(16, 0.1, 0, 160.0, 160), reach.Run(256, 0.4, 0, 16.0, 16),
        reach.Run(256, 0.4, 1, 32.0, 32, is_given_up=True),
    )  # fmt: skip
    found = search(ours, linear(host), noise_scale=500)
    text = str(dataclasses.replace(found, runs=runs, target=1.0))
    assert "  batch 256, learning rate 0.4: 16, >32 steps\n" in text


def test_fit_makes_the_steps_of_the_recipe_where_gradients_accumulate():
    """No epoch ends with an update: the next one goes on with it."""
    host, ours = FRONTENDS["keras"]
    x, y = quadratic(600)
    told = {"noise_scale": 5000, "step_seconds": UP_TO_64, "deadline_hours": 1.0}
    found = search(ours, linear(host), (x, y), baseline_epochs=40, **told)
    calls, recipe = found.row.accumulation, found.recipe()
    assert (found.batch_size, calls, recipe.epochs) == (512, 8, found.epochs)
    by_epochs = recipes.transfer(
        512, BATCH, RATE, examples=600, epochs=found.epochs, baseline_epochs=40, optimizer="SGD",
        noise_scale=found.answer.curve.noise,
    )  # fmt: skip
    assert recipe.learning_rate == pytest.approx(by_epochs.learning_rate)
    own = ours.SGDP(recipe.schedule(ours.schedules), gradient_accumulation_steps=calls)
    model = linear(host, own)
    model.fit(x, y, batch_size=64, epochs=found.epochs, verbose=0)
    assert int(own.iterations) == recipe.train_steps
    assert 0 <= recipe.train_steps - found.row.steps < math.ceil(600 / 512)


def state_of(model):
    optimizer = model.optimizer
    slots = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    return [np.asarray(v).copy() for v in (*model.variables, *slots)]


SLOW = pytest.param(math.inf, None, marks=pytest.mark.slow)


@pytest.mark.parametrize("ticks, stop_after", [SLOW, (math.inf, 0), (30, None), (math.inf, 30)])
@every_frontend
def test_everything_is_as_it_was(frontend, ticks, stop_after, monkeypatch):
    """A model with an optimizer that has moments, averages of batch normalization, and dropout.

    A search that is interrupted while steps are timed, at the first step, and in a short run.
    """
    host, ours = FRONTENDS[frontend]
    layers = host.layers
    host.utils.set_random_seed(0)  # else a search may decide on nothing
    model = host.Sequential([
        layers.Input((WIDTH,)), layers.BatchNormalization(), layers.Dropout(0.1), layers.Dense(1)
    ])  # fmt: skip
    model.compile(host.optimizers.Adam(0.02), "mse")
    data = quadratic(4000)
    model.fit(*(each[:640] for each in data), batch_size=BATCH, verbose=0)
    optimizer, before, done, step = model.optimizer, state_of(model), [], Trials.step
    history, ticked = model.history, []
    monkeypatch.setattr("tf_lamb.find.timing.MIN_EPOCH_SECONDS", 0.1)

    def clock():
        ticked.append(1)
        if len(ticked) > ticks:
            raise KeyboardInterrupt
        return len(ticked)

    monkeypatch.setattr(trials, "clock", clock)

    def stopping(self, rate):
        done.append(rate)
        if len(done) - 1 == stop_after:
            raise KeyboardInterrupt
        return step(self, rate)

    monkeypatch.setattr(Trials, "step", stopping)
    try:
        times = UP_TO_64 if stop_after == 30 else None
        search(ours, model, data, baseline_epochs=1, large_batch_size=64, step_seconds=times)
        assert stop_after is None and len(done) > 30
    except KeyboardInterrupt:
        assert len(ticked) == ticks + 1 or len(done) == stop_after + 1
    assert model.optimizer is optimizer and model.history is history
    for a, b in zip(before, state_of(model), strict=True):
        np.testing.assert_array_equal(a, b)


class Machine:
    """Epochs of `fit` by a law: 10 ms a call, 1 ms an example, 5 ms an update, 20 ms an epoch.

    The first `fit` compiles for 1.5 s.
    """

    def __init__(self, monkeypatch, holds=math.inf, error=MemoryError):
        self.sizes = []

        def epochs(trials, data, count):
            size, begin = data["batch_size"], 0.0 if self.sizes else 1.5
            self.sizes.append(size)
            if size > holds:
                raise error
            steps = math.ceil(len(data["x"]) / size)
            least = 0.020 + steps * (0.010 + 0.001 * size + 0.005 / trials.calls)
            return [begin + least, *[least] * count]

        monkeypatch.setattr(Trials, "time_epochs", epochs)


def measured(ours, model, **how):
    return search(ours, model, step_seconds=None, noise_scale=500, **how)


@pytest.mark.parametrize("name", FRONTENDS)
def test_seconds_are_measured_the_update_for_itself(name, monkeypatch):
    host, ours = FRONTENDS[name]
    Machine(monkeypatch)
    found = measured(ours, linear(host, ours.SGDP(RATE)))
    time = found.answer.machine.step_time
    assert (time.micro_batch_seconds, time.example_seconds, time.update_seconds) == pytest.approx(
        (0.010, 0.001, 0.005)
    )
    epoch = found.answer.machine.epoch
    assert (epoch.start_seconds, epoch.step_compile_seconds, epoch.examples) == pytest.approx(
        (0.020, 1.5, EXAMPLES)
    )
    # Two epochs of 1,000 calls; 16,000 examples are 16 calls of 1,024, of which one is smaller.
    assert found.fit_seconds(16, 2) == pytest.approx(1.5 + 2 * (0.020 + 1000 * 0.031))
    assert found.fit_seconds(1024, 1) == pytest.approx(2 * 1.5 + 0.020 + 16 * 1.039)
    # From 256 to 1,024 an example takes no less time.
    assert found.answer.machine.max_micro_batch == 1024
    assert "beyond, an example takes no less time" in str(found)


def test_no_call_is_larger_than_the_micro_batch(monkeypatch):
    host, ours = FRONTENDS["keras"]
    calls, step = set(), Trials.step
    how = {"step_seconds": {4: 0.014, 12: 0.022}}

    def counting(self, rate):
        calls.add((self.batch_size, self.calls))
        return step(self, rate)

    monkeypatch.setattr(Trials, "step", counting)
    search(ours, linear(host), quadratic(4000), baseline_epochs=1, large_batch_size=64, **how)
    assert calls == {(16, 2), (60, 6)}


FULL = [
    MemoryError(), RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes."),
    ValueError("OOM when allocating tensor with shape[1]"), RuntimeError("CUDA out of memory. Tr"),
]  # fmt: skip


@pytest.mark.parametrize("error", FULL)
def test_a_device_that_is_full_ends_the_list(error, monkeypatch):
    host, ours = FRONTENDS["keras"]
    machine = Machine(monkeypatch, holds=600, error=error)
    found = measured(ours, linear(host))
    assert found.answer.machine.max_micro_batch == 512
    assert "micro-batches up to 512: 1,024 does not fit" in str(found)
    assert max(machine.sizes) == 1024
    Machine(monkeypatch, holds=600, error=RuntimeError("No room at the inn"))
    with pytest.raises(RuntimeError, match="inn"):
        measured(ours, linear(host))


def test_a_device_that_holds_one_size_alone_is_told_of(monkeypatch):
    host, ours = FRONTENDS["keras"]
    Machine(monkeypatch, holds=4)
    with pytest.raises(ValueError, match="this device holds 4 alone.*pass step_seconds="):
        measured(ours, linear(host))


@pytest.mark.parametrize(("noise_scale", "error"), [("500", TypeError), (0, ValueError)])
def test_a_noise_scale_that_is_none_is_named(noise_scale, error):
    host, ours = FRONTENDS["keras"]
    with pytest.raises(error, match=f"noise_scale must be a number .*{noise_scale!r}"):
        search(ours, linear(host), quadratic(8000), noise_scale=noise_scale)


def test_a_noise_scale_may_be_an_array_without_axes():
    host, ours = FRONTENDS["keras"]
    scales = (500, np.asarray(500.0))
    first, second = (search(ours, linear(host), quadratic(8000), noise_scale=s) for s in scales)
    assert first.answer == second.answer


def batches_of(x, y):
    return [(x[i : i + 50], y[i : i + 50]) for i in range(0, len(x), 50)]


# What is refused -> the words of the error, and what is asked on these data.
REFUSED = {
    "a baseline beyond the data": (
        "fewer than a batch of 8,192",
        lambda x, y: {"baseline_batch_size": 8192, "noise_scale": 9},
    ),
    "a short run": (
        "at batch 256 .* a tenth of 100 steps allow 40 at most",
        lambda x, y: {"baseline_epochs": 0.2},
    ),
    "a batch near the baseline": (
        "at batch 20 tell nothing beside 16: 32 is the least", lambda x, y: {"large_batch_size": 20}
    ),
    "seconds of no batch": (
        "step_seconds must map two micro-batches or more to seconds",
        lambda x, y: {"step_seconds": [0.01, 0.02]},
    ),
    "seconds of one batch": (
        "step_seconds must map two micro-batches or more to seconds",
        lambda x, y: {"step_seconds": {32: 0.1}},
    ),
    "no devices": ("device_counts must name a number", lambda x, y: {"device_counts": ()}),
    "0 devices": (
        "device_counts must be a whole number", lambda x, y: {"device_counts": (1, 0)}
    ),
    "seconds below 0": (
        "Seconds of the network in device_counts must be",
        lambda x, y: {"device_counts": {1: 0, 8: -1}},
    ),
    "strings without their seconds": (
        "Steps on strings cannot be timed: pass step_sec",
        lambda x, y: {
            "of": (np.full((8000, WIDTH), "word"), y), "step_seconds": None, "noise_scale": 9
        },
    ),
}  # fmt: skip


@pytest.fixture
def without_a_step(monkeypatch):
    """A search whose model and whose data may be others, and that may take no step."""
    (host, ours), taken = FRONTENDS["keras"], []
    model = linear(host)
    before = state_of(model)
    monkeypatch.setattr(Trials, "step", lambda *_: taken.append(1))
    yield lambda **how: search(ours, **{"model": model, **how})
    assert not taken
    for a, b in zip(before, state_of(model), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_searched_is_refused_before_any_step(case, without_a_step):
    words, asked = REFUSED[case]
    x, y = quadratic(8000)
    with pytest.raises(ValueError, match=words):
        without_a_step(**{"of": (x, y), **asked(x, y)})


def test_a_generator_is_refused_before_any_step(without_a_step):
    x, y = quadratic(8000)
    with pytest.raises(TypeError, match="which can be read once"):
        without_a_step(of=(each for each in batches_of(x, y)))


def test_weights_that_are_no_numbers_are_refused_before_any_step(without_a_step):
    broken = linear(FRONTENDS["keras"][0])
    broken.set_weights([np.full((WIDTH, 1), np.nan)])
    with pytest.raises(ValueError, match="not finite before any step"):
        without_a_step(model=broken, of=quadratic(8000), baseline_epochs=40)


def test_a_baseline_that_learns_nothing_has_no_target():
    host, ours = FRONTENDS["keras"]
    x, y = quadratic()
    with pytest.raises(ValueError, match="learns nothing in 200 steps at batch 16"):
        search(ours, linear(host), (x, np.random.default_rng(5).permutation(y)))


def test_its_example_runs():
    run_example(FRONTENDS["keras"][1].find_batch, least=6)


def test_a_schedule_of_the_rate_or_of_decay_is_no_obstacle():
    host, ours = FRONTENDS["keras"]
    schedule = host.optimizers.schedules.CosineDecay(0.1, 100)
    own = ours.SGDP(schedule, weight_decay=schedule)
    found = search(ours, linear(host, own), noise_scale=500, baseline_learning_rate=RATE)
    assert found.recipe().weight_decay is None
    assert f"baseline_batch_size=16, baseline_learning_rate={RATE})" in found.script
    compile(found.script, "code", "exec")


def test_the_budget_of_the_code_is_enough_for_a_model_with_batch_normalization(monkeypatch):
    host, ours = FRONTENDS["keras"]
    model = host.Sequential([
        host.layers.Input((WIDTH,)), host.layers.BatchNormalization(), host.layers.Dense(1)
    ])  # fmt: skip
    model.compile(host.optimizers.SGD(RATE), "mse")
    found = search(ours, model, step_seconds={16: 0.026, 4096: 0.027}, noise_scale=500)

    def begun(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Trials, "step", begun)
    names = {"tf_lamb": tf_lamb, "model": model, **dict(zip("xy", quadratic(), strict=True))}
    with pytest.raises(KeyboardInterrupt):
        exec(found.script, names)


def test_it_says_what_becomes_of_the_saving_in_whole_epochs():
    """554 updates of 64 are 3 epochs, of 250 each; 16 takes 2 epochs of 1,000 in 26 ms each."""
    host, ours = FRONTENDS["keras"]
    how = {"noise_scale": 425}
    lost = search(ours, linear(host), **how)
    assert (lost.batch_size, lost.epochs) == (64, 3)
    text = str(lost)
    assert (
        "as the script trains: 3, 750 steps, 55.5 s; batch 16 takes 52 s: nothing is saved\n"
        "3 epochs in place of 2: a model may overfit"
    ) in text
    assert text.endswith("searches the rate here for 0.5 of the run at most, 27.8 s")
    fast = {"step_seconds": {16: 0.026, 256: 0.05}}
    saved = search(ours, linear(host), **how, **fast)
    share = 1 - saved.row.step_seconds * saved.recipe().train_steps / 52
    assert f"batch 16 takes 52 s: {share:.0%} is saved" in str(saved) and share > 0.3
    late = search(ours, linear(host), **how, deadline_hours=41.5 / 3600)
    assert "nothing is saved, and the deadline is missed" in str(late)
    stays = search(ours, linear(host), noise_scale=1)
    assert stays.batch_size == 16 and "whole epochs" not in str(stays)


def test_it_says_where_the_rate_cannot_be_searched():
    host, ours = FRONTENDS["keras"]
    idle = {"step_seconds": {16: 0.026, 4096: 0.027}}
    short = search(ours, linear(host), noise_scale=5000, baseline_epochs=1, **idle)
    why = f"find_rate cannot search here: {short.row.steps} steps are too few to search the rate in"
    assert why in str(short)
    assert short.script.endswith(f"{short.row.steps} steps are too few to search the rate in")
    more = search(ours, linear(host), noise_scale=500, **idle)
    assert f"for {more._search_budget:g} of the run" in str(more) and more._search_budget > 0.5
    assert f"budget={more._search_budget}," in more.script


@on_tensorflow
def test_an_optimizer_that_accumulates_nothing_is_not_told_to():
    host, ours = FRONTENDS["tf_keras"]
    how = {"noise_scale": 500, "step_seconds": UP_TO_64, "deadline_hours": 1.0}
    found = search(ours, linear(host), **how)
    assert found.row.accumulation > 1 and found.row.steps >= 32
    assert "SGD accumulates no gradients for the" in str(found)
    assert found.script.startswith("print(found.recipe())  # SGD accumulates no gradients")


def test_where_noise_is_all_no_bend_is_seen():
    runs = [(16, 1600), (256, 99)]
    host, ours = FRONTENDS["keras"]
    found = search(ours, linear(host), noise_scale=runs)
    assert "no bend seen up to 256" in str(found)
    low = found.answer.curve.largest_keeping_batch(BATCH)[1]
    assert found.largest_batch == max(int(low), recipes.largest_batch(found.examples, 2))
    named = found.largest_batch
    assert f"  the runs tell no upper end: {named} is the least that is likely" in str(found)
    longer = search(ours, linear(host), noise_scale=runs, baseline_epochs=20)
    named = longer.largest_batch
    assert f"  the runs tell no upper end: {named} has at least 2,048 updates left" in str(longer)
    assert found.answer.curve.steps_at(BATCH) == pytest.approx(2000)
    flat = search(ours, linear(host), noise_scale=[(16, 100), (256, 100)])
    assert "no steps are saved beyond batch 16" in str(flat)
    assert flat.batch_size == flat.largest_batch == BATCH
    assert flat.script == "# keep your run: 16 is the batch that you have tuned"
    assert found.runs == () and found.cost == 0


def test_it_is_drawn_and_a_notebook_shows_the_table_and_the_plot():
    host, ours = FRONTENDS["keras"]
    pytest.importorskip("matplotlib")
    found = search(ours, linear(host), noise_scale=500, device_counts=(1, 4), deadline_hours=0.05)
    ax = found.plot()
    labels = {"devices: 1", "devices: 4", "fastest", "cheapest", "deadline"}
    assert labels <= {line.get_label() for line in ax.lines}
    (fastest,) = (line for line in ax.lines if line.get_label() == "fastest")
    row = found.answer.fastest
    assert [*fastest.get_xdata()] == [row.batch] and [*fastest.get_ydata()] == [row.hours]
    assert_shown(found)
