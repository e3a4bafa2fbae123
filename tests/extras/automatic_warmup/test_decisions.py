"""AutoWarmup: the published numbers, the state machine, and what a constructor refuses."""

import json
import math
import sys
import types

import numpy as np
import pytest

from tf_lamb_extras.automatic_warmup import gaussian_process
from tf_lamb_extras.automatic_warmup.callback import AutoWarmup, _of_steps
from tf_lamb_extras.automatic_warmup.decisions import FLOATS, AutoWUState, Settings

pytestmark = pytest.mark.once
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
    warmup = AutoWUState(settings, lambda x, y, tests: [found])
    # The switch comes when the rate has reached 1e-2, as in the published row.
    switched = 1e-5 * (1e-2 / 1e-5) ** found.lowest
    assert switched == pytest.approx(rate, rel=1e-8)
    if probability > 0.95:
        for step, loss in enumerate(losses[:19]):
            warmup.record(step, loss)
        warmup.end_epoch(18)
        assert warmup.peak == pytest.approx(1e-5 * (warmup.settings.warmup(18) / 1e-5) ** lowest)


def authors(settings, epochs, steps, found):
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
    found = [(p, 0.5), (p, 0.6), (p, 0.7), (0.1, 0.8), (0.1, 1)]
    return [gaussian_process.MinimumTest(*t) for t in found]


def run(settings, epochs, steps, found):
    seen = iter(range(epochs))
    warmup = AutoWUState(settings, lambda x, y, tests: found(next(seen)))
    rates = []
    for epoch in range(epochs):
        for step in range(epoch * steps, (epoch + 1) * steps):
            rates.append(warmup.rate(step))
            warmup.record(step, -float(step))
        warmup.end_epoch((epoch + 1) * steps)
    return warmup, rates


@pytest.mark.parametrize("decay", ["cosine", "constant_then_cosine"])
@pytest.mark.parametrize("passes", [True, False])
def test_the_rates_of_a_whole_training_are_the_authors(decay, passes):
    settings = Settings(24 * 7, 1e-4, 2.0, decay=decay, max_warmup_fraction=0.6)
    found = votes_of if passes else lambda epoch: votes_of(0)
    warmup, rates = run(settings, 24, 7, found)
    np.testing.assert_allclose(rates, authors(settings, 24, 7, found), rtol=1e-12)
    # Epochs 7, 8 and 9 are the first three in a row; the tenth begins at step 70.
    assert (warmup.found, warmup.begin) == ((True, 70) if passes else (False, 100))
    assert ("has passed" in str(warmup)) is passes


def epoch_of(warmup, step, losses):
    """One epoch from this step on; what its end says."""
    for at, loss in enumerate(losses, step):
        warmup.record(at, loss)
    return warmup.end_epoch(step + len(losses))


@pytest.mark.parametrize(
    ("probability", "last_epoch", "reason"),
    [
        (1.0, [5.0] * 10, "the loss has passed its minimum"),
        (0.0, [5.0] * 10, "the warmup has come to its end, and the loss is above its lowest"),
        (0.0, [math.nan] * 10, "no loss of an epoch was finite"),
    ],
    ids=["minimum", "longest warmup", "nothing finite"],
)
def test_the_reason_of_a_switch_is_said(probability, last_epoch, reason):
    settings = Settings(100, 1e-4, 1.0, patience=1, max_warmup_fraction=0.2)
    judge = lambda x, y, tests: [gaussian_process.MinimumTest(probability * (len(x) > 10), 0.5)]  # noqa: E731
    warmup = AutoWUState(settings, judge)
    epoch_of(warmup, 0, [4.0] * 10)
    assert epoch_of(warmup, 10, last_epoch)
    assert str(warmup).startswith(f"AutoWarmup: {reason}; after 20 of 100 steps")


@pytest.mark.parametrize("ends", ["surely", "at its longest", "while the loss falls"])
def test_a_decay_that_loses_half_of_the_gain_goes_back_again(ends):
    """The first epoch has losses of 4, the lowest of 2: half is 3."""
    sure, found = ends == "surely", ends != "while the loss falls"
    settings = Settings(200, 1e-4, 1.0, patience=2, max_warmup_fraction=0.5 if sure else 0.24)
    judge = lambda x, y, tests: [gaussian_process.MinimumTest(float(sure and len(x) > 30), 0.5)]  # noqa: E731
    warmup = AutoWUState(settings, judge)
    for step, loss in enumerate([4.0, 3.0, 2.0, 5.0, 5.0] if found else [4.0, 3.8, 3.0, 2.5, 2.0]):
        went_back = epoch_of(warmup, 10 * step, [loss] * 10)
    begin, lowest = (50, 30) if found else (48, 50)
    assert (went_back, warmup.found, warmup.begin, warmup.lowest) == (found, found, begin, lowest)
    # In the middle of all rates so far; half of that at the end of the lowest epoch; the last.
    peak = settings.warmup(25) if sure else settings.warmup(30) / 2 if found else 1.0
    assert warmup.peak == pytest.approx(peak)
    first = warmup.peak
    above, nearly = [3.5] * 10, [3.5] * 9 + [2.9]
    assert not any(epoch_of(warmup, at, losses) for at, losses in ((50, above), (60, nearly)))
    assert not epoch_of(warmup, 70, above)
    assert epoch_of(warmup, 80, [math.nan] * 10)
    half = first / 2
    assert warmup.cuts == [(90, half)]
    assert warmup.rate(89) / warmup.rate(90) == pytest.approx(first / half, rel=0.02)
    assert "goes from" in str(warmup) and warmup.is_lost()
    assert not epoch_of(warmup, 90, above)
    assert epoch_of(warmup, 100, above)  # two more, and another half
    assert warmup.peak_at() == half / 2
    for step, cuts in ((80, 0), (90, 1), (100, 1), (110, 2)):
        again = AutoWUState(settings)
        again.restore(json.loads(json.dumps(warmup.state())), step)
        assert (again.cuts, again.rate(120)) == (
            warmup.cuts[:cuts], again.settings.value(FLOATS, 120.0, begin, again.peak_at())
        )  # fmt: skip
        assert epoch_of(again, step, above) is (step in (80, 100))
    assert not epoch_of(warmup, 110, nearly) and not warmup.is_lost()


def test_losses_that_are_not_finite_are_left_out_and_an_epoch_of_them_ends_the_warmup():
    warmup = AutoWUState(Settings(100), lambda x, y, tests: votes_of(0))
    with pytest.raises(FloatingPointError, match="No loss of the steps 0 to 10 is finite"):
        epoch_of(warmup, 0, [math.nan] * 10)
    epoch_of(warmup, 0, [1.0, math.nan] * 5)
    assert [at for at, _ in warmup.points] == [0, 2, 4, 6, 8]
    warmup.record(12, math.inf)
    with pytest.raises(FloatingPointError, match="No loss of the steps 10 to 20 is finite"):
        warmup.end_epoch(20, is_kept=False)
    assert warmup.end_epoch(20)
    assert (warmup.begin, warmup.lowest) == (20, 10)
    assert warmup.rate(20) == warmup.peak == warmup.settings.warmup(10) / 2
    assert not epoch_of(warmup, 20, [1.0] * 10)


def test_the_lowest_epoch_is_the_one_that_ends_lowest():
    warmup = AutoWUState(Settings(100), lambda x, y, tests: votes_of(0))
    epochs = [9.0, 9, 9, 5], [1.0, 1, 1, 9], [8.0, 8, 8, 3], [4.0] * 4
    for epoch, losses in enumerate(epochs):
        epoch_of(warmup, 4 * epoch, losses)
    assert warmup.lowest == 12  # the second had lower losses, and ended with a high one
    again = AutoWUState(Settings(np.int64(100)))
    again.restore(json.loads(json.dumps(warmup.state())), 16)
    assert again.lowest == 12 and json.dumps(again.state())


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
def test_bad_arguments_are_refused_at_once(told, says):
    with pytest.raises(ValueError, match=says):
        AutoWarmup(**told)


def test_without_its_packages_it_fails_when_it_is_made(monkeypatch):
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install scikit-learn\.$"):
        AutoWarmup()


@pytest.fixture
def lost():
    """A callback whose training ends so, and whose copies of weights are gone."""
    callback = AutoWarmup()
    callback.model = test_the_published_numbers  # any that a weak set can hold
    callback._copies = list
    callback.warmup = types.SimpleNamespace(
        is_lost=lambda: True, halfway=1.25, peak_at=lambda: 0.02
    )
    return callback


def test_a_training_that_ends_lost_is_warned_of(lost):
    with pytest.warns(UserWarning, match="no loss below 1.25.* or with max_learning_rate=0.01"):
        lost.on_train_end()


def test_weights_that_are_gone_are_warned_of(lost):
    with pytest.warns(UserWarning, match="not to the weights of step 4.*max_learning_rate=0.02"):
        assert lost._go_back(4) == ""


X = np.arange(600) / 600
NOISE = np.random.default_rng(0).normal(scale=0.1, size=600)
FALLING, WITH_A_MINIMUM = 3 - 2 * X + NOISE, 1 + 8 * (X - 0.6) ** 2 + NOISE


@pytest.mark.parametrize(
    ("losses", "found"), [(FALLING, 0), (WITH_A_MINIMUM, 5)], ids=["falling", "a minimum"]
)
def test_the_process_finds_a_minimum_under_noise_and_none_where_there_is_none(losses, found):
    tests = gaussian_process.tests(X, losses, 5)
    assert sum(t.probability > 0.95 for t in tests) == found
    assert tests[:1] == gaussian_process.tests(X, losses, 1)


def test_the_minimum_under_noise_is_where_it_is():
    tests = gaussian_process.tests(X, WITH_A_MINIMUM, 5)
    assert [t.lowest for t in tests] == pytest.approx([0.6] * 5, abs=0.05)


def test_the_prior_has_the_noise():
    """It is the most probable one: scikit-learn's own likelihood falls to all sides."""
    prior = gaussian_process.fitted(X[:100], WITH_A_MINIMUM[:100])
    assert 0.05**2 < prior.noise < 0.2**2


def test_means_that_come_in_any_order_give_each_step_its_loss():
    losses = [3.0, 1.0, 2.0, 6.0]
    means = [(i + 1, np.float32(np.mean(losses[: i + 1]))) for i in range(4)]
    found = list(_of_steps([means[2], means[0], means[3], means[1]]))
    assert [step for step, _ in found] == [0, 1, 2, 3]
    assert [loss for _, loss in found] == pytest.approx(losses)


@pytest.mark.parametrize("spike", [1e5, 1e8, 1e17])
def test_a_loss_behind_a_spike_is_never_taken_for_a_low_one(spike):
    """An epoch that ended at chance, and in NaN, was the lowest, and was gone back to."""
    losses, total, means = [2.0, spike, *[2.3] * 40, math.nan], np.float32(0), []
    for i, loss in enumerate(losses):
        total += np.float32(loss)
        means.append((i + 1, total / np.float32(i + 1)))
    found = [loss for _, loss in _of_steps(means)]
    assert found[:2] == pytest.approx([2.0, spike])
    assert min(found[2:-1]) > 1.0
    assert math.isnan(found[-1])
