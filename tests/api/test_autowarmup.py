"""AutoWarmup in both frontends: what it reads of `fit`, and the rate that `fit` then has.

What it decides is `core/test_autowarmup.py`; where that is not the subject, it decides at once.
"""

import json

import numpy as np
import pytest
from sklearn.datasets import load_digits
from support.frontends import BACKEND, FRONTENDS, as_compiled, every_frontend, on_tensorflow

from tf_lamb.core import gaussian_process
from tf_lamb.core.autowarmup import AutoWUState


@pytest.fixture
def certain(monkeypatch):
    """Each test is certain; the posterior is lowest in the middle."""

    def judge(x, y, tests):
        return [gaussian_process.MinimumTest(0.99, 0.5)] * tests

    monkeypatch.setattr(AutoWUState.__init__, "__defaults__", (judge,))


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"min_learning_rate": 0.0}, "needs 0 < min < max"),
        ({"min_learning_rate": 1.0, "max_learning_rate": 0.1}, "needs 0 < min < max"),
        ({"max_warmup_fraction": 1.0}, "a warmup without an end leaves nothing to decay"),
        ({"confidence": 95}, "confidence must be between 0 and 1, it is 95"),
        ({"decay": "linear"}, "decay must be 'cosine' or 'constant_then_cosine', not 'linear'"),
        ({"patience": 0}, "patience must be a whole number >= 1"),
        ({"max_warmup_fraction": 0.001, "total_steps": 100}, "is no step at all"),
    ],
)
@every_frontend
def test_bad_arguments_are_refused_at_once(frontend, told, says):
    with pytest.raises(ValueError, match=says):
        FRONTENDS[frontend][1].AutoWarmup(**told)


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


def train(model, digits, epochs, *callbacks, batch_size=256, **arguments):
    with as_compiled(model):
        return model.fit(
            *digits, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0,
            callbacks=[*callbacks], **arguments,
        ).history  # fmt: skip


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


@every_frontend
def test_fit_has_the_rate_and_its_losses_are_those_of_the_steps(frontend, digits):
    """And what it decides of them is what the Gaussian process does."""
    host, ours = FRONTENDS[frontend]
    warmup, seen = ours.AutoWarmup(1e-4, 10.0, tests=1, verbose=False), watcher(host)
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
    if BACKEND == "tensorflow" and frontend == "keras":
        above, below = warmup.plot()
        assert above.get_legend_handles_labels()[1][0] == "loss"
        assert below.get_yscale() == "log"


@pytest.mark.usefixtures("certain")
@pytest.mark.parametrize(
    "steps_per_execution",
    [1] if BACKEND == "torch" else [1, 5],  # Keras has 1 on torch
)
@every_frontend
def test_what_it_reads_of_a_call_of_several_steps_is_their_mean(
    frontend, digits, steps_per_execution
):
    warmup = FRONTENDS[frontend][1].AutoWarmup(1e-3, 1.0, verbose=False)
    model = model_of(frontend, steps_per_execution=steps_per_execution)
    train(model, digits, 2, warmup, batch_size=128)
    steps = [at for at, _ in warmup.warmup.points]
    assert steps == (list(range(12)) if steps_per_execution == 1 else [2.0, 7.0, 10.5])


@every_frontend
def test_it_goes_back_from_a_lost_epoch_beside_a_divergence_report(frontend, monkeypatch):
    """Which waits: it would end the run in that epoch, and does so in a run without a warmup."""
    never = lambda x, y, tests: [gaussian_process.MinimumTest(0.0, 0.5)]  # noqa: E731
    monkeypatch.setattr(AutoWUState.__init__, "__defaults__", (never,))
    host, ours = FRONTENDS[frontend]
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    model = host.Sequential([host.layers.Input((4,)), host.layers.Dense(1)])
    model.compile(ours.SGDP(1e-3), "mse")
    warmup = ours.AutoWarmup(1e-3, 1e15, verbose=False)
    report = ours.StopOnDivergence(every=1, patience=4)
    losses = train(model, (x, x[:, :1]), 32, report, warmup, batch_size=8)["loss"]
    assert not np.isfinite(losses).all() and np.isfinite(losses[-1])
    model.optimizer.learning_rate = 1e15
    with pytest.raises(FloatingPointError, match="has diverged"):
        train(model, (x, x[:, :1]), 9, report, batch_size=8)


@pytest.mark.usefixtures("certain")
@every_frontend
def test_a_run_that_was_killed_ends_as_one_that_was_not(frontend, digits, tmp_path):
    host, ours = FRONTENDS[frontend]

    def fit(epochs, folder, dies_in=None):
        dies = host.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: 1 / 0 if epoch == dies_in else None
        )
        warmup = ours.AutoWarmup(1e-4, 1e4, state_file=str(folder / "warmup.json"), verbose=False)
        backup = ours.BackupAndRestore(str(folder / "backup"), delete_checkpoint=False)
        model = model_of(frontend)
        try:
            train(model, digits, epochs, warmup, backup, dies)
        except ZeroDivisionError:
            return None
        return model.get_weights(), warmup.warmup.state()

    weights, state = fit(8, tmp_path / "whole")
    assert state["switch"][0] == 18  # somewhere in the middle: after the third epoch
    fit(8, tmp_path / "killed", dies_in=2)
    fit(8, tmp_path / "killed", dies_in=5)
    again, state_again = fit(8, tmp_path / "killed")
    for one, other in zip(weights, again, strict=True):
        np.testing.assert_array_equal(one, other)
    assert json.loads(json.dumps(state_again)) == json.loads(json.dumps(state))
    with pytest.raises(ValueError, match="was begun for 48 steps, and fit has 60"):
        fit(10, tmp_path / "killed")


@every_frontend
def test_what_only_fit_knows_to_be_wrong_is_refused_before_a_step(frontend, digits):
    host, ours = FRONTENDS[frontend]
    schedule = host.optimizers.schedules.CosineDecay(0.1, 10)
    model = model_of(frontend, host.optimizers.SGD(schedule))
    with pytest.raises(ValueError, match="has a schedule of its own"):
        train(model, digits, 1, ours.AutoWarmup())
    model = model_of(frontend)
    with pytest.raises(ValueError, match="fit begins at epoch 2, .* and has no state_file"):
        train(model, digits, 4, ours.AutoWarmup(), initial_epoch=2)
    with pytest.raises(ValueError, match="how many steps an epoch has"):
        model.fit((d for d in [digits] * 3), verbose=0, epochs=1, callbacks=[ours.AutoWarmup()])
    with pytest.raises(ValueError, match="nothing to draw yet"):
        ours.AutoWarmup().plot()
    assert int(model.optimizer.iterations) == 0


@pytest.mark.parametrize("comes_first", [True, False])
@every_frontend
def test_another_that_sets_the_rate_is_named_once(frontend, digits, comes_first, recwarn):
    host, ours = FRONTENDS[frontend]
    warmup, seen = ours.AutoWarmup(1e-3, 1.0, verbose=False), watcher(host)
    other = host.callbacks.LearningRateScheduler(lambda epoch: 7.0)
    both = (other, warmup) if comes_first else (warmup, other)
    train(model_of(frontend), digits, 4, *both, seen)
    told = [str(w.message) for w in recwarn if "something else has set 7" in str(w.message)]
    assert len(told) == 1 and "Take LearningRateScheduler and" in told[0]
    assert max(seen.rates) <= 1.0


@pytest.mark.usefixtures("certain")
@every_frontend
def test_alone_it_names_nobody_also_where_it_goes_back(frontend, digits, recwarn):
    warmup = FRONTENDS[frontend][1].AutoWarmup(1e-3, 1.0, verbose=False)
    train(model_of(frontend), digits, 8, warmup)
    assert warmup.warmup.begin is not None
    assert not [w for w in recwarn if "something else" in str(w.message)]


@pytest.mark.usefixtures("certain")
@pytest.mark.parametrize("name", ["LAMB", "LARS", "AdamP", "Adam"])
@every_frontend
def test_it_drives_every_optimizer(frontend, name, digits):
    host, ours = FRONTENDS[frontend]
    if name == "Adam":
        optimizer = host.optimizers.Adam(1e-3)
    else:
        optimizer = getattr(ours, name)(1e-3, jit_compile=False)
    model = model_of(frontend, optimizer, run_eagerly=name != "LAMB" and BACKEND == "tensorflow")
    warmup = ours.AutoWarmup(1e-5, 1.0, verbose=False)
    train(model, digits, 2, warmup, batch_size=512)
    last = warmup.warmup.rate(5)
    assert float(np.asarray(model.optimizer.learning_rate)) == pytest.approx(last, rel=1e-6)


@every_frontend
def test_a_loss_of_nan_ends_the_run_where_it_shows(frontend, digits):
    model, (x, y) = model_of(frontend), digits
    with pytest.raises(FloatingPointError, match="No loss of the steps 0 to 6 is finite"):
        train(model, (x * np.nan, y), 4, FRONTENDS[frontend][1].AutoWarmup())


@pytest.mark.usefixtures("certain")
@on_tensorflow
@every_frontend
def test_the_loss_is_the_mean_over_replicas(frontend, digits):
    from support.clusters import mirrored

    points = {}
    for replicas in (1, 2):
        with mirrored(replicas).scope():
            model = model_of(frontend)
        warmup = FRONTENDS[frontend][1].AutoWarmup(1e-3, 1.0, verbose=False)
        train(model, digits, 2, warmup)
        points[replicas] = warmup.warmup.points
    assert len(points[1]) == 6  # the warmup is half of the training
    np.testing.assert_allclose(points[2], points[1], rtol=1e-4)


@pytest.mark.slow
@on_tensorflow  # once is enough
def test_untuned_it_ends_beside_the_best_of_seven_tuned_peaks():
    """As in `core/test_autowarmup.py`, by Keras, without the two peaks that end below 40%."""
    keras, ours = FRONTENDS["keras"]
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 16).astype("float32"), y[order]
    seen, epochs, batch = 1024, 100, 256
    steps = epochs * seen // batch

    def accuracy(rate, *callbacks):
        keras.utils.set_random_seed(1)
        layers = keras.layers
        model = keras.Sequential([
            keras.Input((64,)), layers.Dense(64, use_bias=False),
            layers.BatchNormalization(momentum=0.9), layers.ReLU(), layers.Dense(10),
        ])  # fmt: skip
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        undecayed = ["bias", "gamma", "beta"]
        optimizer = ours.LAMB(rate, weight_decay=0.01, exclude_from_weight_decay=undecayed)
        model.compile(optimizer, loss, metrics=["accuracy"])
        model.fit(
            x[:seen], y[:seen], batch_size=batch, epochs=epochs, verbose=0, callbacks=[*callbacks]
        )
        return 100 * model.evaluate(x[seen:], y[seen:], batch_size=800, verbose=0)[1]

    warmup = ours.AutoWarmup(verbose=False)
    found = accuracy(1e-3, warmup)
    warm = steps // 20
    cosine = keras.optimizers.schedules.CosineDecay
    grid = [
        accuracy(ours.schedules.Warmup(warm, cosine(10 ** (i / 2), steps - warm)))
        for i in range(-6, 1)
    ]
    assert warmup.warmup.found
    assert warmup.warmup.begin <= steps / 2
    assert max(grid) > 97 > sorted(grid)[2]  # it matters which peak
    assert found >= max(grid) - 1
