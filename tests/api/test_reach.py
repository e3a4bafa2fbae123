"""The short runs of `find_batch`: which are made, and the error where none arrives."""

import contextlib
import functools

import pytest

from tf_lamb.find import batch as finder
from tf_lamb.find import reach
from tf_lamb.find.goodput import steps as counts
from tf_lamb.find.reach import Run
from tf_lamb.find.search_log import SearchLog

pytestmark = pytest.mark.once


class Learner:
    """Trials whose held-out loss is a function of step and rate."""

    def __init__(self, loss):
        self.loss, self.orders = loss, []

    def start_run(self, order=0):
        self.at, self.rate = 0, 0.0
        self.orders.append(order)

    def step(self, rate):
        self.at, self.rate = self.at + 1, max(self.rate, rate)
        return 1.0

    def evaluate_within_run(self):
        return tuple(self.loss(self.at, self.rate) * (1 + 1e-4 * i) for i in range(4))


class InOneOrder(Learner):
    """Trials that learn in the first order of the data alone."""

    def evaluate_within_run(self):
        return (1.0,) * 4 if self.orders[-1] else super().evaluate_within_run()


def short_runs(small, large, base=16, batch=256, length=400, learner=Learner):
    """Those of a loss at the base batch, and of one at a larger batch."""
    trials = {base: learner(small), batch: learner(large)}
    made = reach.make_short_runs(
        lambda batch: contextlib.nullcontext(trials[batch]), 0.1, base, batch, length,
        lambda line: None, SearchLog(None, "find_batch", None, None, {}),
    )  # fmt: skip
    return *made, trials


def falling(step, rate):
    """Fastest at the base's rate."""
    return 1 / (1 + step * min(rate, 0.02 / max(rate, 0.01)))


def at_large(loss):
    """The same for as many examples, at four times the rate."""
    return lambda step, rate: loss(16 * step, rate / 4)


def test_the_best_rate_is_run_in_three_orders_of_the_data():
    _, _, trials = short_runs(falling, at_large(falling))
    assert all({*each.orders} == {0, 1, 2} for each in trials.values())


def test_a_run_that_arrives_before_anybody_looks_is_looked_at_earlier():
    """From a rate that is far too low, runs at better ones arrive long before."""

    def loss(step, rate, by=8):
        return 1 / (1 + 1e-3 * step * (by if 0.15 < rate < 0.3 else 1))

    _, runs, _ = short_runs(loss, at_large(loss))
    best = [run.steps for run in runs if (run.batch, run.rate) == (16, 0.2)]
    assert len(best) == 3 and max(best) < 1.2 * min(best) < 1.5 * 400 / 8
    assert all(run.steps_trained >= run.steps for run in runs if run.steps < float("inf"))
    with pytest.raises(ValueError, match="the baseline's rate of 0.1 is far too low"):
        short_runs(functools.partial(loss, by=64), at_large(loss))


def test_a_run_that_is_past_the_early_loss_at_first_is_looked_at_earlier():
    """At the better rate the early loss, of 100 steps, takes 12; the first evaluation is at 25."""

    def loss(step, rate):
        return 1 / (1 + 1e-3 * step * (8 if 0.15 < rate < 0.3 else 1))

    _, runs, _ = short_runs(loss, at_large(loss))
    early = [run.early_steps for run in runs if (run.batch, run.rate) == (16, 0.2)]
    assert len(early) == 3 and all(10 < steps < 20 for steps in early)


def test_a_run_that_is_given_up_is_told_from_one_that_arrives():
    _, runs, _ = short_runs(falling, at_large(falling), learner=InOneOrder)
    assert all(run.is_given_up == (run.seed > 0) for run in runs)
    given_up = [run for run in runs if run.is_given_up]
    assert {run.batch for run in given_up} == {16, 256}
    assert all(run.steps == run.steps_trained for run in given_up)


def test_a_rate_that_is_given_up_in_an_order_comes_after_one_that_is_not():
    lucky = [Run(256, 0.2, 0, 9.0, 9), Run(256, 0.2, 1, 18.0, 18, is_given_up=True)]
    slower = Run(256, 0.1, 0, 15.0, 15)
    assert reach.runs_at_best_rate([*lucky, slower]) == [slower]
    assert reach.runs_at_best_rate(lucky) == lucky


# Noise scales of 400 and, at the early loss, 200: 160 and 40 steps at batch 16 and its best rates.
BASE = Run(16, 0.1, 0, steps=160.0, steps_trained=200, early_steps=80.0)
SOONER = Run(16, 0.2, 0, steps=170.0, steps_trained=170, early_steps=40.0)
AT_256 = Run(256, 0.4, 0, 160 * (1 + 400 / 256) / 26, 20, early_steps=40 * (1 + 200 / 256) / 13.5)


def test_a_noise_scale_is_that_of_the_best_rates_where_the_baseline_is_at_the_loss():
    own, slope = finder._measured_curve([BASE, SOONER, AT_256], 16, 2000).notes
    assert own.startswith("in the short runs it is 400 (") and " after 2,560 examples" in own
    assert slope.startswith("and 200 after 1,280: ")


def test_of_runs_that_are_given_up_nothing_is_taken_for_an_arrival():
    slower = Run(256, 0.4, 1, 17.0, 17)
    given_up = Run(256, 0.4, 2, 32.0, 32, is_given_up=True)
    curve = finder._fit_best_runs([BASE, AT_256, slower, given_up])
    assert curve.noise == pytest.approx(counts.noise_of_two_runs((16, 160.0), (256, 17.0)))
    assert curve.interval[0] == 0


@pytest.mark.parametrize("base, large, words", [
    (16, 256, "so the noise scale is below 104: pass a smaller one, such as large_batch_size=128"),
    (16, 32, "examples: stay at 16, or look at the rate"),
    (32, 96, "examples: stay at 32, or look at the rate"),
])  # fmt: skip
def test_where_no_run_arrives_the_way_out_is_one(base, large, words):
    with pytest.raises(ValueError, match=f"No run at batch {large} .* 3 times .*{words}"):
        short_runs(falling, lambda step, rate: 1.0, base, large)
