"""`find_batch`: what it answers, what it leaves as it was, and what it refuses."""

import math

import numpy as np
import pytest
from support.examples import run_example
from support.frontends import FRONTENDS, every_frontend

from tf_lamb.api.find import trials
from tf_lamb.api.find.trials import Trials
from tf_lamb.core import recipes
from tf_lamb.core.goodput import steps

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


def expected(batch, target):
    """The fewest expected steps of SGD to a mean square of the error of the prediction.

    With v_i the expected square of the error of weight i, and Gaussian inputs.
    """

    def steps_of(rate):
        h, v = CURVATURES, np.ones(WIDTH)
        for step in range(1, 1000):
            noise = h**2 * v + h * (h @ v) + VARIANCE * h
            v = v * (1 - 2 * rate * h) ** 2 + 4 * rate**2 / batch * noise
            if h @ v <= target:
                return step
        return math.inf

    return min(steps_of(0.6 / 1.1**k) for k in range(40))


def test_the_steps_of_a_noisy_quadratic_are_those_of_its_closed_form():
    host, ours = FRONTENDS["keras"]
    found = search(ours, linear(host), validation_data=quadratic(8192, seed=1))
    (x, y), curve = quadratic(8192, seed=1), found.answer.steps
    target = found.target - np.mean((y - x @ LEAST) ** 2)
    at_base, at_large = (expected(batch, target) for batch in (BATCH, 16 * BATCH))
    low, high = curve.interval
    assert low <= steps.two_runs((BATCH, at_base), (16 * BATCH, at_large)) <= high
    for batch in (4 * BATCH, 16 * BATCH):
        factor = curve.at(batch) / curve.at(BATCH) / (expected(batch, target) / at_base)
        assert 1 / 1.2 < factor < 1.2
    assert curve.at(BATCH) == pytest.approx(2000)
    assert curve.largest == 8 * 16 * BATCH
    assert {run.seed for run in found.runs} == {0, 1, 2}
    assert 0 < found.cost < 2
    text = str(found)
    assert "short runs to a held-out loss" in text and "take " in text


@every_frontend
def test_a_reading_of_noise_gives_a_table_a_recipe_and_code(frontend):
    host, ours = FRONTENDS[frontend]
    found = search(ours, linear(host), noise_scale=500, deadline_hours=0.05)
    assert found.answer.steps.interval == pytest.approx((250, 1000))
    assert found.batch_size == found.answer.by_deadline.batch > BATCH
    assert "largest by the deadline" in str(found)
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
        noise_scale=found.answer.steps.noise,
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
    monkeypatch.setattr("tf_lamb.api.find.batch.LASTS", 0.0)

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
    """Epochs of `fit` by a law: 10 ms a call, 1 ms an example, 5 ms an update; one is quicker."""

    def __init__(self, monkeypatch, holds=math.inf, error=MemoryError):
        self.sizes = []

        def epochs(trials, batch, steps, count):
            size = len(batch[0])
            self.sizes.append(size)
            if size > holds:
                raise error
            assert steps % trials.calls == 0
            least = steps * (0.010 + 0.001 * size + 0.005 / trials.calls)
            return [*[2 * least] * (count - 1), least]

        monkeypatch.setattr(Trials, "epochs", epochs)


def measured(ours, model, **how):
    return search(ours, model, step_seconds=None, noise_scale=500, **how)


@pytest.mark.parametrize("name", FRONTENDS)
def test_seconds_are_measured_the_update_for_itself(name, monkeypatch):
    host, ours = FRONTENDS[name]
    Machine(monkeypatch)
    found = measured(ours, linear(host, ours.SGDP(RATE)))
    time = found.answer.machine.time
    assert (time.micro_batch, time.example, time.update) == pytest.approx((0.010, 0.001, 0.005))
    # From 256 to 1,024 an example takes no less time.
    assert found.answer.machine.micro_batch == 1024
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
    assert found.answer.machine.micro_batch == 512
    assert "micro-batches up to 512: 1,024 does not fit" in str(found)
    assert max(machine.sizes) == 1024
    Machine(monkeypatch, holds=600, error=RuntimeError("No room at the inn"))
    with pytest.raises(RuntimeError, match="inn"):
        measured(ours, linear(host))


def test_what_cannot_be_searched_is_refused_before_any_step(monkeypatch):
    host, ours = FRONTENDS["keras"]
    x, y = quadratic(8000)
    model = linear(host)
    before = state_of(model)
    taken = []
    monkeypatch.setattr(Trials, "step", lambda *_: taken.append(1))

    def refuses(match, *, error=ValueError, model=model, data=(x, y), **how):
        with pytest.raises(error, match=match):
            search(ours, model, data, **how)

    batches = [(x[i : i + 50], y[i : i + 50]) for i in range(0, 8000, 50)]
    refuses("which can be read once", error=TypeError, data=(each for each in batches))
    refuses("fewer than a batch of 8,192", baseline_batch_size=8192, noise_scale=9)
    refuses("at batch 256 .* a tenth of 100 steps allow 40 at most", baseline_epochs=0.2)
    refuses("at batch 20 tell nothing beside 16: 32 is the least", large_batch_size=20)
    for given in ([0.01, 0.02], {32: 0.1}):
        refuses("step_seconds must map two micro-batches or more to seconds", step_seconds=given)
    broken = linear(host)
    broken.set_weights([np.full((WIDTH, 1), np.nan)])
    refuses("not finite before any step", model=broken, baseline_epochs=40)
    assert not taken
    for a, b in zip(before, state_of(model), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_baseline_that_learns_nothing_has_no_target():
    host, ours = FRONTENDS["keras"]
    x, y = quadratic()
    with pytest.raises(ValueError, match="learns nothing in 200 steps at batch 16"):
        search(ours, linear(host), (x, np.random.default_rng(5).permutation(y)))


def test_its_example_runs():
    run_example(FRONTENDS["keras"][1].find_batch, least=6)
