"""AutoWarmup in both frontends: what it reads of `fit`, the rate that `fit` then has, its weights.

What it decides is `test_decisions.py`; where that is not the subject, it decides at once.
"""

import json

import numpy as np
import pytest
from sklearn.datasets import load_digits
from support import frontends
from support.examples import run_example
from support.frontends import BACKEND, FRONTENDS, array, as_compiled, every_frontend, on_tensorflow

from tf_lamb_extras import automatic_warmup
from tf_lamb_extras.automatic_warmup.decisions import AutoWUState
from tf_lamb_extras.automatic_warmup.gaussian_process import MinimumTest

OURS = frontends.extra("automatic_warmup")


def auto_warmup(frontend, *arguments, **settings):
    return OURS[frontend][1].AutoWarmup(*arguments, **{"verbose": False, **settings})


@pytest.fixture
def judged(monkeypatch):
    """Has each test say what a function of the number of losses does."""

    def by(probability, lowest=0.5):
        judge = lambda x, y, tests: [MinimumTest(float(probability(len(x))), lowest)] * tests  # noqa: E731
        monkeypatch.setattr(AutoWUState.__init__, "__defaults__", (judge,))

    return by


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return (x[:1536] / 16).astype("float32"), y[:1536]


def model_of(frontend, optimizer=None, **compiled):
    host = FRONTENDS[frontend][0]
    host.utils.set_random_seed(1)
    model = host.Sequential([host.layers.Input((64,)), host.layers.Dense(10)])
    loss = host.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or host.optimizers.SGD(0.5), loss, **compiled)
    return model


def train(model, data, epochs, *callbacks, batch_size=256, **arguments):
    with as_compiled(model):
        return model.fit(
            *data, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0,
            callbacks=[*callbacks], **arguments,
        ).history  # fmt: skip


def line(frontend, optimizer):
    """A model of one dense unit, and its data: four steps an epoch."""
    host = FRONTENDS[frontend][0]
    host.utils.set_random_seed(1)
    model = host.Sequential([host.layers.Input((2,)), host.layers.Dense(1)])
    model.compile(optimizer, "mse", run_eagerly=True)
    x = np.random.default_rng(0).normal(size=(16, 2)).astype("float32")
    return model, (x, x[:, :1])


def watcher(host):
    """A callback that keeps the rate and the loss of every step."""

    class Watcher(host.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.rates, self.losses, self.mean = [], [], 0.0

        def on_train_batch_end(self, batch, logs=None):
            rate = self.model.optimizer.learning_rate
            self.rates.append(float(np.asarray(rate)))
            total = (batch + 1) * logs["loss"]
            self.losses.append(total - (batch * self.mean if batch else 0.0))
            self.mean = logs["loss"]

    return Watcher()


def states(host, seen):
    """A callback that keeps weights and state at the end of every epoch."""

    def keep(epoch, logs):
        model = callback.model
        seen.append([array(v) for v in [*model.weights, *model.optimizer.variables]])

    callback = host.callbacks.LambdaCallback(on_epoch_end=keep)
    return callback


@every_frontend
def test_fit_has_the_rate_and_its_losses_are_those_of_the_steps(frontend, digits):
    """And what it decides of them is what the Gaussian process does."""
    warmup, seen = auto_warmup(frontend, 1e-4, 10.0, tests=1), watcher(FRONTENDS[frontend][0])
    history = train(model_of(frontend), digits, 12, warmup, seen, batch_size=128)
    found = warmup.warmup
    again = AutoWUState(found.settings)
    for step in range(144):
        assert seen.rates[step] == pytest.approx(again.rate(step), rel=1e-6)
        if again.is_rising(step):
            again.record(step, seen.losses[step])
        if step % 12 == 11:
            again.end_epoch(step + 1)
    np.testing.assert_allclose(again.points, found.points, rtol=1e-6)
    assert again.begin == found.begin
    assert history["learning_rate"] == pytest.approx(seen.rates[11::12], rel=1e-6)
    # A step's loss does not hold the steps before it.
    assert found.points[0][1] == pytest.approx(history["loss"][0], abs=0.2)


@pytest.mark.skipif(BACKEND == "torch", reason="has one step a call")
@every_frontend
def test_what_it_reads_of_a_call_of_several_steps_is_their_mean(frontend, digits, judged):
    judged(lambda losses: 0.99)
    warmup = auto_warmup(frontend, 1e-3, 1.0)
    train(model_of(frontend, steps_per_execution=5), digits, 2, warmup, batch_size=128)
    assert [at for at, _ in warmup.warmup.points] == [2.0, 7.0, 10.5]


@every_frontend
def test_the_loss_of_a_smaller_last_batch_is_drawn_to_the_mean(frontend, judged):
    """As the docstring has it: Keras weighs a batch by its examples, and tells nobody of them."""
    judged(lambda losses: 0.0)
    host, _ = FRONTENDS[frontend]
    model = host.Sequential([host.layers.Input((1,)), host.layers.Dense(1)])
    model.compile(host.optimizers.SGD(1e-9), "mse")
    y = np.sqrt(np.repeat([1.0, 2.0, 3.0], [32, 32, 8]))[:, None]  # an input of 0 predicts 0
    train(model, (0 * y, y), 2, warmup := auto_warmup(frontend, 1e-9, 1e-8), batch_size=32)
    n, r = 3, 8 / 32
    last = 1.5 + (3.0 - 1.5) * n * r / (n - 1 + r)
    assert [loss for _, loss in warmup.warmup.points] == pytest.approx([1.0, 2.0, last], rel=1e-5)


@every_frontend
def test_it_goes_back_from_a_lost_epoch_beside_a_divergence_report(frontend, judged):
    """Which waits: it would end the run in that epoch, and does so in a run without a warmup."""
    judged(lambda losses: 0.0)
    host, ours = FRONTENDS[frontend]
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    model = host.Sequential([host.layers.Input((4,)), host.layers.Dense(1)])
    model.compile(ours.SGDP(1e-3), "mse")
    report = ours.StopOnDivergence(every=1, patience=4)
    warmup = auto_warmup(frontend, 1e-3, 1e15)
    losses = train(model, (x, x[:, :1]), 32, report, warmup, batch_size=8)["loss"]
    assert not np.isfinite(losses).all() and np.isfinite(losses[-1])
    model.optimizer.learning_rate = 1e15
    with pytest.raises(FloatingPointError, match="has diverged"):
        train(model, (x, x[:, :1]), 9, report, batch_size=8)


@every_frontend
def test_a_schedule_is_refused_before_a_step(frontend, digits):
    host, _ = FRONTENDS[frontend]
    schedule = host.optimizers.schedules.CosineDecay(0.1, 10)
    model = model_of(frontend, host.optimizers.SGD(schedule))
    with pytest.raises(ValueError, match="has a schedule of its own"):
        train(model, digits, 1, auto_warmup(frontend))


@every_frontend
def test_a_later_epoch_without_a_state_file_is_refused_before_a_step(frontend, digits):
    model = model_of(frontend)
    with pytest.raises(ValueError, match="fit begins at epoch 2, .* and has no state_file"):
        train(model, digits, 4, auto_warmup(frontend), initial_epoch=2)
    assert int(model.optimizer.iterations) == 0


@every_frontend
def test_an_epoch_of_unknown_length_is_refused_before_a_step(frontend, digits):
    model, endless = model_of(frontend), (d for d in [digits] * 3)
    with pytest.raises(ValueError, match="how many steps an epoch has"):
        model.fit(endless, verbose=0, epochs=1, callbacks=[auto_warmup(frontend)])
    assert int(model.optimizer.iterations) == 0


@every_frontend
def test_an_epoch_without_a_finite_loss_is_an_error(frontend, digits):
    x, y = digits
    with pytest.raises(FloatingPointError, match="No loss of the steps 0 to 6 is finite"):
        train(model_of(frontend), (x * np.nan, y), 4, auto_warmup(frontend))


@every_frontend
def test_another_that_sets_the_rate_is_named_once(frontend, digits, recwarn):
    host, _ = FRONTENDS[frontend]
    warmup, seen = auto_warmup(frontend, 1e-3, 1.0), watcher(host)
    other = host.callbacks.LearningRateScheduler(lambda epoch: 7.0)
    train(model_of(frontend), digits, 4, warmup, other, seen)
    told = [str(w.message) for w in recwarn if "something else has set 7" in str(w.message)]
    assert len(told) == 1 and "Take LearningRateScheduler and" in told[0]
    assert max(seen.rates) <= 1.0


@on_tensorflow
@every_frontend
def test_the_loss_is_the_mean_over_replicas(frontend, digits, judged):
    from support.clusters import mirrored

    judged(lambda losses: 0.99)
    points = {}
    for replicas in (1, 2):
        with mirrored(replicas).scope():
            model = model_of(frontend)
        train(model, digits, 2, warmup := auto_warmup(frontend, 1e-3, 1.0))
        points[replicas] = warmup.warmup.points
    assert len(points[1]) == 6  # the warmup is half of the training
    np.testing.assert_allclose(points[2], points[1], rtol=1e-4)


@on_tensorflow
def test_the_example_runs():
    run_example(automatic_warmup.AutoWarmup, least=5)


# --- weights ---


@every_frontend
def test_after_the_switch_the_model_is_as_at_the_end_of_that_epoch(
    frontend, judged, capsys, recwarn
):
    """A rate that destroys what was learned: the losses of the last epochs are the highest."""
    judged(lambda losses: losses > 8)
    host, _ = FRONTENDS[frontend]
    model, data = line(frontend, host.optimizers.SGD(0.1, momentum=0.5))
    before, after = [], []
    warmup = auto_warmup(frontend, 1e-2, 1e3, patience=2, verbose=True)
    train(model, data, 10, states(host, before), warmup, states(host, after), batch_size=4)
    switch, lowest = int(warmup.warmup.begin) // 4, warmup.warmup.lowest // 4
    assert lowest < switch == 4
    for one, other, now in zip(
        before[lowest - 1], after[switch - 1], before[switch - 1], strict=True
    ):
        np.testing.assert_array_equal(one, other)
        assert one.ndim == 0 or (one != now).any()
    assert f"are those of step {lowest * 4} again" in capsys.readouterr().out
    assert not [w for w in recwarn if "something else" in str(w.message)]


@every_frontend
def test_a_run_that_was_killed_ends_as_one_that_was_not(frontend, judged, tmp_path):
    """Adam, whose step depends on `iterations`; before the switch, and after it."""
    judged(lambda losses: losses > 8)
    host, ours = FRONTENDS[frontend]

    def fit(folder, epochs=10, dies_in=None):
        def die(epoch, logs):
            return 1 / 0 if epoch == dies_in else None

        model, data = line(frontend, host.optimizers.Adam(0.1))
        file = str(folder / "warmup.json")
        warmup = auto_warmup(frontend, 1e-2, 1e3, patience=2, state_file=file)
        backup = ours.BackupAndRestore(str(folder / "backup"), delete_checkpoint=False)
        dies = host.callbacks.LambdaCallback(on_epoch_begin=die)
        try:
            train(model, data, epochs, warmup, backup, dies, batch_size=4)
        except ZeroDivisionError:
            return None
        assert warmup.warmup.lowest < warmup.warmup.begin == 16
        state = json.loads(json.dumps(warmup.warmup.state()))
        return int(array(model.optimizer.iterations)), state, model.get_weights()

    updates, state, weights = fit(tmp_path / "whole")
    assert updates < 40
    for dies_in in (3, 6):
        assert fit(tmp_path / "killed", dies_in=dies_in) is None
    again = fit(tmp_path / "killed")
    assert again[:2] == (updates, state)
    for one, other in zip(again[2], weights, strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="was begun for 40 steps, and fit has 48"):
        fit(tmp_path / "killed", epochs=12)


@every_frontend
def test_a_decay_that_diverges_goes_back_until_it_does_not(frontend, judged, capsys):
    """From a peak that is set too high, at which what was learned is lost."""
    judged(lambda losses: losses > 24, lowest=1.0)
    host, _ = FRONTENDS[frontend]

    def too_high(epoch, logs):
        if callback.warmup.found:
            callback.warmup.peak = 10.0

    model, data = line(frontend, host.optimizers.SGD(0.1))
    before, after = [], []
    callback = auto_warmup(frontend, 1e-2, 10.0, patience=2, verbose=True)
    raises = host.callbacks.LambdaCallback(on_epoch_end=too_high)
    callbacks = states(host, before), callback, raises, states(host, after)
    losses = train(model, data, 16, *callbacks, batch_size=4)["loss"]
    warmup = callback.warmup
    cut = warmup.cuts[0][0] // 4
    assert losses[cut - 1] > 10 > losses[0] > 100 * losses[-1]
    for at, _ in warmup.cuts:
        for one, other in zip(before[warmup.lowest // 4 - 1], after[at // 4 - 1], strict=True):
            np.testing.assert_array_equal(one, other)
    assert f"are those of step {warmup.lowest} again" in capsys.readouterr().out
