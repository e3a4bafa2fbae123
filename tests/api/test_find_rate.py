"""`find_rate`: what it answers, what it leaves as it was, and what it refuses."""

import contextlib
import itertools
import math
import random
import sys

import keras
import numpy as np
import pytest
from support.examples import run_example
from support.frontends import FRONTENDS, every_frontend, on_jax, on_tensorflow
from support.notebooks import assert_shown
from support.own_steps import stepping

from tf_lamb.find.checks import copy_optimizer
from tf_lamb.find.data import Examples
from tf_lamb.find.feeds import make_feed
from tf_lamb.find.trials import Trials

EXAMPLES, WIDTH, BATCH = 1600, 8, 32


def data(noise=0.5):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, WIDTH)).astype("float32")
    y = x @ rng.normal(size=(WIDTH, 1)) + noise * rng.normal(size=(EXAMPLES, 1))
    return x, y.astype("float32")


def model_of(host, optimizer="sgd", **compiled):
    layers = host.layers
    host.utils.set_random_seed(1)

    class Counted(layers.Layer):
        """Counts its calls, in evaluation, too."""

        def build(self, shape):
            self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

        def call(self, x):
            self.calls.assign_add(1.0)
            return x

    model = host.Sequential([
        layers.Input((WIDTH,)), layers.Dense(4), layers.BatchNormalization(), Counted(),
        layers.Dropout(0.1, seed=2), layers.Dense(1),
    ])  # fmt: skip
    model.compile(optimizer, "mse", metrics=["mae"], **compiled)
    return model


def linear(host, optimizer="sgd", **compiled):
    model = host.Sequential([host.layers.Input((WIDTH,)), host.layers.Dense(1)])
    model.set_weights([np.zeros((WIDTH, 1)), np.zeros(1)])
    model.compile(optimizer, "mse", **compiled)
    return model


def state_of(model):
    optimizer = model.optimizer
    slots = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    return [np.asarray(v).copy() for v in (*model.variables, *slots)]


def search(ours, model, of=None, batch_size=BATCH, *, epochs=16, **how):
    return ours.find_rate(
        model, data() if of is None else of, batch_size, epochs=epochs, verbose=False, **how
    )


def assert_equal(before, after):
    assert len(before) == len(after)
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture
def stopped(monkeypatch):
    """Interrupts after so many updates."""

    def stop_after(updates):
        step, done = Trials.step, []

        def stopping(self, rate):
            done.append(rate)
            if len(done) > updates:
                raise KeyboardInterrupt
            return step(self, rate)

        monkeypatch.setattr(Trials, "step", stopping)

    return stop_after


@every_frontend
def test_the_rate_of_a_quadratic_is_near_the_best_of_a_fine_grid(frontend):
    """Of full runs of plain SGD, in NumPy, on the same data."""
    host, ours = FRONTENDS[frontend]
    found = search(ours, linear(host, host.optimizers.SGD(0.02)))
    (x, y), steps = data(), found.train_steps

    def loss(rate):
        w, rng = np.zeros((WIDTH, 1)), np.random.default_rng(1)
        for step in range(steps):
            rows = rng.integers(0, EXAMPLES, BATCH)
            warm = min(
                (step + 1) / found.warmup_steps, (steps - step) / (steps - found.warmup_steps)
            )
            w -= rate * warm * 2 / BATCH * x[rows].T @ (x[rows] @ w - y[rows])
        return float(np.mean((x @ w - y) ** 2))

    grid = [0.001 * 2.0**i for i in range(9)]
    assert loss(found.learning_rate) < 1.02 * min(map(loss, grid))
    assert found.interval[0] <= found.learning_rate * 1.01
    assert found.cost <= 0.5
    assert "learning rate" in str(found) and "best" in str(found)


@pytest.mark.parametrize("updates", [0, 60, math.inf])
@every_frontend
def test_everything_is_as_it_was(frontend, updates, stopped):
    """After an interruption, and after a search."""
    host, ours = FRONTENDS[frontend]
    model = model_of(host, host.optimizers.Adam(1e-3))
    model.fit(*data(), batch_size=BATCH, verbose=0)
    optimizer, before = model.optimizer, state_of(model)
    random.seed(3)
    np.random.seed(4)
    stopped(updates)
    is_stopped = pytest.raises(KeyboardInterrupt)
    with is_stopped if updates < math.inf else contextlib.nullcontext():
        search(ours, model, optimizers=["LAMB"], budget=0.4)
    assert model.optimizer is optimizer
    assert_equal(before, state_of(model))
    assert random.random() == random.Random(3).random()
    assert np.random.random() == np.random.RandomState(4).random()
    model.fit(*data(), batch_size=BATCH, verbose=0)
    after = state_of(model)
    assert any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True))


@on_jax
def test_an_interruption_within_a_step_leaves_nothing_for_the_next_fit(monkeypatch):
    """On JAX Keras holds what a step works on, and would put it into the variables later."""
    host, ours = FRONTENDS["keras"]
    model, calls = model_of(host, host.optimizers.Adam(1e-3)), []
    model.fit(*data(), batch_size=BATCH, verbose=0)
    before, make = state_of(model), type(model).make_train_function

    def made(self, force=False):
        make(self, force)
        step = self.train_function

        def stopping(*args):
            calls.append(args)
            if len(calls) >= 30:
                raise KeyboardInterrupt
            return step(*args)

        self.train_function = stopping

    monkeypatch.setattr(type(model), "make_train_function", made)
    with pytest.raises(KeyboardInterrupt):
        search(ours, model)
    monkeypatch.undo()
    seen = []

    class Look(host.callbacks.Callback):
        def on_train_begin(self, logs=None):
            seen.extend(state_of(self.model))

    model.fit(*data(), batch_size=BATCH, verbose=0, callbacks=[Look()])
    assert_equal(before, seen)


@every_frontend
def test_a_loss_that_is_scaled_stays_scaled(frontend):
    host, ours = FRONTENDS[frontend]
    scaling = getattr(host.optimizers, "LossScaleOptimizer", None)
    scaling = scaling or host.mixed_precision.LossScaleOptimizer
    model = linear(host, scaling(ours.LAMB(0.01), initial_scale=64.0))
    made = search(ours, model).optimizer()
    assert type(made) is type(model.optimizer) and made.get_config()["initial_scale"] == 64
    assert type(made.inner_optimizer) is ours.LAMB
    assert type(search(ours, linear(host)).optimizer()) is type(host.optimizers.SGD())


@pytest.mark.parametrize("arguments", [{"on_spike": "skip"}, {}])
def test_a_run_that_is_lost_ends_no_search(arguments):
    host, ours = FRONTENDS["keras"]
    optimizer = ours.LAMB(0.01, on_nonfinite="raise", **arguments)
    assert search(ours, linear(host, optimizer)).rate > 0
    far = ours.SGDP(1e20, on_nonfinite="raise")
    with pytest.raises(ValueError, match="Every short run was lost"):
        search(ours, linear(host, far), budget=0.3)


@every_frontend
def test_the_answer_is_an_optimizer_and_a_recipe(frontend):
    host, ours = FRONTENDS[frontend]
    own = ours.LAMB(0.02, weight_decay=0.1, beta_1=0.8, exclude_from_weight_decay=["bias"])
    found = search(ours, linear(host), optimizers=[own])
    recipe = found.recipe()
    assert recipe.learning_rate == found.learning_rate
    assert recipe.train_steps == found.train_steps == 16 * math.ceil(found.examples / BATCH)
    optimizer = found.optimizer()
    assert type(optimizer) is ours.LAMB and optimizer.get_config()["weight_decay"] == 0.1
    configs = [each.get_config() for each in (optimizer, ours.LAMB.from_recipe(recipe), own)]
    assert len({str({**config, "learning_rate": 0, "name": 0}) for config in configs}) == 1
    model = linear(host, optimizer)
    model.fit(*data(), batch_size=BATCH, verbose=0)
    assert "found.optimizer()" in found.script


@every_frontend
@pytest.mark.parametrize("told", ["var_names", "var_list"])
def test_what_keras_was_told_to_exclude_from_decay_stays_excluded(frontend, told):
    host, _ = FRONTENDS[frontend]
    model = linear(host, host.optimizers.AdamW(0.01, weight_decay=0.1))
    weights = model.trainable_variables
    excluded = {"var_names": ["bias"], "var_list": [weights[1]]}[told]
    model.optimizer.exclude_from_weight_decay(**{told: excluded})
    made = copy_optimizer(model.optimizer, 1)
    assert [made._use_weight_decay(weight) for weight in weights] == [True, False]


def test_the_baseline_is_a_candidate_and_is_kept_where_it_is_as_good():
    host, ours = FRONTENDS["keras"]
    base = host.optimizers.SGD(0.075)
    found = search(ours, linear(host, base), baseline_batch_size=8)
    assert found.baseline == pytest.approx(0.15)
    assert any(trial.rate == found.baseline for trial in found.trials)
    assert found.learning_rate == found.baseline
    others = search(ours, linear(host, base), optimizers=["Adam"], baseline_batch_size=8)
    assert {trial.optimizer for trial in others.trials} == {"Adam", "SGD"} == set(others.answers)
    lines = str(others).splitlines()
    (taken,) = (line for line in lines if "  taken: " in line)
    assert others.why_optimizer in taken and f"{others.rate:.3g}" in taken
    for name, answer in others.answers.items():
        assert any(line.split()[:2] == [name, f"{answer.rate:.3g}"] for line in lines)


def test_accumulated_parts_are_the_batch():
    """The same rates are tried, and the losses are those of the whole batch, in no other parts."""
    host, ours = FRONTENDS["keras"]
    own = ours.LAMB(0.02, gradient_accumulation_steps={0: 1, 9: 2})
    how = {"optimizers": [own], "budget": 0.3}
    whole = search(ours, linear(host), **how)
    parts = search(ours, linear(host), micro_batch_size=8, **how)
    for a, b in zip(whole.trials, parts.trials, strict=False):
        assert a.rate == pytest.approx(b.rate)
        np.testing.assert_allclose(a.losses, b.losses, rtol=1e-3)


def targets(of):
    return of if isinstance(of, tuple) else (of, of)


@pytest.mark.parametrize("kind", ["arrays", "a PyDataset"])
@every_frontend
def test_steps_of_the_models_own_get_what_fit_gives_them(frontend, kind):
    """(x, y), or x alone; the losses are those of Keras's steps on the same targets."""
    host, ours = FRONTENDS[frontend]
    x, y = data()

    class Batches(getattr(host.utils, "PyDataset", None) or host.utils.Sequence):
        def __len__(self):
            return EXAMPLES // 50

        def __getitem__(self, i):
            return x[50 * i : 50 * i + 50]

    def of_tuples(of):
        (of,) = of if isinstance(of, tuple) else (of,)
        return of, of

    given, same, take, width = {
        "arrays": ((x, y), (x, y), targets, 1),
        "a PyDataset": (Batches(), batched(x), of_tuples, WIDTH),
    }[kind]
    losses = []
    for of, steps in ((given, take), (same, None)):
        model, read = stepping(host, steps, width), Examples(of)
        with Trials(model, read, BATCH) as trials:
            # On JAX a second `fit` would donate a weight and its average, one buffer, twice.
            trials.use_optimizer("SGD", lambda: host.optimizers.SGD(1.0, use_ema=True))
            trials.start_run()
            losses.append([trials.step(0.1), trials.step(0.1), *trials.evaluate()])
            for _ in range(2):
                feed = make_feed(read.source, read.examples, host)
                for how in (feed.fit_arguments(BATCH, 2), feed.repeated_batch_arguments(BATCH, 2)):
                    assert len(trials.time_epochs(how, 1)) == 2
        assert "train_step" not in vars(model) and model.test_function is None
        assert read.data_code.data == ("(x, y)" if kind == "arrays" else "data")
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.parametrize("loss", [None, "mse"])
@every_frontend
def test_a_model_without_a_test_step_is_told_to_have_one(frontend, loss, monkeypatch):
    """Its losses are 0 in Keras's evaluate: they would tell no rate from another."""
    host, ours = FRONTENDS[frontend]
    monkeypatch.setattr(Trials, "step", lambda *_: pytest.fail("a step was made"))
    model = stepping(host, targets, evaluates=False, loss=loss)
    with pytest.raises(ValueError, match="no test_step, .* give the model a test_step"):
        search(ours, model)
    with pytest.raises(ValueError, match="no test_step, .* give the model a test_step"):
        ours.find_batch(
            model, data(), baseline_batch_size=16, baseline_epochs=8, large_batch_size=64,
            step_seconds={16: 0.1, 64: 0.1}, verbose=False,
        )  # fmt: skip


def test_losses_that_no_training_moves_decide_nothing(monkeypatch):
    """As those of a test_step that leaves out the weights; here they are planted."""
    host, ours = FRONTENDS["keras"]
    monkeypatch.setattr(Trials, "step", lambda *_: 1.0)
    monkeypatch.setattr(Trials, "evaluate", lambda _: (0.5,) * 16)
    with pytest.raises(ValueError, match="short runs end at the same losses, .* a test_step that"):
        search(ours, linear(host), baseline_batch_size=BATCH)
    with pytest.raises(ValueError, match="ends at the losses that it begins with, .* a test_step"):
        ours.find_batch(
            linear(host), data(), baseline_batch_size=16, baseline_epochs=8, large_batch_size=64,
            step_seconds={16: 0.1, 64: 0.1}, verbose=False,
        )  # fmt: skip


@on_jax
def test_devices_that_share_a_call_divide_it(stopped):
    host, ours = FRONTENDS["keras"]
    distribution = host.distribution
    x, y = (np.concatenate([each, each])[:2090] for each in data())
    read = Examples((x, y))
    assert len(read.blocks[0][0]) == 13
    distribution.set_distribution(
        distribution.DataParallel(devices=distribution.list_devices()[:2])
    )
    try:
        model = linear(host)
        stopped(0)
        with pytest.raises(KeyboardInterrupt):  # at the first step
            search(ours, model, (x, y))
        with Trials(model, Examples((x, y), devices=2), BATCH) as trials:
            blocks = trials.data.blocks
            assert {len(each) for each, _ in blocks} == {12}
            wanted = [float(np.mean(each**2)) for _, each in blocks]  # weights are 0
            np.testing.assert_allclose(trials.evaluate(), wanted, rtol=1e-5)
        with pytest.raises(ValueError, match="A call has 33 examples, which 2 devices cannot"):
            search(ours, model, (x, y), batch_size=33)
        told = {"baseline_batch_size": 16, "baseline_epochs": 8, "large_batch_size": 64}
        with pytest.raises(ValueError, match="among 2 devices, .*: pass step_seconds="):
            ours.find_batch(model, (x, y), **told)
    finally:
        distribution.set_distribution(None)


@pytest.mark.parametrize("optimizer", ["SGD", "SGDP"])
def test_the_code_trains_to_the_end_of_the_schedule_in_micro_batches(optimizer):
    """A schedule counts micro-batches in Keras's optimizers, and updates in ours.

    An epoch has 25 micro-batches, and an update goes on into the next one.
    """
    host, ours = FRONTENDS["keras"]
    model, (x, y) = linear(host), data()
    found = search(
        ours, model, None, 128, optimizers=[optimizer], micro_batch_size=64, epochs=8, budget=1.7
    )  # fmt: skip
    exec(found.script, {"model": model, "found": found, "x": x, "y": y})
    assert int(model.optimizer.iterations) == found.train_steps == 100
    assert 0 <= float(model.optimizer.learning_rate) < 0.02 * found.learning_rate
    assert model.evaluate(x, y, verbose=0) < 1


def batched(both=None):
    x, y = data() if both is None else (both, both)
    return [(x[i : i + 50], y[i : i + 50]) for i in range(0, EXAMPLES, 50)]


class Once:
    """Gives its batches once, as a dataset does that is made from one generator."""

    def __init__(self, batches):
        self._left = iter(batches)

    def __iter__(self):
        return (batch for batch in self._left)


def test_data_comes_as_arrays_batches_or_a_dataset():
    host, ours = FRONTENDS["keras"]
    found = search(ours, linear(host), batched())
    assert found.examples == EXAMPLES
    held_out = tuple(each[:320] for each in data())
    other = search(ours, linear(host), batched(), validation_data=held_out)
    assert (found.train_steps, other.train_steps) == (800, 800)

    class Dataset(host.utils.PyDataset):
        def __len__(self):
            return len(batched())

        def __getitem__(self, index):
            return batched()[index]

    same = search(ours, linear(host), Dataset(), validation_data=held_out)
    assert same.trials == other.trials


class Endless:
    """Batches again and again, as `tf.data.Dataset.repeat` gives them."""

    def __init__(self, batches):
        self._batches = batches

    def __iter__(self):
        return itertools.cycle(self._batches)


@pytest.mark.parametrize("held_out", [None, data(noise=0.4)], ids=["of the data", "apart"])
def test_endless_data_do_not_bring_what_is_held_out(held_out):
    x, y = np.arange(EXAMPLES)[:, None], np.zeros(EXAMPLES)
    batches = [(x[i : i + 50], y[i : i + 50]) for i in range(0, EXAMPLES, 50)]
    read = Examples(Endless(batches), held_out, examples=EXAMPLES - 100)
    first = 0 if held_out else (EXAMPLES - 100) // 10
    passes = read.batches(BATCH, 0)
    seen = np.concatenate([next(passes)[0].ravel() for _ in range(4 * EXAMPLES // BATCH)])
    assert set(seen) == set(range(first, EXAMPLES - 100))
    with pytest.raises(ValueError, match=f"has {EXAMPLES:,} examples, and not 99,999: pass ex"):
        for _ in zip(
            range(EXAMPLES), Examples(batches, data(), 99999).batches(50, 0), strict=False
        ):
            pass


@every_frontend
def test_what_is_shuffled_anew_is_not_held_out_of_itself(frontend, monkeypatch):
    """It would be trained on. Nothing is, and held-out examples of its own are the way out."""
    host, ours = FRONTENDS[frontend]
    tf = pytest.importorskip("tensorflow")
    model = linear(host)
    shuffled = tf.data.Dataset.from_tensor_slices(data()).shuffle(EXAMPLES).batch(50)
    monkeypatch.setattr(model, "train_on_batch", lambda *_, **__: pytest.fail("a step was made"))
    with pytest.raises(ValueError, match="first 160 cannot be held out: pass validation_data="):
        search(ours, model, shuffled)
    read = Examples(shuffled, validation_data=data())
    passes = read.batches(EXAMPLES, 0)
    assert not np.array_equal(next(passes)[0], next(passes)[0])


def with_a_second_optimizer(host):
    model = linear(host)
    model.second = host.optimizers.Adam()
    return model


def without_a_number(host):
    model = linear(host)
    model.set_weights([np.full((WIDTH, 1), np.nan), np.zeros(1)])
    return model


# What is refused -> the error, its words, and what is asked: of another model, or on other data.
REFUSED = {
    "a generator": (
        TypeError, "a generator, which can be read once",
        lambda host, ours: {"of": (batch for batch in batched())},
    ),
    "less than a batch": (
        ValueError, "54 examples to train on are fewer than batch_size=64",
        lambda host, ours: {
            "of": tuple(each[:54] for each in data()), "batch_size": 64, "validation_data": data()
        },
    ),
    "not compiled": (
        ValueError, "is not compiled",
        lambda host, ours: {
            "model": host.Sequential([host.layers.Input((WIDTH,)), host.layers.Dense(1)])
        },
    ),
    "no model": (
        TypeError, "is neither of Keras nor of tf_keras", lambda host, ours: {"model": object()},
    ),
    "a small budget": (
        ValueError, r"budget=0.5 is too small for a run of 100 steps.*budget=1.68",
        lambda host, ours: {"epochs": 2},
    ),
    "no optimizer": (
        ValueError, "names 'Lamm', which is neither", lambda host, ours: {"optimizers": ["Lamm"]},
    ),
    "a layer for an optimizer": (
        TypeError, "is no optimizer: take the name",
        lambda host, ours: {"optimizers": [host.layers.Dense(2)]},
    ),
    "a second optimizer": (
        ValueError, "has an optimizer of its own, second, beside that of",
        lambda host, ours: {"model": with_a_second_optimizer(host)},
    ),
    "micro-batches that do not divide": (
        ValueError, "micro_batch_size=7 does not divide",
        lambda host, ours: {"micro_batch_size": 7},
    ),
    "several steps of an execution": (
        ValueError, "steps_per_execution=4",
        lambda host, ours: {"model": linear(host, steps_per_execution=4)},
    ),
    "a schedule": (
        ValueError, "has a schedule: pass its peak",
        lambda host, ours: {
            "model": linear(
                host, host.optimizers.SGD(host.optimizers.schedules.CosineDecay(0.1, 10))
            )
        },
    ),
    "AdaScale": (
        ValueError, "AdaScale sets rates itself",
        lambda host, ours: {
            "model": linear(
                host,
                ours.AdaScale(host.optimizers.SGD(0.1, gradient_accumulation_steps=2), scale=2),
            )
        },
    ),
    "a short run": (
        ValueError, "A run of 13 steps is too short", lambda host, ours: {"epochs": 0.25},
    ),
    "warmup alone": (
        ValueError, r"warmup must be a number in \[0, 1\)", lambda host, ours: {"warmup": 1},
    ),
    "another decay": (
        ValueError, "decay must be 'polynomial' or 'constant'",
        lambda host, ours: {"decay": "multi_step"},
    ),
    "one optimizer twice": (
        ValueError, "LAMB would be tried with two settings",
        lambda host, ours: {"optimizers": [ours.LAMB(beta_2=0.99), ours.LAMB(beta_2=0.9)]},
    ),
    "no batch": (ValueError, "data holds no batch", lambda host, ours: {"of": []}),
    "examples": (
        ValueError, "holds arrays of 1 and 8 rows, .* call batch",
        lambda host, ours: {"of": list(zip(*data(), strict=True))},
    ),
    "lists of numbers": (
        TypeError, "data holds lists of numbers",
        lambda host, ours: {"of": tuple(each.tolist() for each in data())},
    ),
    "a list of arrays": (
        TypeError, r"of arrays: write data=\(x, y\)", lambda host, ours: {"of": [*data()]},
    ),
    "no targets": (
        ValueError, r"as its loss needs targets: pass data=\(x, y\)",
        lambda host, ours: {"of": data()[0]},
    ),
    "fewer examples than were told": (
        ValueError, "data has 1,600 examples, fewer than a tenth of exam",
        lambda host, ours: {"of": batched(), "examples": 20000, "budget": 0.02},
    ),
    "data that can be read once": (
        ValueError, "pass examples=300, or data that can be read again",
        lambda host, ours: {
            "of": Once(batched()), "examples": 1600, "validation_data": data()
        },
    ),
    "weights that are no numbers": (
        ValueError, "not finite before any step",
        lambda host, ours: {"model": without_a_number(host)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_searched_is_refused_before_any_step(case):
    host, ours = FRONTENDS["keras"]
    error, words, asked = REFUSED[case]
    model = linear(host)
    before = state_of(model)
    with pytest.raises(error, match=words):
        search(ours, **{"model": model, **asked(host, ours)})
    assert_equal(before, state_of(model))


def test_an_array_in_the_place_of_the_batch_size_is_refused():
    host, ours = FRONTENDS["keras"]
    (x, y), model = data(), linear(host)
    before = state_of(model)
    with pytest.raises(TypeError, match=r"is an array: pass .*, find_rate\(model, \(x, y\), batch"):
        ours.find_rate(model, x, y, 64, epochs=16)
    assert_equal(before, state_of(model))


@on_tensorflow
def test_micro_batches_without_accumulation_are_refused():
    host, ours = FRONTENDS["tf_keras"]
    with pytest.raises(ValueError, match="Adam of tf_keras does not accumulate gradients"):
        search(ours, linear(host, "adam"), micro_batch_size=8)


@on_tensorflow
def test_a_legacy_optimizer_is_refused():
    host, ours = FRONTENDS["tf_keras"]
    legacy = host.optimizers.legacy.Adam(0.01)
    with pytest.raises(ValueError, match="Adam is one of the legacy optimizers"):
        search(ours, linear(host, legacy))


@pytest.mark.parametrize(("warmup", "part"), [(0.05, 0.2), (0.5, 0.5)])
def test_the_warmup_is_that_of_the_run_and_of_the_short_ones(warmup, part, monkeypatch):
    """Which have a fifth at least; the rate of the first step tells."""
    host, ours = FRONTENDS["keras"]
    firsts, begun = [], []
    step, start = Trials.step, Trials.start_run
    monkeypatch.setattr(Trials, "start_run", lambda self, *of: (begun.append(1), start(self, *of)))

    def stepping_at(self, rate):
        if begun:
            firsts.append(rate)
            begun.clear()
        return step(self, rate)

    monkeypatch.setattr(Trials, "step", stepping_at)
    found = search(ours, linear(host), warmup=warmup)
    assert found.warmup_steps == found.recipe().warmup_steps == round(warmup * 800)
    wanted = [trial.peak_rate / round(part * trial.steps) for trial in found.trials]
    assert firsts == pytest.approx(wanted)


def test_its_example_runs():
    run_example(FRONTENDS["keras"][1].find_rate, least=6)


def test_it_is_drawn_and_a_notebook_shows_it(monkeypatch):
    host, ours = FRONTENDS["keras"]
    pytest.importorskip("matplotlib")
    found = search(ours, linear(host), optimizers=["SGD", "Adam"])
    labels = [line.get_label() for line in found.plot().lines]
    assert any("Adam" in label for label in labels)
    assert any("found" in label for label in labels)
    assert_shown(found)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert found._repr_html_().endswith("</pre>")


def test_it_tells_the_cost_and_each_short_run(capsys):
    host, ours = FRONTENDS["keras"]
    found = ours.find_rate(linear(host), data(), BATCH, epochs=16)
    cost, *runs = capsys.readouterr().out.strip().splitlines()
    assert cost.startswith("find_rate: runs of") and len(runs) == len(found.trials)
    assert runs[0].startswith(f"SGD, {found.trials[0].steps} steps at ")


def test_a_model_without_a_loss_in_its_logs_is_refused():
    class Silent(keras.Sequential):
        def test_step(self, *given):
            logs = super().test_step(*given)
            return {"accuracy": 1.0} if isinstance(logs, dict) else ({"accuracy": 1.0}, logs[1])

    model = Silent([keras.layers.Input((WIDTH,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="gives accuracy, and no 'loss'"):
        search(FRONTENDS["keras"][1], model)


def test_an_optimizer_that_keeps_weights_is_judged_by_its_own():
    """As a schedule-free one does: it moves them at a rate of 0, too."""
    layers = keras.layers

    class Keeping(keras.optimizers.SGD):
        def build(self, variables):
            super().build(variables)
            self.first = [self.add_variable_from_reference(v, "first") for v in variables]
            for first, variable in zip(self.first, variables, strict=True):
                first.assign(variable)

        def update_step(self, gradient, variable, learning_rate):
            first = self.first[self._get_variable_index(variable)]
            self.assign(variable, first - learning_rate * gradient)

    model = keras.Sequential([layers.Input((WIDTH,)), layers.BatchNormalization(), layers.Dense(1)])
    model.compile("sgd", "mse")
    with Trials(model, Examples(data()), BATCH) as trials:
        trials.use_optimizer("Keeping", lambda: Keeping(1.0))
        trials.start_run()
        trials.step(0.1)
        weights = [np.array(w) for w in model.trainable_variables]
        trials.evaluate()
        assert_equal(weights, [np.array(w) for w in model.trainable_variables])
