"""Which of the rates that were tried is best, and what that says of a longer run.

A search has two rungs, which are small complete runs: all candidates in the first, the best few at
four times the length in the second. The best rate falls as steps^-0.3, so a candidate for the real
run of T steps is tried in a run of L steps at (T/L)^0.3 times its rate. Here `rate` is always the
candidate's, for the real run.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

LONGER = 4  # times the steps of the first rung
SLOPE = 0.3  # arXiv 2409.19913 and others: .28 to .4
FIRST, SECOND = 5, 4  # runs of an optimizer on a rung, at most
COARSE, FINE = 4.0, 2.0  # the factor between the rates of the first rung, the least of the second
SURE = 2.0  # standard errors
CLEAR = 3.0  # times what is level
TOLERANCE = 0.005  # of the loss: what is within it is level
LEAST_STEPS = 8  # of a run on the first rung
SHORTEST = LEAST_STEPS * LONGER  # run that can be searched
WARMUP = 0.2  # of a short run: a few steps of warmup are less than a real run has
COOLDOWN = 0.2  # of a short run at a constant rate, whose last loss would be mostly noise
LEAN = 2 / 3  # of the way up a wide plateau: short runs prefer lower rates than long ones
FINALISTS = 2  # optimizers on the second rung


@dataclasses.dataclass(frozen=True)
class Trial:
    """A short run and how it ended."""

    optimizer: str  # its name
    rate: float  # the candidate for the real run
    tried: float  # the rate that the short run had
    steps: int
    losses: tuple[float, ...]  # on blocks of the held-out examples; empty: it was lost

    @property
    def loss(self) -> float:
        """Mean held-out loss; infinite of a run that was lost."""
        return statistics.fmean(self.losses) if self.losses else math.inf


def rungs(
    total: int, optimizers: int, budget: float, averaging_updates: int = 0
) -> tuple[int, int]:
    """Steps of a run on each rung, so that the search takes `budget` of `total` steps at most."""
    left = max(0.0, round(budget * total, 6) - most_steps((0, 0), optimizers, averaging_updates))
    first = min(int(left / most_steps((1, LONGER), optimizers)), total // LONGER)
    return first, first * LONGER


def least_budget(total: int, optimizers: int, averaging_updates: int = 0) -> float:
    """The smallest budget with which a search can be begun."""
    least = most_steps((LEAST_STEPS, SHORTEST), optimizers, averaging_updates)
    return math.ceil(100 * least / total) / 100


def most_steps(lengths: tuple[int, int], optimizers: int, averaging_updates: int = 0) -> int:
    """The most steps that a search takes; every run takes `averaging_updates` besides."""
    first, second = (averaging_updates + each for each in lengths)
    every = first * FIRST * optimizers + second * SECOND * min(optimizers, FINALISTS)
    return every + (averaging_updates > 0)


def short_run_rate(rate: float, steps: int, total: int) -> float:
    """The rate of a short run that stands for `rate` in the real one."""
    return rate * (total / steps) ** SLOPE


def gap_and_tolerance(trial: Trial, best: Trial) -> tuple[float, float]:
    """How far its loss is above the best, and how far it may be and still be level.

    Level is a mean of the paired differences of the blocks within two standard errors, or within
    0.5% of the best loss.
    """
    if not trial.losses:
        return math.inf, 0.0
    differences = [a - b for a, b in zip(trial.losses, best.losses, strict=True)]
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return statistics.fmean(differences), max(SURE * error, TOLERANCE * abs(best.loss))


def is_level(trial: Trial, best: Trial) -> bool:
    """Whether it cannot be told from the best; see `gap_and_tolerance`."""
    difference, allowed = gap_and_tolerance(trial, best)
    return difference <= allowed


@dataclasses.dataclass(frozen=True)
class Plateau:
    """The rates around the best that cannot be told from it.

    The middle is between the ends, in logs; two thirds of the way up where they are more than a
    factor of four apart; where a single trial is level, at the lowest point of the parabola through
    it and its neighbours.
    """

    low: float
    high: float
    middle: float
    best: Trial
    edges: tuple[str, ...]  # "lower", "upper", both or neither: nothing worse was tried beyond it
    level: tuple[float, float]  # of the rates that were tried, the ends of those that are level
    worse: tuple[float, ...]  # the rates that were tried and are worse

    def __contains__(self, rate: float) -> bool:
        return self.low * 0.999 <= rate <= self.high * 1.001


def plateau(trials: Iterable[Trial]) -> Plateau | None:
    """The plateau of one optimizer's trials on one rung; None where all were lost.

    Of trials at one rate, in several orders of the data, the best counts.
    """
    of_rate = {trial.rate: trial for trial in sorted(trials, key=lambda trial: -trial.loss)}
    ordered = sorted(of_rate.values(), key=lambda trial: trial.rate)
    best = min(ordered, key=lambda trial: trial.loss, default=None)
    if best is None or not best.losses:
        return None
    at = ordered.index(best)
    low, low_edge = _end(ordered[at::-1], best)
    high, high_edge = _end(ordered[at:], best)
    edges = ("lower",) * low_edge + ("upper",) * high_edge
    middle = low * (high / low) ** (LEAN if high > COARSE * low else 0.5)
    around = ordered[max(at - 1, 0) : at + 2]
    if not edges and not any(is_level(each, best) for each in around if each is not best):
        middle = _lowest(*around)
    rates = [each.rate for each in ordered if is_level(each, best)]
    worse = tuple(each.rate for each in ordered if each.rate not in rates)
    level = rates[0], rates[-1]
    return Plateau(min(low, middle), max(high, middle), middle, best, edges, level, worse)


def _lowest(left: Trial, best: Trial, right: Trial) -> float:
    """The rate at the lowest point of the parabola through three losses, over log rate."""
    a, b = (math.log(each.rate / best.rate) for each in (left, right))
    rises = [each.loss - best.loss for each in (left, right)]
    if math.isinf(min(rises)):  # both were lost
        return best.rate
    up, down = (min(rise, 4 * min(rises)) for rise in rises)  # beyond it is a cliff
    return best.rate * math.exp((up * b**2 - down * a**2) / (2 * (up * b - down * a)))


def _end(outwards: Sequence[Trial], best: Trial) -> tuple[float, bool]:
    """Where the plateau ends, by the loss over the logarithm of the rate, and if none was worse."""
    for inner, outer in itertools.pairwise(outwards):
        difference, allowed = gap_and_tolerance(outer, best)
        if difference > allowed:
            inside = gap_and_tolerance(inner, best)[0]
            way = (allowed - inside) / (difference - inside) if inside < allowed else 0.0
            return inner.rate * (outer.rate / inner.rate) ** way, False
    return outwards[-1].rate, True


def keeps_start(start: Trial, best: Trial) -> bool:
    """Whether the second rung begins at the start of the first: where that is not clearly worse."""
    difference, allowed = gap_and_tolerance(start, best)
    return difference <= CLEAR * allowed


def between(found: Plateau) -> float:
    """The factor between the rates of the second rung: to the ends of the plateau of the first."""
    return min(max(FINE, math.sqrt(found.high / found.low)), COARSE)


def next_rate(
    trials: Sequence[Trial], start: float, factor: float, most: int, best: float | None = None
) -> float | None:
    """The rate to try next on a rung, or None where it is done.

    The start, once up and once down; then beyond the better end, until both are worse. On the
    second rung the start, the best of the first, and once up and down from the better of both.
    """
    if len(trials) >= most:
        return None
    rates, begun = {trial.rate for trial in trials}, []
    for rate in (start, best or start):
        begun += [trial for trial in trials if math.isclose(trial.rate, rate)]
        if not begun or not math.isclose(begun[-1].rate, rate):
            return rate
    around = min(begun, key=lambda trial: trial.loss).rate
    for rate in (around * factor, around / factor):
        lowest, highest = min(rate, around) * 0.999, max(rate, around) * 1.001
        if not any(lowest <= each <= highest and not math.isclose(each, around) for each in rates):
            return rate
    found = plateau(trials)
    if found is None:
        return min(rates) / factor
    if not found.edges:
        return None
    low, high = (of(trials, key=lambda trial: trial.rate) for of in (min, max))
    if len(found.edges) == 2:  # the better end first
        return low.rate / factor if low.loss < high.loss else high.rate * factor
    return high.rate * factor if found.edges == ("upper",) else low.rate / factor


def decide(first: Plateau, second: Plateau, baseline: float | None) -> tuple[float | None, str]:
    """The rate for the real run and how it was chosen, of the plateaus of both rungs.

    None and why where nothing was decided. Longer runs that end above shorter ones, by more than
    the held-out examples may err, tell nothing: their rates are not the best, or more steps do
    harm. The baseline is its rate at this batch, if that was a candidate.
    """
    if not is_level(second.best, first.best):
        return None, (
            f"the best of the longer runs ended at {second.best.loss:.4g}, above the "
            f"{first.best.loss:.4g} of the best shorter one"
        )
    if baseline is not None and baseline in second:
        return baseline, "the square-root-scaled baseline: no other rate was clearly better"
    if len(second.edges) == len(first.edges) == 2:
        return None, "the rates that were tried cannot be told apart"
    for end in second.edges:
        if end in first.edges:
            return None, f"the best is at the {end} edge of what was tried"
    return second.middle, "the middle of the rates that cannot be told apart"


def interval(first: Plateau, second: Plateau) -> tuple[float, float]:
    """Between which rates the best is, as far as the held-out examples tell.

    A parabola that is higher at the next rate has its lowest point less than half the way to it, in
    logs. Where nothing worse was tried in the longer runs, it is as far as what was in the shorter
    ones.
    """
    ends, level = [second.low, second.high], second.level
    for last, worse, in_shorter in zip(
        level, _beyond(second, level), _beyond(first, level), strict=True
    ):
        ends.append(math.sqrt(last * worse) if worse else in_shorter or last)
    return min(ends), max(ends)


def _beyond(found, level):
    """The nearest rates that are worse, below and above others; None where there is none."""
    low, high = level
    below = max((rate for rate in found.worse if rate < low), default=None)
    return below, min((rate for rate in found.worse if rate > high), default=None)


def choose(best: Mapping[str, Trial]) -> tuple[str, str]:
    """The optimizer to take and why, of the best trial of each: the first that is level."""
    lowest = min(best, key=lambda name: best[name].loss)
    first = next(name for name in best if is_level(best[name], best[lowest]))
    if first == lowest:
        return first, "the lowest held-out loss"
    return first, f"level with {lowest}, and named before it"
