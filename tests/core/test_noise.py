"""Gradient noise and AdaScale's gain: the arithmetic, against the worked numbers of the papers."""

import itertools
import math

import numpy as np
import pytest

from tf_lamb.core import noise

X = np.array([[1, 2], [-1, 0.5], [0.5, -1.5], [2, 1]])
Y = np.array([[1, 0], [0, 1], [-1, 0.5], [0.5, 2]])
FAR = np.array([2, -1.5])  # what the examples add to the target, so that there is a signal


class Problem:
    """The toy problem of the worked examples: one example of a linear regression a replica."""

    def __init__(self):
        self.w = np.array([[0.5, -0.3], [0.2, 0.8]])
        self.b = np.array([0.1, -0.2])
        self.target = Y + FAR

    def gradients(self):
        error = X @ self.w + self.b - self.target
        return np.concatenate([(X[:, :, None] * error[:, None]).reshape(4, 4), error], axis=1)

    def squares(self):
        g = self.gradients()
        return (g**2).sum(1).mean(), (g.mean(0) ** 2).sum()

    def step(self, lr):
        g = self.gradients().mean(0)
        self.w, self.b = self.w - lr * g[:4].reshape(2, 2), self.b - lr * g[4:]


NOTHING = noise.Averages(0.0, 0.0, 0)
close = {"rel": 5e-10, "abs": 0}  # ten digits are printed


def of_base(local, total, parts):
    """The moments where each part is a base batch, whose variance is so many times as large."""
    variance, signal = noise.moments(local, total, parts=parts)
    return parts * variance, signal


# Variance and signal of each step, the gain, and tau after it.
ADASCALE = [
    (21.406875, 1.860625, 1, 1),
    (16.28387544, 0.3010148519, 3.440198874, 4.440198874),
    (8.635906346, -1.295126768, 3.528139701, 7.968338575),
]


def test_adascale_step_by_step():
    problem, averages, tau = Problem(), NOTHING, 0.0
    for variance, signal, r, tau_after in ADASCALE:
        seen = noise.moments(*problem.squares(), parts=4)
        assert (4 * seen[0], seen[1]) == pytest.approx((variance, signal), **close)
        averages, gain = noise.next_averages_and_gain(np, averages, *seen, scale=4, count_step=True)
        assert gain == pytest.approx(r, **close)
        problem.step(gain * (0.1 if math.floor(tau) < 2 else 0.05))
        tau += gain
        assert tau == pytest.approx(tau_after, **close)
    np.testing.assert_allclose(problem.b, [0.8415117672, -0.4574066886], rtol=5e-10)


def test_the_noise_scale_step_by_step():
    problem, averages = Problem(), NOTHING
    for signal, variance, scale in (
        (1.860625, 21.406875, 11.50520658),
        (0.3010148519, 16.28387544, 17.99477146),
        (-0.4941241991, 13.18189148, 35.18740507),
    ):
        seen = noise.moments(*problem.squares(), parts=4)
        assert (4 * seen[0], seen[1]) == pytest.approx((variance, signal), rel=1e-9)
        averages = noise.next_averages(np, averages, *seen, theta=0.9)
        found = noise.noise_scale(averages.variance, averages.signal, 4)
        assert found == pytest.approx(scale, **close)
        problem.step(0.1)


@pytest.mark.parametrize("signal", [0.0, -0.1])
def test_no_signal_gives_a_sentence_and_no_division(signal):
    assert math.isnan(noise.noise_scale(1.0, signal, 4))
    assert "undefined" in noise.advice_text(math.nan, 256)


@pytest.mark.parametrize(
    ("batch", "steps", "examples"), [(500, 5000, 2.5e6), (2000, 2000, 4e6), (8000, 1250, 1e7)]
)
def test_the_cost_of_a_batch(batch, steps, examples):
    """Of at least 1,000 steps and 2,000,000 examples, at a critical batch of 2,000."""
    over_steps, over_examples = noise.relative_cost(2000, batch)
    assert over_steps * 1000 == pytest.approx(steps)
    assert over_examples * 2e6 == pytest.approx(examples)


@pytest.mark.parametrize("critical", [0.0, -1e-9])
def test_equal_gradients_give_an_advice_without_numbers(critical):
    """Nothing is divided by the noise that was not measured."""
    run = [noise.Averages(critical, 4.0, float(count)) for count in (10, 20, 30, 40, 500)]
    assert math.isnan(noise.standard_error(run, 0.99))
    assert noise.precision_text(run, 0.99) == ""
    assert noise.noise_scale(critical, 4.0, 32) == 8 * critical
    assert noise.advice_text(8 * critical, 32).startswith(
        "No noise was measured: the parts of a batch"
    )


@pytest.mark.parametrize(
    ("inputs", "r"),
    [
        # d loss/d W = x for each output, d loss/d b = 1. |g_i|^2 = 2 (1 + 1), |g|^2 = 2 (1/2 + 1):
        # sigma^2 = 2 (4 - 3) = 2, mu^2 = 2 3 - 4 = 2, r = (2 + 2)/(2/2 + 2).
        ([[1, 0], [0, 1]], 4 / 3),
        # Both the same: no variance, but for the least that is counted.
        ([[1, 1], [1, 1]], (1e-6 + 6) / (0.5e-6 + 6)),
        # The parts of W cancel: sigma^2 = 2 (6 - 2) = 8 and mu^2 = 2 2 - 6 < 0, so r = S.
        ([[-1, 1], [1, -1]], 2),
        ([[1, 4], [5, 0.5]], 1.468879668),
        ([[-0.2, 3], [5, 0.5]], 1.847289387),
    ],
)
def test_gains_that_can_be_worked_out_by_hand(inputs, r):
    g = np.array([[*x, *x, 1, 1] for x in inputs])
    local, total = (g**2).sum(1).mean(), (g.mean(0) ** 2).sum()
    seen = noise.clip_moments(np, *of_base(local, total, 2))
    averages = noise.next_averages(np, NOTHING, *seen, theta=noise.smoothing(2))
    assert noise.gain(np, averages, 2) == pytest.approx(r, rel=1e-9)


def drawn(steps, every, theta, runs=400, dimensions=30, part=16, parts=4, scale=100.0, shared=1):
    """Readings of so many runs at once, of gradients with |G|^2 = 1 and this noise scale."""
    rng, averages, readings = np.random.default_rng(1), NOTHING, []
    for step in range(1, steps + 1):
        if step % shared == 1 or shared == 1:  # else as the step before
            g = rng.normal(size=(runs, parts, dimensions)) * math.sqrt(scale / dimensions / part)
            g[..., 0] += 1.0
            local, total = (g**2).sum(-1).mean(-1), (g.mean(-2) ** 2).sum(-1)
            seen = noise.moments(local, total, parts=parts)
        averages = noise.next_averages(np, averages, *seen, theta=theta)
        if step % every == 0:
            readings.append(averages)
    zero = noise.Averages(0.0, 0.0, 0)
    return [[zero, *(noise.Averages(v, m, each.count) for each in readings for v, m in
             [(each.variance[i], each.signal[i])])] for i in range(runs)]  # fmt: skip


@pytest.mark.parametrize(("every", "shared"), [(1, 1), (10, 1), (20, 1), (10, 5)])
def test_the_standard_error_is_the_scatter_of_runs(every, shared):
    """400 runs; where five steps share a gradient, blocks of ten know it."""
    runs = drawn(400, every, 0.99, shared=shared)
    scales = [noise.noise_scale(*run[-1][:2], 64) for run in runs]
    errors = [noise.standard_error(run, 0.99) for run in runs]
    assert np.mean(scales) == pytest.approx(100, rel=0.05)
    assert np.median(errors) == pytest.approx(np.std(scales) / 100, rel=0.15)


@pytest.mark.parametrize("read", [60, 150])
def test_a_reader_that_began_late_knows_the_standard_error(read):
    """As after a restore: of 400 steps the last ones alone were read."""
    runs = drawn(400, 5, 0.99)
    scales = [noise.noise_scale(*run[-1][:2], 64) for run in runs]
    errors = [noise.standard_error(run[-1 - read // 5 :], 0.99) for run in runs]
    assert np.median(errors) == pytest.approx(np.std(scales) / 100, rel=0.2)


@pytest.mark.parametrize("steps", [60, 400])
def test_the_updates_for_an_error_bring_it(steps):
    """The average over that many has it, whether the averages were full or not."""
    errors = [noise.standard_error(run, 0.99) for run in drawn(steps, 5, 0.99)]
    updates = noise.updates_for_error(0.05, np.median(errors), 0.99, steps)
    theta = (updates - 1) / (updates + 1)
    fewer = [noise.standard_error(run, theta) for run in drawn(4 * updates, 20, theta, 100)]
    assert np.median(fewer) == pytest.approx(0.05, rel=0.2)


def test_too_few_blocks_have_no_error():
    (run,) = drawn(400, 100, 0.99, runs=1)
    assert math.isnan(noise.standard_error(run, 0.99))  # two in effect
    assert math.isnan(noise.standard_error([], 0.99))
    (run,) = drawn(400, 10, 0.99, runs=1)
    assert math.isnan(noise.standard_error([*run[:-1], run[-1]._replace(signal=-1.0)], 0.99))
    again = [*run, run[-1]]  # a reading without a step in between
    assert noise.standard_error(again, 0.99) == pytest.approx(noise.standard_error(run, 0.99))


def test_advice_says_how_precise_it_is():
    (run,) = drawn(200, 2, 0.95, runs=1)
    error = noise.standard_error(run, 0.95)
    updates = noise.updates_for_error(0.1, error, 0.95, 200)
    assert 39 < updates == math.ceil(39 * (error / 0.1) ** 2)
    said = noise.advice_text(100, 64, noise.precision_text(run, 0.95))
    assert f"about 100 (standard error {error:.0%}; 10% takes an average over {updates} upd" in said
    (run,) = drawn(400, 10, 0.99, runs=1)
    assert (
        noise.precision_text(run, 0.99)
        == f" (standard error {noise.standard_error(run, 0.99):.0%})"
    )
    assert noise.precision_text(run[:2], 0.99) == ""


def test_advice_names_a_better_batch():
    assert "Batch 2,048 would need" in noise.advice_text(2000, 256)
    assert "fewer steps at 1.8x the examples" in noise.advice_text(2000, 256)
    assert "fewer examples" in noise.advice_text(2000, 65536)
    assert "balance" in noise.advice_text(2000, 2048)


@pytest.mark.parametrize("mean_first", [True, False])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_step_that_is_not_finite_changes_no_average(mean_first, bad):
    before = noise.next_averages(np, NOTHING, 2.0, 3.0, theta=0.9, mean_first=mean_first)
    after = noise.next_averages(np, before, bad, 3.0, theta=0.9, mean_first=mean_first)
    assert after == before


def test_the_plain_mean_until_the_memory_is_full():
    theta, averages, seen = 0.75, NOTHING, [3.0, 1.0, 4.0, 1.0, 5.0, 9.0]
    for value in seen[:4]:
        averages = noise.next_averages(np, averages, value, 1.0, theta=theta, mean_first=True)
    assert averages.variance == pytest.approx(np.mean(seen[:4]))
    averages = noise.next_averages(np, averages, seen[4], 1.0, theta=theta, mean_first=True)
    assert averages.variance == pytest.approx(0.75 * np.mean(seen[:4]) + 0.25 * seen[4])


def test_an_average_without_bias_of_what_stays_the_same_is_that():
    averages = NOTHING
    for count in (1, 2, 3):
        averages = noise.next_averages(np, averages, 3.0, 2.0, theta=0.9)
        assert averages == pytest.approx((3.0, 2.0, count))


def test_a_scale_of_1000_remembers_nothing():
    averages = NOTHING
    for value in (3.0, 5.0):
        averages = noise.next_averages(
            np, averages, value, 1.0, theta=noise.smoothing(1000), mean_first=True
        )
        assert averages.variance == value


def test_the_gain_lies_between_1_and_the_scale():
    values = [0.0, 1e-6, 1.0, 1e6]
    outside = {}
    for variance, signal, scale in itertools.product(values, values, [1, 2, 1000]):
        r = noise.gain(np, noise.Averages(variance, signal, 5), scale)
        if not 1 <= r <= scale * (1 + 1e-12):
            outside[variance, signal, scale] = r
    assert outside == {}
