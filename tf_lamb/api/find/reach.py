"""Steps to a loss, of short runs at a constant rate."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from tf_lamb.api.find.search_log import SearchLog
from tf_lamb.api.find.trials import NO_TEST_STEP, Trials
from tf_lamb.core import search

RATES = 5  # that are tried at a batch, at most
SEEDS = 3  # orders of the data, of the best rate
MORE = 4  # runs of them, at most, until one rate is the best by all its seeds
FARTHER = 3  # times the examples of the baseline's run, after which a run is given up
GIVEN_UP = 2  # times the steps of the best, after which another order of the data is
WARMUP = 0.05  # of the baseline's run, in examples
LOOKS = 1.15  # from one evaluation to the next, in steps
LAST = 3  # evaluations, whose mean is compared: their lag is the same at every batch
EARLY = 4  # times before the first step at which the target may be reached, evaluations begin
LEAST_STEPS = 4  # at the large batch, where nothing bends
# Runs and evaluations of each, about where the first rates are the best, and at most.
LOOKED = ((2 * (2 + SEEDS), 11), (2 * (RATES + MORE), 20))


@dataclasses.dataclass(frozen=True)
class Run:
    """A short run to the target."""

    batch: int
    rate: float
    seed: int
    steps: float  # to the target, between two evaluations; infinite where it did not arrive
    made: int  # steps in all
    loss: float = math.inf  # the mean of its last ones


Losses = dict[int, tuple[float, ...]]  # step -> those of the held-out blocks


def losses(
    trials: Trials, rate: float, steps: int, warm: float, first: float, target: float = -math.inf,
    order: int = 0,
) -> Losses:  # fmt: skip
    """Held-out losses of a run to the target; the first evaluation is at step `first`."""
    trials.start(order)
    seen, look = {0: trials.look()}, first
    for step in range(1, steps + 1):
        if not math.isfinite(trials.step(rate * min(1.0, step / max(1.0, warm)))):
            break
        if step >= look or step == steps:
            if not (here := trials.look()):
                break
            seen[step] = here
            if crossing(seen, target) < math.inf:
                break
            look = max(step + 1, step * LOOKS)
    return seen


def means(seen: Losses) -> list[tuple[int, float]]:
    """(step, mean of the last losses up to it), without the start."""
    steps, each = zip(*((at, statistics.fmean(losses)) for at, losses in seen.items()), strict=True)
    return [
        (steps[i], statistics.fmean(each[i + 1 - LAST : i + 1])) for i in range(LAST, len(each))
    ]


def crossing(seen: Losses, target: float) -> float:
    """The step at which `means` first are the target; infinite where they never are."""
    found = means(seen)
    if found and found[0][1] <= target:
        return found[0][0]
    for (a, above), (b, below) in itertools.pairwise(found):
        if below <= target < above:
            return a + (b - a) * (above - target) / (above - below)
    return math.inf


def learned(seen: Losses) -> bool:
    """Whether the last loss can be told from the first."""
    ends = [search.Trial("", 0.0, 0.0, 0, seen[at]) for at in (min(seen), max(seen))]
    return not search.is_level(*ends) and ends[1].loss < ends[0].loss


def fastest(run: Callable[[float, float], Run], start: float) -> list[Run]:
    """Runs at rates twice apart, from `start` to beyond the one of the fewest steps."""
    made: dict[float, Run] = {}
    rate = start
    while len(made) < RATES:
        least = min((each.steps for each in made.values()), default=math.inf)
        made[rate] = run(rate, least)
        best = min(made.values(), key=lambda each: (each.steps, each.loss)).rate
        left = [each for each in (2 * best, best / 2) if each not in made]
        if not left:
            break
        rate = left[0]
    return list(made.values())


def examples(base: int, length: int) -> tuple[int, int]:
    """About how many `short_runs` train on where the first rates are the best, and at most."""
    run = base * length
    return 2 * run * (2 + SEEDS), run * (1 + FARTHER) * (RATES + MORE * GIVEN_UP)


def short_runs(
    begin: Callable[[int], AbstractContextManager[Trials]], rate: float, base: int, large: int,
    length: int, say: Callable[[str], None], log: SearchLog,
) -> tuple[float, list[Run]]:  # fmt: skip
    """The target, and runs to it at two batches; raises where there is nothing to compare.

    `begin` gives the trials of a batch, with an optimizer. The first run, of `length` steps at the
    base batch and the rate that was tuned there, sets the target.
    """
    warm = WARMUP * length * base
    with begin(base) as trials:
        seen = _losses(log, base, trials, rate, length, warm / base, length / EARLY)
        if len(seen) > len(set(seen.values())) == 1:
            raise ValueError(f"The baseline ends at the losses that it begins with, {NO_TEST_STEP}")
        if max(seen) < length:
            why = trials.data.not_finite() or "all data are finite, so that the rate is too high"
            raise ValueError(
                f"The loss of the baseline is not finite in {length:,} steps at batch {base:,} and "
                f"rate {rate:.3g}: {why}."
            )
        if not learned(seen):
            raise ValueError(
                f"The model learns nothing in {length:,} steps at batch {base:,} and rate "
                f"{rate:.3g}, so that there is no loss to reach: look at the baseline first, or "
                "pass noise_scale=."
            )
        target = means(seen)[-1][1]
        first = Run(base, rate, 0, crossing(seen, target), length)
        runs = _runs_at(trials, base, rate, target, warm, length, first.steps, say, log, first)
    best = best_of(runs)
    steps = mean_steps(best) * base / large
    if FARTHER * steps < LAST:
        raise ValueError(
            f"Batch {base:,} reaches the loss in {mean_steps(best):,.0f} steps at rate "
            f"{best[0].rate:.3g}, too few to compare with batch {large:,}: the baseline's rate of "
            f"{rate:.3g} is far too low. Tune it with find_rate first."
        )
    with begin(large) as trials:
        start = rate * math.sqrt(large / base)
        more = _runs_at(trials, large, start, target, warm, FARTHER * steps, steps, say, log)
    if not best_of(more):
        below, smaller = (large - FARTHER * base) / (FARTHER - 1), large // 2
        way = f"stay at {base:,}, or look at the rate"
        if smaller >= 2 * base:
            way = f"pass a smaller one, such as large_batch_size={smaller}, or stay at {base:,}"
        raise ValueError(
            f"No run at batch {large:,} reaches the loss of the baseline's in {FARTHER} times its "
            + (f"examples, so the noise scale is below {below:,.0f}" if below > 0 else "examples")
            + f": {way}."
        )
    return target, runs + more


def best_of(runs: Iterable[Run]) -> list[Run]:
    """Runs at the rate with the lowest geometric mean of steps; empty if none arrived."""
    rates: dict[float, list[Run]] = {}
    for run in runs:
        if run.steps < math.inf:
            rates.setdefault(run.rate, []).append(run)
    return min(rates.values(), key=mean_steps, default=[])


def mean_steps(runs: Iterable[Run]) -> float:
    """Their geometric mean."""
    return statistics.geometric_mean(run.steps for run in runs)


def of_best_rates(runs: Iterable[Run]) -> dict[int, list[Run]]:
    """batch -> `best_of` it."""
    by_batch: dict[int, list[Run]] = {}
    for run in runs:
        by_batch.setdefault(run.batch, []).append(run)
    return {batch: best_of(each) for batch, each in by_batch.items()}


def _losses(log, batch, trials, *how):
    """`losses`, which may have been seen before the search was killed."""
    made = log.cached(
        [batch, *how], lambda: list(losses(trials, *how).items()),
        known=lambda made: trials.tell(made[-1][0] * batch),
    )  # fmt: skip
    return {step: tuple(each) for step, each in made}


def _runs_at(trials, batch, start, target, warm, most, least, say, log, first=None):
    """Runs at one batch: several rates, and the best with other orders of the data."""

    arrived: list[Run] = []

    def run(rate, given_up, seed=0):
        done = tried(rate, given_up, seed)
        arrived.extend([done] if done.steps < math.inf else [])
        return done

    def tried(rate, given_up, seed):
        if first is not None and (rate, seed) == (first.rate, 0):
            return first
        limit = math.ceil(given_up if seed else min(most, given_up))
        first_look, made = min(least, limit) / EARLY, 0
        while True:
            how = rate, limit, warm / batch, first_look, target, seed
            seen = _losses(log, batch, trials, *how)
            steps, made, ends = crossing(seen, target), made + max(seen), means(seen)
            if first_look <= 1 or not ends or steps > ends[0][0]:
                break
            first_look /= EARLY  # it was there before anybody looked
        lost = steps == math.inf and max(seen) < limit
        if (
            lost
            and any(each.rate >= rate for each in arrived)
            and (why := trials.data.not_finite())
        ):
            raise ValueError(f"The loss is not finite at batch {batch:,}, rate {rate:.3g}: {why}.")
        if seed:  # the best rate; given up, it counts as if it had arrived
            steps = min(steps, limit)
        reached = f"{steps:,.1f} steps" if steps < math.inf else f"not in {made:,} steps"
        say(f"batch {batch:,}, rate {rate:.3g}: {reached}")
        return Run(batch, rate, seed, steps, made, ends[-1][1] if ends else math.inf)

    runs = fastest(run, start)
    for _ in range(MORE):
        best = best_of(runs)
        if not best or len(best) == SEEDS:
            break
        runs.append(run(best[0].rate, GIVEN_UP * mean_steps(best), len(best)))
    return runs
