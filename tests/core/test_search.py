"""Which rate is best, by short runs whose truth is known."""

import dataclasses
import math
import random

import pytest

from tf_lamb.find import search
from tf_lamb.find.search import Trial

TOTAL, BEST = 4000, 0.03


def trials_of(rates, steps, *, width=1.0, noise=0.0, seed=0):
    """Losses that rise with the square of the distance from the best rate of this length."""
    draw = random.Random(seed)
    shared = [draw.gauss(0, 0.05) for _ in range(16)]  # blocks differ, the same for every rate
    found = []
    for rate in rates:
        tried = search.short_run_rate(rate, steps, TOTAL)
        octaves = math.log2(tried / search.short_run_rate(BEST, steps, TOTAL)) / width
        losses = tuple(1 + 0.05 * octaves**2 + s + draw.gauss(0, noise) for s in shared)
        found.append(Trial("LAMB", rate, tried, steps, losses))
    return found


def searched(start, **truth):
    """The rate and its interval, of both rungs, as `find_rate` makes them."""
    return answered(start, lambda rate, steps: trials_of([rate], steps, **truth)[0])


def rung(run, start, factor, steps, most, best=None):
    """The trials of one."""
    made = []
    while (rate := search.next_rate(made, start, factor, most, best)) is not None:
        made.append(run(rate, steps))
    return made


def answered(start, run):
    """Likewise, where `run` gives the trial of a rate and a length."""
    short, long = search.rung_lengths(TOTAL, 1, 0.5)
    made = rung(run, start, search.COARSE_FACTOR, short, search.MAX_FIRST_RUNS)
    first = search.find_plateau(made)
    best = first.best.rate
    at = start if search.is_start_kept(made[0], first.best) else best
    longer = rung(run, at, search.second_rung_factor(first), long, search.MAX_SECOND_RUNS, best)
    assert any(trial.rate == best for trial in longer)
    second = search.find_plateau(longer)
    return search.decide_rate(first, second, None)[0], search.rate_interval(first, second)


@pytest.mark.parametrize("start", [0.004, 0.03, 0.2])
@pytest.mark.parametrize("width", [0.7, 1.0, 2.0])
def test_a_planted_best_rate_is_found_within_a_tenth(start, width):
    rate, (low, high) = searched(start, width=width)
    assert rate == pytest.approx(BEST, rel=0.1)
    assert low < rate < high and high / low < 8


def test_two_seeds_agree_within_a_factor_of_two():
    found = [searched(0.01, noise=0.01, seed=seed)[0] for seed in range(100)]
    apart = [max(pair) / min(pair) for pair in zip(found[::2], found[1::2], strict=True)]
    assert sum(ratio <= 2 for ratio in apart) >= 0.95 * len(apart)


@pytest.mark.parametrize("most", [3, 4])
@pytest.mark.parametrize("best", [0.01 / 64, 0.01 / 4, 0.01, 0.04, 0.64])
def test_the_best_of_the_short_runs_is_made_longer(best, most):
    """After the start; then rates on both sides of the best so far, while there are runs left."""
    made = rung(lambda rate, steps: trials_of([rate], steps)[0], 0.01, 2.0, 400, most, best)
    rates, begun = [trial.rate for trial in made], list(dict.fromkeys([0.01, best]))
    assert rates[: len(begun)] == begun and len(rates) <= most
    lowest = min(made[: len(begun)], key=lambda trial: trial.loss).rate
    nearest = min(rates[len(begun) :], key=lambda rate: abs(math.log(rate / lowest)))
    assert nearest == pytest.approx(2 * lowest) or nearest == pytest.approx(lowest / 2)
    if len(rates) < most:
        assert search.find_plateau(made).open_edges == ()


@pytest.mark.parametrize("baseline", [None, 0.02])
def test_longer_runs_that_end_above_shorter_ones_decide_nothing(baseline):
    first = search.find_plateau(trials_of([BEST / 4, BEST, BEST * 4], 100))
    low, level, high = (
        search.find_plateau([dataclasses.replace(t, losses=tuple(each + by for each in t.losses))
                        for t in trials_of([BEST / 2, BEST, BEST * 2], 400)])
        for by in (-0.01, 0.004, 0.01)
    )  # fmt: skip
    assert (
        search.decide_rate(first, low, baseline)[0]
        == search.decide_rate(first, level, baseline)[0]
        > 0
    )
    rate, why = search.decide_rate(first, high, baseline)
    assert rate is None and "longer runs ended at 1.0" in why and "above the " in why


def test_an_interval_is_half_the_way_to_what_is_worse():
    """And where no longer run was worse, as far as what was in the shorter ones."""
    first = search.find_plateau(trials_of([BEST / 16, BEST, BEST * 16], 100))
    second = search.find_plateau(trials_of([BEST / 4, BEST, BEST * 2], 400))
    assert search.rate_interval(first, second) == pytest.approx((BEST / 2, BEST * math.sqrt(2)))
    open_ended = search.find_plateau(trials_of([BEST / 4, BEST], 400))
    assert search.rate_interval(first, open_ended) == pytest.approx((BEST / 2, BEST * 16))
    single = search.find_plateau(trials_of([BEST], 400))
    assert search.rate_interval(single, single) == (BEST, BEST)


def test_an_edge_is_no_answer():
    trials = trials_of([BEST / 64, BEST / 16, BEST / 4], 400)
    found = search.find_plateau(trials)
    assert found.open_edges == ("upper",)
    rate, why = search.decide_rate(found, found, None)
    assert rate is None and "upper edge" in why


def test_rates_that_cannot_be_told_apart_are_no_answer():
    found = search.find_plateau(trials_of([0.01, 0.03, 0.1], 400, width=1e3))
    assert search.decide_rate(found, found, None)[0] is None


def test_a_baseline_that_is_as_good_is_kept():
    found = search.find_plateau(trials_of([BEST / 2, BEST, BEST * 2], 400, width=10))
    assert search.decide_rate(found, found, 0.02)[0] == 0.02
    found = search.find_plateau(trials_of([BEST / 4, BEST, BEST * 4], 400))
    assert search.decide_rate(found, found, 0.005)[0] != 0.005


def test_a_lost_run_is_never_level_nor_best():
    lost = Trial("LAMB", 0.01, 0.02, 400, ())
    trials = [lost, *trials_of([0.03, 0.1], 400, width=1e3)]
    assert search.find_plateau(trials).best is not lost
    assert search.find_plateau(trials).open_edges == ("upper",)
    assert search.find_plateau([lost]) is None
    assert search.next_rate([lost], 0.01, 4.0, 5) == pytest.approx(0.04)


def test_where_every_run_is_lost_the_search_goes_down():
    lost = [Trial("LAMB", rate, rate, 400, ()) for rate in (0.1, 0.4, 0.025)]
    assert search.next_rate(lost, 0.1, 4.0, 5) == pytest.approx(0.025 / 4)


def test_the_best_between_two_that_were_lost_is_kept():
    lost = [Trial("LAMB", rate, rate, 8, ()) for rate in (0.25, 4.0)]
    best = Trial("LAMB", 1.0, 1.0, 8, (1.0,) * 16)
    assert search.find_plateau([lost[0], best, lost[1]]).best is best


@pytest.mark.parametrize("total", [500, 4000, 10**6])
@pytest.mark.parametrize("optimizers", [1, 2, 4])
@pytest.mark.parametrize("budget", [0.1, 0.5, 3.0])
@pytest.mark.parametrize("averaging_updates", [0, 16])
def test_a_search_stays_in_its_budget(total, optimizers, budget, averaging_updates):
    lengths = search.rung_lengths(total, optimizers, budget, averaging_updates)
    assert lengths[1] == search.RUNG_FACTOR * lengths[0] <= total
    most = search.max_steps(lengths, optimizers, averaging_updates)
    assert most <= budget * total or lengths == (0, 0)


@pytest.mark.parametrize("total", [40, 147, 700, 5000])
@pytest.mark.parametrize("optimizers", [1, 3])
@pytest.mark.parametrize("averaging_updates", [0, 1, 16])
def test_the_least_budget_is_enough(total, optimizers, averaging_updates):
    budget = search.min_budget(total, optimizers, averaging_updates)
    enough = search.rung_lengths(total, optimizers, budget, averaging_updates)[0]
    less = search.rung_lengths(total, optimizers, 0.8 * budget, averaging_updates)[0]
    assert less < search.MIN_RUNG_STEPS <= enough


def test_a_paired_difference_is_told_where_the_losses_alone_would_not():
    """Blocks that differ by .05 do not hide a difference of .02 that every block has."""
    (best, worse) = trials_of([BEST, BEST], 400)
    worse = Trial("LAMB", 1.0, 1.0, 400, tuple(loss + 0.02 for loss in worse.losses))
    assert not search.is_level(worse, best)


def test_of_optimizers_that_are_level_the_first_is_taken():
    def trial(name, mean):
        return Trial(name, 0.1, 0.1, 8, tuple(mean + 0.1 * i for i in range(16)))

    best = {name: trial(name, mean) for name, mean in (("A", 1.2), ("B", 1.004), ("C", 1.0))}
    assert search.choose_optimizer(best) == ("B", "level with C, and named before it")
    assert search.choose_optimizer({"C": best["C"], "B": best["B"]}) == (
        "C",
        "the lowest held-out loss",
    )


def test_of_two_runs_at_one_rate_the_better_counts():
    trials = trials_of([0.015, 0.03, 0.06], 100)
    worse = Trial("LAMB", 0.03, trials[1].peak_rate, 100, tuple(x + 1 for x in trials[1].losses))
    assert search.find_plateau([*trials, worse]) == search.find_plateau([worse, *trials])
    assert search.find_plateau([*trials, worse]) == search.find_plateau(trials)
