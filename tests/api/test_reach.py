"""The short runs of `find_batch`: which are made, and the error where none arrives."""

import contextlib
import functools

import pytest

from tf_lamb.find import reach
from tf_lamb.find.search_log import SearchLog

pytestmark = pytest.mark.once


class Learner:
    """Trials whose held-out loss is a function of step and rate."""

    def __init__(self, loss):
        self.loss, self.orders = loss, []

    def start(self, order=0):
        self.at, self.rate = 0, 0.0
        self.orders.append(order)

    def step(self, rate):
        self.at, self.rate = self.at + 1, max(self.rate, rate)
        return 1.0

    def look(self):
        return tuple(self.loss(self.at, self.rate) * (1 + 1e-4 * i) for i in range(4))


def short_runs(small, large, base=16, batch=256, length=400):
    """Those of a loss at the base batch, and of one at a larger batch."""
    trials = {base: Learner(small), batch: Learner(large)}
    made = reach.short_runs(
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
    assert all(run.made >= run.steps for run in runs if run.steps < float("inf"))
    with pytest.raises(ValueError, match="the baseline's rate of 0.1 is far too low"):
        short_runs(functools.partial(loss, by=64), at_large(loss))


@pytest.mark.parametrize("base, large, words", [
    (16, 256, "so the noise scale is below 104: pass a smaller one, such as large_batch_size=128"),
    (16, 32, "examples: stay at 16, or look at the rate"),
    (32, 96, "examples: stay at 32, or look at the rate"),
])  # fmt: skip
def test_where_no_run_arrives_the_way_out_is_one(base, large, words):
    with pytest.raises(ValueError, match=f"No run at batch {large} .* 3 times .*{words}"):
        short_runs(falling, lambda step, rate: 1.0, base, large)
