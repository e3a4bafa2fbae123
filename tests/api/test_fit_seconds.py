"""The seconds that `find_batch` promises are those that `fit` takes; by a clock of its own."""

import contextlib
import dataclasses
import itertools
import math

import numpy as np
import pytest
from api.test_find_batch import BASELINE, BATCH, linear, quadratic
from support.frontends import FRONTENDS, every_frontend, uncompiled

from tf_lamb.find import search_log, timing, trials
from tf_lamb.find.data import Examples
from tf_lamb.find.feeds import make_feed

COMPILED, START, STEP, ROW = 1.5, 0.040, 0.002, 0.001
BEGUN, EVALUATED = 0.020, 0.003  # of an evaluation; of each of its steps


class Virtual:
    """A clock that moves by what `fit` does, and by the examples that a pipeline makes."""

    def __init__(self, model, monkeypatch):
        self.now, self.executions, self.model = 0.0, set(), model
        for module in (trials, search_log):
            monkeypatch.setattr(module, "clock", lambda: self.now)
        self._seen = set()
        monkeypatch.setattr(model, "fit", self.fit)
        monkeypatch.setattr(model, "evaluate", self.evaluate)

    def fit(
        self, x, y=None, epochs=1, callbacks=(), validation_data=None, validation_batch_size=None,
        validation_steps=None, **how,
    ):  # fmt: skip
        """As of Keras: what it is given it reads."""
        self.executions.add(int(getattr(
            self.model, "steps_per_execution", getattr(self.model, "_steps_per_execution", 1))
        ))  # fmt: skip
        for epoch in range(epochs):
            for each in callbacks:
                each.on_epoch_begin(epoch, {})
            self.now += START
            for size in sizes_of(x, **how):
                self.now += STEP
                if size not in self._seen:
                    self._seen.add(size)
                    self.now += COMPILED * (len(self._seen) == 1)
            if validation_data is not None:
                how_many = {"batch_size": validation_batch_size or how.get("batch_size")}
                self.evaluate(*validation_data, **how_many, steps=validation_steps)
            for each in callbacks:
                each.on_epoch_end(epoch, {"loss": 0.5})

    def evaluate(self, x, y=None, **how):
        self.now += BEGUN
        for _ in sizes_of(x, **how):
            self.now += EVALUATED
        return {"loss": 0.5}

    def made(self, batch):
        """A batch whose examples the pipeline makes now."""
        self.now += ROW * len(batch[0])
        return batch


def sizes_of(x, batch_size=None, steps_per_epoch=None, steps=None, **_):
    """The sizes of the batches of an epoch, each of which is read."""
    if batch_size:
        for i in range(0, len(x), batch_size):
            yield len(x[i : i + batch_size])
        return
    if hasattr(x, "__getitem__") and hasattr(x, "__len__"):
        x = map(x.__getitem__, range(len(x)))
    each = iter(x)
    for _ in range(limit := steps_per_epoch or steps or 10**9):
        if (batch := next(each, None)) is None:
            assert limit == 10**9
            return
        yield len(batch[0])


def given(kind, host, data, clock, size):
    """Data of a kind in batches of a size, whose making the clock sees."""
    x, y = data
    count = math.ceil(len(x) / size)

    def batch(i):
        return clock.made(tuple(each[i * size : (i + 1) * size] for each in (x, y)))

    if kind == "tf.data":
        tf = pytest.importorskip("tensorflow")
        shapes = [tf.TensorSpec((None, *each.shape[1:]), each.dtype) for each in (x, y)]
        return tf.data.Dataset.from_generator(
            lambda: map(batch, range(count)), output_signature=tuple(shapes)
        ).apply(tf.data.experimental.assert_cardinality(count))
    if kind == "generator":

        class Passes:
            def __iter__(self):
                return map(batch, range(count))

        return Passes()

    class Indexed(getattr(host.utils, "PyDataset", None) or host.utils.Sequence):
        def __len__(self):
            return count

        def __getitem__(self, index):
            return batch(index)

    return Indexed()


@contextlib.contextmanager
def searched(frontend, monkeypatch, kind, examples, epochs, **how):
    """The clock, the answer of a search on data of a kind, and the data at a batch."""
    host, ours = FRONTENDS[frontend]
    data, model = quadratic(examples), linear(host)
    clock = Virtual(model, monkeypatch)

    def at(size):
        return data if kind == "arrays" else given(kind, host, data, clock, size)

    told = {**BASELINE, "baseline_epochs": epochs, "noise_scale": 500, "verbose": False, **how}
    if kind == "generator":
        told["examples"] = examples
    for name in ("ROUNDS", "MAX_LONG_EPOCHS", "MAX_SHORT_EPOCHS"):  # this clock is never slow
        monkeypatch.setattr(timing, name, 1)
    with uncompiled():
        found = ours.find_batch(model, at(BATCH), **told)
    yield clock, found, at


def seconds(clock, model, data, size, **how):
    """What the clock says of an epoch, without compilation."""
    begin = clock.now
    if isinstance(data, tuple):
        model.fit(*data, batch_size=size, **how)
    else:
        model.fit(data, **how)
    return clock.now - begin


@pytest.mark.parametrize("kind, steps", [
    ("arrays", 3), ("arrays", 100), ("tf.data", 3), ("indexed", 3), ("indexed", 40),
    ("generator", 40),
])  # fmt: skip
@every_frontend
def test_it_promises_the_seconds_of_fit_on_the_data_as_given(frontend, kind, steps, monkeypatch):
    """A tenth is held out of the search, and `fit` trains on all: batch 64 is in three epochs."""
    examples, epochs = steps * BATCH * 16, 4
    with searched(frontend, monkeypatch, kind, examples, epochs) as (clock, found, at):
        rows = {row.batch: row for row in found.answer.rows}
        for batch in (BATCH, 16 * BATCH):
            real = epochs * seconds(clock, clock.model, at(batch), batch)
            assert found.fit_seconds(batch, epochs) == pytest.approx(COMPILED + real, rel=0.02)
            if batch == BATCH:
                assert 3600 * rows[BATCH].hours == pytest.approx(COMPILED + real, rel=0.02)
    share = next((line for line in str(found).splitlines() if "waiting for its input" in line), "")
    assert ("89% at 16" in share) == (kind != "arrays")
    assert f"{1e3 * START:.3g} ms an epoch besides" in str(found)


@every_frontend
def test_the_evaluation_of_validation_data_is_counted(frontend, monkeypatch):
    held, epochs = quadratic(1024, seed=1), 3
    how = {"validation_data": held}
    with searched(frontend, monkeypatch, "arrays", 4096, epochs, **how) as (clock, found, at):
        for batch in (BATCH, 16 * BATCH):
            real = epochs * seconds(clock, clock.model, at(batch), batch, validation_data=held)
            assert found.fit_seconds(batch, epochs) == pytest.approx(COMPILED + real, rel=0.02)
    assert "of it the evaluation" in str(found)
    assert "validation_data=validation_data" in found.script.partition("model.fit")[2]
    assert "validation_data=validation_data" in found.script.partition("model.fit")[0]


@every_frontend
def test_steps_are_timed_as_many_an_execution_as_compile_says(frontend, monkeypatch):
    host, ours = FRONTENDS[frontend]
    model = linear(host, steps_per_execution=4)
    clock, trained = Virtual(model, monkeypatch), []
    on_batch = model.train_on_batch

    def train_on_batch(*data, **how):
        trained.append(int(getattr(
            model, "steps_per_execution", getattr(model, "_steps_per_execution", None))
        ))  # fmt: skip
        return on_batch(*data, **how)

    monkeypatch.setattr(model, "train_on_batch", train_on_batch)
    found = ours.find_batch(
        model, quadratic(4000), baseline_batch_size=BATCH, baseline_epochs=1, large_batch_size=64,
        verbose=False,
    )  # fmt: skip
    assert clock.executions == {4} and {*trained} == {1}
    many = getattr(model, "steps_per_execution", getattr(model, "_steps_per_execution", None))
    assert int(many) == 4
    assert found.runs


@pytest.mark.parametrize("kind", ["arrays", "tf.data", "indexed", "generator"])
@every_frontend
def test_the_code_reads_data_of_the_kind_that_was_given(frontend, kind, monkeypatch):
    wanted = {
        "arrays": "model.fit(x, y, batch_size=256, epochs=",
        "tf.data": "model.fit(data.rebatch(256), ",
        "indexed": "model.fit(data, epochs=", "generator": "model.fit(batches, steps_per_epoch=",
    }  # fmt: skip
    how = {"step_seconds": {BATCH: 0.026, 256: 0.027}, "noise_scale": 450}
    with searched(frontend, monkeypatch, kind, 16384, 4, **how) as (_, found, _):
        assert found.batch_size >= 256
    script = found.script.replace(f"{found.batch_size}", "256")
    assert wanted[kind] in script
    assert ("# data gives batches of 256" in script) == (kind == "indexed")
    assert ("model, (x, y), 256" in script) == (kind == "arrays")
    assert ("examples=16384" in script) == (kind == "generator")
    compile(found.script, "code", "exec")


SEARCHED = {
    "baseline_batch_size": 16, "baseline_epochs": 40, "large_batch_size": 32, "verbose": False,
    "step_seconds": {16: 0.1, 64: 0.1},
}  # fmt: skip


def without_a_number():
    x, y = quadratic(400)
    x[217, 3] = np.nan
    return x, y


@pytest.mark.parametrize("validation", [None, 400], ids=["held out", "validation data"])
@pytest.mark.parametrize("kind", ["arrays", "indexed"])
@every_frontend
def test_an_example_that_is_no_number_is_named(frontend, kind, validation, monkeypatch):
    """It is in a short run, and, at the end of the file, in what is held out."""
    host, ours = FRONTENDS[frontend]
    clock = Virtual(linear(host), monkeypatch)
    data = without_a_number()
    data = data if kind == "arrays" else given(kind, host, data, clock, BATCH)
    held = validation and quadratic(validation, seed=1)
    with pytest.raises(ValueError, match="example 217 of data has NaN in x"):
        ours.find_batch(linear(host), data, validation_data=held, **SEARCHED)


@every_frontend
def test_an_example_of_validation_data_that_is_no_number_is_named(frontend, monkeypatch):
    host, ours = FRONTENDS[frontend]
    Virtual(linear(host), monkeypatch)
    held = quadratic(400, seed=1)
    held[1][5] = np.inf
    with pytest.raises(ValueError, match="example 5 of validation_data has inf in y"):
        ours.find_batch(linear(host), quadratic(400), validation_data=held, **SEARCHED)


@pytest.mark.once
@pytest.mark.parametrize("name", ["data", "validation_data"])
def test_of_arrays_every_row_is_searched_for_one_that_is_no_number(name):
    """However few examples make an epoch."""
    given = {"data": quadratic(5000), "validation_data": quadratic(5000, seed=1)}
    given[name][0][4500, 3] = np.nan
    message = Examples(**given, examples=100).not_finite_message()
    assert message == f"example 4,500 of {name} has NaN in x"


class Endless:
    """Batches without an end, one of which may have a value that is no number."""

    def __init__(self, bad_row=None):
        self._bad_row = bad_row

    def __iter__(self):
        for row in itertools.count(step=1000):
            x, y = np.ones((1000, 2)), np.ones((1000, 1))
            if self._bad_row is not None and row <= self._bad_row < row + 1000:
                x[self._bad_row - row] = np.nan
            yield x, y


@pytest.mark.once
@pytest.mark.parametrize(
    ("bad_row", "message"),
    [(None, ""), (8000, "example 8,000 of validation_data has NaN in x"), (9500, "")],
)
def test_of_endless_validation_data_what_is_held_out_is_searched(bad_row, message):
    data = np.ones((400, 2)), np.ones((400, 1))
    held = Examples(data, validation_data=Endless(bad_row), examples=100)
    assert held.not_finite_message() == message


@every_frontend
def test_the_evaluation_of_endless_validation_data_is_not_timed(frontend):
    data = np.ones((400, 2)), np.ones((400, 1))
    host = FRONTENDS[frontend][0]
    assert Examples(data, validation_data=Endless()).validation_feed(host) is None


@every_frontend
def test_validation_data_that_cannot_be_counted_are_an_error(frontend):
    """A batch behind those that are held out has more inputs than targets."""
    data = np.ones((400, 2)), np.ones((400, 1))
    held = [(np.ones((9000, 2)), np.ones((9000, 1))), (np.ones((5, 2)), np.ones((4, 1)))]
    examples = Examples(data, validation_data=held)
    with pytest.raises(ValueError, match="arrays of 4 and 5 rows"):
        examples.validation_feed(FRONTENDS[frontend][0])


@every_frontend
def test_find_rate_names_an_example_that_is_no_number(frontend, monkeypatch):
    host, ours = FRONTENDS[frontend]
    Virtual(linear(host), monkeypatch)
    with pytest.raises(ValueError, match="example 217 of data has NaN in x"):
        ours.find_rate(linear(host), without_a_number(), 16, epochs=40, budget=1.5, verbose=False)


@every_frontend
def test_the_price_is_the_whole_wait(frontend, monkeypatch):
    """Here an evaluation takes 2 s, and all else nothing."""
    host, ours = FRONTENDS[frontend]
    model = linear(host)
    clock, on_batch, looks = Virtual(model, monkeypatch), model.test_on_batch, []

    def test_on_batch(*data, **how):
        clock.now += 2.0
        looks.append(1)
        return on_batch(*data, **how)

    monkeypatch.setattr(model, "test_on_batch", test_on_batch)
    found = ours.find_batch(
        model, quadratic(4000), baseline_batch_size=BATCH, baseline_epochs=1, large_batch_size=64,
        step_seconds={16: 0.026, 64: 0.074}, verbose=False,
    )  # fmt: skip
    assert found.took == pytest.approx(2.0 * len(looks)) and len(looks) > 500
    for took, words in [(1e6, " of it "), (1e-3, ", so these were faster")]:
        assert_the_steps_are_within_the_whole(dataclasses.replace(found, took=took), words)


def assert_the_steps_are_within_the_whole(found, words):
    """What is printed as a part of the search's time is at most that time."""
    (line,) = (line for line in str(found).splitlines() if line.startswith("the search took"))
    assert "with compilation and evaluation" in line and words in line
    assert f" {sum(run.steps_trained for run in found.runs):,} steps of the short runs" in line
    step_time = found.answer.machine.step_time
    estimate = sum(run.steps_trained * step_time.call_seconds(run.batch) for run in found.runs)
    assert (" of it " in line) == (estimate <= found.took)


@pytest.mark.parametrize("size", [4, 16, 24])
@pytest.mark.parametrize("kind", ["tf.data", "indexed", "generator"])
@every_frontend
def test_a_feed_has_the_examples_in_their_order_at_any_batch(frontend, kind, size, monkeypatch):
    host, _ = FRONTENDS[frontend]
    x, y = quadratic(100)
    clock = Virtual(linear(host), monkeypatch)
    read = Examples(given(kind, host, (x, y), clock, 16), quadratic(64), 100)
    feed = make_feed(read.source, read.examples, host)
    begin, steps = clock.now, 4
    how = feed.fit_arguments(size, steps)
    batches = iter(how["x"])
    if hasattr(how["x"], "__getitem__"):
        batches = map(how["x"].__getitem__, range(len(how["x"])))
    seen = [[np.asarray(part) for part in next(batches)] for _ in range(steps)]
    np.testing.assert_array_equal(np.concatenate([a for a, _ in seen]), x[: steps * size])
    np.testing.assert_array_equal(np.concatenate([b for _, b in seen]), y[: steps * size])
    whole = -(-steps * size // 16) * 16  # those of the data's own batches that hold them
    assert clock.now - begin <= ROW * (min(100, whole) + 32) + 1e-9
    repeated = feed.repeated_batch_arguments(size, 5)["x"]
    begin = clock.now
    for i, batch in zip(range(5), repeated, strict=False):
        assert len(batch[0]) == size
        if i == 0:
            begin = clock.now
    assert clock.now == begin


@every_frontend
def test_a_generator_begins_anew_behind_a_pass_that_its_batches_divide(frontend, monkeypatch):
    host, _ = FRONTENDS[frontend]
    x, y = quadratic(48)
    clock = Virtual(linear(host), monkeypatch)
    read = Examples(given("generator", host, (x, y), clock, 24), quadratic(64), 48)
    batches = make_feed(read.source, read.examples, host).fit_arguments(12, 6)["x"]
    seen = np.concatenate([next(batches)[0] for _ in range(6)])
    np.testing.assert_array_equal(seen, np.concatenate([x, x[:24]]))
