"""AutoWarmup: the published numbers, the state machine, and training with both Kerases."""

import importlib
import json
import math
import os

import numpy as np
import pytest

from tf_lamb.core.autowarmup import Settings, Warmup, gaussian_process
from tf_lamb.core.faces.autowarmup import _of_steps

BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")
DOORS = ["keras", "tf_keras"] if BACKEND == "tensorflow" else ["keras"]

# facts: RBF of length 0.2, noise 1e-3, scale ln 2, 20 losses, 50 points.
T = np.arange(20.0)
PRIOR = gaussian_process.Prior(math.log(2), 1e-3)
PUBLISHED = {
    "falling": (2 - 0.05 * T, 0.3892427938, 1.0, 1.996821636, 1.025292529, 0.01),
    "a minimum at 13": (
        np.abs(T - 13) * 0.1 + 1, 1.0, 0.6530612245, 2.293995453, 1.659498807, 9.10298178e-4,
    ),
    # Of this one the facts have the numbers alone; these losses give them.
    "a late rise": (
        np.where(T > 17, 1.15 + 0.02 * (T - 17), 2 - 0.05 * T),
        0.8398558726, 0.8775510204, 1.996652599, 1.248847764, 4.29193426e-3,
    ),
    "flat": (np.ones(20), 0.5, 0.0, 1.0, 1.0, 1e-5),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_numbers(name):
    losses, probability, lowest, first, last, rate = PUBLISHED[name]
    grid, mean, covariance = gaussian_process.posterior(PRIOR, T / 20, losses, points=50)
    found = gaussian_process.test(grid, mean, covariance)
    np.testing.assert_allclose((mean[0], mean[-1]), (first, last), rtol=1e-9)
    np.testing.assert_allclose(found, (probability, lowest), rtol=1e-9)
    settings = Settings(20, 1e-5, 1e-2, patience=1, max_warmup_fraction=0.99)
    warmup = Warmup(settings, lambda x, y, tests: [found])
    # The switch comes when the rate has reached 1e-2, as in the published row.
    switched = 1e-5 * (1e-2 / 1e-5) ** found.lowest
    assert switched == pytest.approx(rate, rel=1e-8)
    if probability > 0.95:
        for step, loss in enumerate(losses[:19]):
            warmup.record(step, loss)
        warmup.end_epoch(18)
        assert warmup.peak == pytest.approx(1e-5 * (warmup.settings.warmup(18) / 1e-5) ** lowest)


def test_the_published_growth():
    settings = Settings(2000, 1e-5, 1.0)
    assert settings.longest == 1000
    assert settings.warmup(1) / 1e-5 == pytest.approx(1.011579454, rel=1e-9)
    assert settings.warmup(500) == pytest.approx(0.00316227766, rel=1e-9)


def oracle(settings, epochs, steps, found):
    """The rates of a whole training, by the loop of the authors' algorithm box."""
    total, rates, lr = settings.total_steps, [], settings.min_learning_rate
    longest = int(settings.max_warmup_fraction * total)
    gamma = (settings.max_learning_rate / settings.min_learning_rate) ** (1 / longest)
    passed, switch = [], None
    for epoch in range(epochs):
        for _ in range(steps):
            now = len(rates)
            if switch is None and now == longest:
                switch = (now, lr)
            if switch is None:
                rates.append(lr)
                lr *= gamma
                continue
            begin, peak = switch
            if settings.decay == "constant_then_cosine":
                begin = max(begin, (1 - settings.cooldown_fraction) * total)
            part = max(now - begin, 0) / (total - begin)
            rates.append(peak * 0.5 * (1 + math.cos(math.pi * part)))
        if switch is None:
            tests = found(epoch)
            votes = sum(p > settings.confidence for p, _ in tests)
            passed.append(votes > settings.tests / 2)
            if len(passed) >= settings.patience and all(passed[-settings.patience :]):
                low = settings.min_learning_rate
                switch = len(rates), np.mean([low * (lr / low) ** x for _, x in tests])
    return rates


def votes_of(epoch):
    """Three of five say so from epoch 4 on, but for epoch 6."""
    p = 0.99 if epoch >= 4 and epoch != 6 else 0.2
    return [gaussian_process.Test(*t) for t in [(p, 0.5), (p, 0.6), (p, 0.7), (0.1, 0.8), (0.1, 1)]]


def run(settings, epochs, steps, found):
    seen = iter(range(epochs))
    warmup = Warmup(settings, lambda x, y, tests: found(next(seen)))
    rates = []
    for epoch in range(epochs):
        for step in range(epoch * steps, (epoch + 1) * steps):
            rates.append(warmup.rate(step))
            warmup.record(step, 1.0)
        warmup.end_epoch((epoch + 1) * steps)
    return warmup, rates


@pytest.mark.parametrize("decay", ["cosine", "constant_then_cosine"])
@pytest.mark.parametrize("passes", [True, False])
def test_the_rates_of_a_whole_training_are_the_authors(decay, passes):
    settings = Settings(24 * 7, 1e-4, 2.0, decay=decay, max_warmup_fraction=0.6)
    found = votes_of if passes else lambda epoch: votes_of(0)
    warmup, rates = run(settings, 24, 7, found)
    np.testing.assert_allclose(rates, oracle(settings, 24, 7, found), rtol=1e-12)
    # Epochs 7, 8 and 9 are the first three in a row; the tenth begins at step 70.
    assert (warmup.found, warmup.begin) == ((True, 70) if passes else (False, 100))
    assert ("has passed" in str(warmup)) is passes


def test_a_state_goes_back_to_any_epoch():
    settings = Settings(24 * 7, 1e-4, 2.0)
    whole, rates = run(settings, 24, 7, votes_of)
    for epoch in (1, 9, 10, 15):
        again = Warmup(settings, lambda x, y, tests, at=epoch: votes_of(at))
        again.restore(json.loads(json.dumps(whole.state())), epoch * 7)
        assert again.rate(epoch * 7) == (rates[epoch * 7] if epoch >= 10 else again.rate(epoch * 7))
        assert again.found is (epoch >= 10)
        assert len(again.points) == min(epoch, 10) * 7
        assert len(again.verdicts) == min(epoch, 10)


def test_losses_that_are_not_finite_are_left_out_and_an_epoch_of_them_ends_the_run():
    warmup = Warmup(Settings(100), lambda x, y, tests: votes_of(0))
    for step in range(10):
        warmup.record(step, math.nan if step % 2 else 1.0)
    warmup.end_epoch(10)
    assert [at for at, _ in warmup.points] == [0, 2, 4, 6, 8]
    warmup.record(12, math.inf)
    with pytest.raises(FloatingPointError, match="No loss of the steps 10 to 20 is finite"):
        warmup.end_epoch(20)


def test_the_process_finds_a_minimum_under_noise_and_none_where_there_is_none():
    rng = np.random.default_rng(0)
    x = np.arange(600) / 600
    noise = rng.normal(scale=0.1, size=600)
    for losses, expected in ((3 - 2 * x, False), (1 + 8 * (x - 0.6) ** 2, True)):
        tests = gaussian_process.tests(x, losses + noise, 5)
        assert sum(t.probability > 0.95 for t in tests) == (5 if expected else 0)
        assert tests == gaussian_process.tests(x, losses + noise, 5)
    assert [t.lowest for t in tests] == pytest.approx([0.6] * 5, abs=0.05)
    # The prior is the most probable one: scikit-learn's own likelihood falls to all sides.
    prior = gaussian_process.fitted(x[:100], (losses + noise)[:100])
    assert 0.05**2 < prior.noise < 0.2**2


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
@pytest.mark.parametrize("door", DOORS)
def test_bad_arguments_are_refused_at_once(door, told, says):
    with pytest.raises(ValueError, match=says):
        importlib.import_module(f"tf_lamb.{door}").AutoWarmup(**told)


@pytest.fixture(scope="module")
def digits():
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return (x[:1536] / 16).astype("float32"), y[:1536]


def model_of(door, optimizer=None, **compiled):
    host = importlib.import_module(door)
    host.utils.set_random_seed(1)
    model = host.Sequential([host.Input((64,)), host.layers.Dense(10)])
    loss = host.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or host.optimizers.SGD(0.5), loss, **compiled)
    return model


def watcher(door):
    """A callback that keeps the rate and the loss of every step."""
    host = importlib.import_module(door)

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


@pytest.mark.parametrize("door", DOORS)
def test_fit_has_the_rate_and_its_losses_are_those_of_the_steps(door, digits):
    ours = importlib.import_module(f"tf_lamb.{door}")
    warmup, seen = ours.AutoWarmup(1e-4, 10.0, verbose=False), watcher(door)
    model = model_of(door)
    history = model.fit(
        *digits, batch_size=128, epochs=12, shuffle=False, verbose=0, callbacks=[warmup, seen]
    ).history
    found = warmup.warmup
    again = Warmup(found.settings)
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
    if BACKEND == "tensorflow" and door == "keras":
        above, below = warmup.plot()
        assert above.get_legend_handles_labels()[1][0] == "loss"
        assert below.get_yscale() == "log"


def test_means_that_come_in_any_order_give_each_step_its_loss():
    losses = [3.0, 1.0, 2.0, 6.0]
    means = [(i + 1, np.float32(np.mean(losses[: i + 1]))) for i in range(4)]
    found = list(_of_steps([means[2], means[0], means[3], means[1]]))
    assert [step for step, _ in found] == [0, 1, 2, 3]
    assert [loss for _, loss in found] == pytest.approx(losses)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("steps_per_execution", [1, 5])
def test_what_it_reads_of_a_call_of_several_steps_is_their_mean(door, digits, steps_per_execution):
    ours = importlib.import_module(f"tf_lamb.{door}")
    warmup = ours.AutoWarmup(1e-3, 1.0, verbose=False)
    model = model_of(door, steps_per_execution=steps_per_execution)
    model.fit(*digits, batch_size=128, epochs=2, verbose=0, callbacks=[warmup])
    steps = [at for at, _ in warmup.warmup.points]
    assert steps == (list(range(12)) if steps_per_execution == 1 else [2.0, 7.0, 10.5])


@pytest.mark.parametrize("door", DOORS)
def test_a_run_that_was_killed_ends_as_one_that_was_not(door, digits, tmp_path):
    ours = importlib.import_module(f"tf_lamb.{door}")

    def fit(epochs, folder, dies_in=None):
        host = importlib.import_module(door)
        dies = host.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: 1 / 0 if epoch == dies_in else None
        )
        callbacks = [
            ours.AutoWarmup(1e-4, 1e4, state_file=str(folder / "warmup.json"), verbose=False),
            ours.BackupAndRestore(str(folder / "backup"), delete_checkpoint=False),
            dies,
        ]
        model = model_of(door)
        try:
            model.fit(
                *digits, batch_size=128, epochs=epochs, shuffle=False, verbose=0,
                callbacks=callbacks,
            )  # fmt: skip
        except ZeroDivisionError:
            return None
        return model.get_weights(), callbacks[0].warmup.state()

    weights, state = fit(16, tmp_path / "whole")
    assert state["switch"]  # somewhere in the middle
    fit(16, tmp_path / "killed", dies_in=3)
    fit(16, tmp_path / "killed", dies_in=12)
    again, state_again = fit(16, tmp_path / "killed")
    for one, other in zip(weights, again, strict=True):
        np.testing.assert_array_equal(one, other)
    assert json.loads(json.dumps(state_again)) == json.loads(json.dumps(state))
    with pytest.raises(ValueError, match="was begun for 192 steps, and fit has 240"):
        fit(20, tmp_path / "killed")


@pytest.mark.parametrize("door", DOORS)
def test_what_only_fit_knows_to_be_wrong_is_said_before_a_step(door, digits):
    host = importlib.import_module(door)
    ours = importlib.import_module(f"tf_lamb.{door}")
    schedule = host.optimizers.schedules.CosineDecay(0.1, 10)
    model = model_of(door, host.optimizers.SGD(schedule))
    with pytest.raises(ValueError, match="has a schedule of its own"):
        model.fit(*digits, verbose=0, callbacks=[ours.AutoWarmup()])
    model = model_of(door)
    with pytest.raises(ValueError, match="fit begins at epoch 2, .* and has no state_file"):
        model.fit(*digits, verbose=0, initial_epoch=2, epochs=4, callbacks=[ours.AutoWarmup()])
    with pytest.raises(ValueError, match="how many steps an epoch has"):
        model.fit((d for d in [digits] * 3), verbose=0, epochs=1, callbacks=[ours.AutoWarmup()])
    with pytest.raises(ValueError, match="nothing to draw yet"):
        ours.AutoWarmup().plot()
    assert int(model.optimizer.iterations) == 0


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", ["LAMB", "LARS", "AdamP", "Adam"])
def test_it_drives_every_optimizer(door, name, digits):
    ours = importlib.import_module(f"tf_lamb.{door}")
    host = importlib.import_module(door)
    optimizer = getattr(ours, name, None) or getattr(host.optimizers, name)
    model = model_of(door, optimizer(1e-3))
    warmup = ours.AutoWarmup(1e-5, 1.0, verbose=False)
    model.fit(*digits, batch_size=256, epochs=4, verbose=0, callbacks=[warmup])
    last = warmup.warmup.rate(23)
    assert float(np.asarray(model.optimizer.learning_rate)) == pytest.approx(last, rel=1e-6)


@pytest.mark.parametrize("door", DOORS)
def test_a_loss_of_nan_ends_the_run_where_it_shows(door, digits):
    ours = importlib.import_module(f"tf_lamb.{door}")
    model = model_of(door)
    with pytest.raises(FloatingPointError, match="No loss of the steps 0 to 6 is finite"):
        model.fit(
            digits[0] * np.nan, digits[1], batch_size=256, epochs=4, verbose=0,
            callbacks=[ours.AutoWarmup()],
        )  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.distribute")
def test_the_loss_is_the_mean_over_replicas(door, digits):
    import tensorflow as tf

    ours, points = importlib.import_module(f"tf_lamb.{door}"), {}
    for replicas in (1, 2):
        strategy = tf.distribute.MirroredStrategy(
            [f"CPU:{i}" for i in range(replicas)],
            cross_device_ops=tf.distribute.ReductionToOneDevice(),
        )
        with strategy.scope():
            model = model_of(door)
        warmup = ours.AutoWarmup(1e-3, 1.0, verbose=False)
        model.fit(*digits, batch_size=256, epochs=2, shuffle=False, verbose=0, callbacks=[warmup])
        points[replicas] = warmup.warmup.points
    assert len(points[1]) == 6  # the warmup is half of the training
    np.testing.assert_allclose(points[2], points[1], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "tensorflow", reason="once is enough")
def test_untuned_it_ends_beside_the_best_of_nine_tuned_peaks():
    import keras
    from sklearn.datasets import load_digits

    from tf_lamb import keras as ours

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
    grid = [
        accuracy(ours.schedules.Warmup(warm, ours.schedules.Cosine(10 ** (i / 2), steps - warm)))
        for i in range(-8, 1)
    ]
    assert warmup.warmup.found
    assert warmup.warmup.begin <= steps / 2
    assert max(grid) > 97 > sorted(grid)[4]  # it matters which peak
    assert found >= max(grid) - 1
