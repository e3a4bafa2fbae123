"""Decides which rates a search tries, and which it takes, from the losses of its short runs.

A search has two rungs of short runs, each of which has a warmup and a decay. On the first rung the
rates are far apart. On the second the runs have four times the steps, and the rates are around the
best. The best rate falls as steps^-0.3, so a rate for the real run of T steps is tried in a run of
L steps at (T/L)^0.3 times that rate. Here `rate` is always the one for the real run.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

RUNG_FACTOR = 4  # steps of a run on the second rung, over those of the first
# The best rate falls as steps^-LENGTH_EXPONENT; arXiv 2409.19913 and others: .28 to .4.
LENGTH_EXPONENT = 0.3
# The most runs of an optimizer on the first rung, and on the second.
MAX_FIRST_RUNS, MAX_SECOND_RUNS = 5, 4
# The factor between rates on the first rung, and the least such factor on the second.
COARSE_FACTOR, FINE_FACTOR = 4.0, 2.0
LEVEL_ERRORS = 2.0  # two losses are level if they differ by at most this many standard errors
# A loss is clearly worse beyond this many times the difference of level losses.
CLEARLY_WORSE_FACTOR = 3.0
LEVEL_TOLERANCE = 0.005  # share of the best loss within which a loss is level
MIN_RUNG_STEPS = 8  # the fewest steps of a run on the first rung
MIN_RUN_STEPS = MIN_RUNG_STEPS * RUNG_FACTOR  # the fewest steps of a real run that can be searched
# The least share of a short run that is warmup. The share of a real run would be only a few steps.
MIN_WARMUP_SHARE = 0.2
# The share at the end of a short run with a constant rate in which the rate falls to 0. Else the
# last loss would be mostly noise.
COOLDOWN_SHARE = 0.2
# Where the middle of a wide plateau is taken, from its lower end (0) to its upper end (1) in log
# rate. It is above 1/2 because short runs prefer lower rates than long ones.
MIDDLE_FRACTION = 2 / 3
FINALIST_COUNT = 2  # optimizers on the second rung


@dataclasses.dataclass(frozen=True)
class Trial:
    """Holds a short run and how it ended.

    Attributes:
        optimizer: The name of its optimizer.
        rate: The rate of the real run for which this run stands.
        peak_rate: The peak rate of the short run.
        steps: Steps of the short run.
        losses: The final losses on blocks of the held-out examples; () for a run that was lost,
            because its loss was not finite.
    """

    optimizer: str
    rate: float
    peak_rate: float
    steps: int
    losses: tuple[float, ...]

    @property
    def loss(self) -> float:
        """The mean held-out loss; infinity for a run that was lost."""
        return statistics.fmean(self.losses) if self.losses else math.inf


def rung_lengths(
    total_steps: int, optimizer_count: int, budget: float, averaging_updates: int = 0
) -> tuple[int, int]:
    """Returns the steps of a run on each rung, so that the search stays within its budget.

    Args:
        total_steps: Steps of the real run.
        optimizer_count: The number of optimizers on the first rung.
        budget: The most steps of the search, as a fraction of `total_steps`.
        averaging_updates: Updates that each run makes in addition, to estimate the running averages
            of batch normalization. Defaults to 0.
    """
    remaining = max(
        0.0, round(budget * total_steps, 6) - max_steps((0, 0), optimizer_count, averaging_updates)
    )
    first_steps = min(
        int(remaining / max_steps((1, RUNG_FACTOR), optimizer_count)), total_steps // RUNG_FACTOR
    )
    return first_steps, first_steps * RUNG_FACTOR


def min_budget(total_steps: int, optimizer_count: int, averaging_updates: int = 0) -> float:
    """Returns the smallest budget with which a search can begin, rounded up to a hundredth.

    Args:
        total_steps: Steps of the real run.
        optimizer_count: The number of optimizers on the first rung.
        averaging_updates: Updates that each run makes in addition, to estimate the running averages
            of batch normalization. Defaults to 0.
    """
    needed_steps = max_steps((MIN_RUNG_STEPS, MIN_RUN_STEPS), optimizer_count, averaging_updates)
    return math.ceil(100 * needed_steps / total_steps) / 100


def max_steps(lengths: tuple[int, int], optimizer_count: int, averaging_updates: int = 0) -> int:
    """Returns the most steps that a search takes.

    Args:
        lengths: Steps of a run on each rung.
        optimizer_count: The number of optimizers on the first rung.
        averaging_updates: Updates that each run makes in addition, to estimate the running averages
            of batch normalization. Defaults to 0.
    """
    first_steps, second_steps = (averaging_updates + length for length in lengths)
    total_steps = (
        first_steps * MAX_FIRST_RUNS * optimizer_count
        + second_steps * MAX_SECOND_RUNS * min(optimizer_count, FINALIST_COUNT)
    )
    return total_steps + (averaging_updates > 0)


def short_run_rate(rate: float, steps: int, total_steps: int) -> float:
    """Returns the rate of a short run that stands for a rate in the real one.

    Args:
        rate: The rate in the real run.
        steps: Steps of the short run.
        total_steps: Steps of the real run.
    """
    return rate * (total_steps / steps) ** LENGTH_EXPONENT


def gap_and_tolerance(trial: Trial, best: Trial) -> tuple[float, float]:
    """Returns how far a trial's loss is above the best, and how far it may be and still be level.

    A loss is level if the mean of the paired differences of the blocks is within two standard
    errors, or within 0.5% of the best loss.

    Args:
        trial: The trial to compare.
        best: The trial with the best loss.
    """
    if not trial.losses:
        return math.inf, 0.0
    differences = [
        loss - best_loss for loss, best_loss in zip(trial.losses, best.losses, strict=True)
    ]
    standard_error = statistics.stdev(differences) / math.sqrt(len(differences))
    return statistics.fmean(differences), max(
        LEVEL_ERRORS * standard_error, LEVEL_TOLERANCE * abs(best.loss)
    )


def is_level(trial: Trial, best: Trial) -> bool:
    """Returns whether a trial cannot be told from the best; see `gap_and_tolerance`.

    Args:
        trial: The trial to compare.
        best: The trial with the best loss.
    """
    difference, allowed = gap_and_tolerance(trial, best)
    return difference <= allowed


@dataclasses.dataclass(frozen=True)
class Plateau:
    """Holds the rates around the best that cannot be told from it by their losses.

    The middle is halfway between the ends in log rate, or two thirds of the way up if the ends are
    more than a factor of four apart. If the best trial alone is level, the middle is the lowest
    point of the parabola through that trial and its neighbors.

    Attributes:
        low: The lower end, between the rates that were tried.
        high: The upper end.
        middle: The rate to take.
        best: The best trial.
        open_edges: "lower", "upper", both or neither: the ends beyond which no worse rate was
            tried.
        level_range: The lowest and the highest of the tried rates that are level with the best.
        worse_rates: The tried rates that are worse.
    """

    low: float
    high: float
    middle: float
    best: Trial
    open_edges: tuple[str, ...]
    level_range: tuple[float, float]
    worse_rates: tuple[float, ...]

    def __contains__(self, rate: float) -> bool:
        return self.low * 0.999 <= rate <= self.high * 1.001


def find_plateau(trials: Iterable[Trial]) -> Plateau | None:
    """Returns the plateau of one optimizer's trials on one rung; None if all were lost.

    Several trials at one rate, in different orders of the data, count as the best of them.
    """
    best_by_rate = {trial.rate: trial for trial in sorted(trials, key=lambda trial: -trial.loss)}
    ordered = sorted(best_by_rate.values(), key=lambda trial: trial.rate)
    best = min(ordered, key=lambda trial: trial.loss, default=None)
    if best is None or not best.losses:
        return None
    index = ordered.index(best)
    low, low_edge = _plateau_end(ordered[index::-1], best)
    high, high_edge = _plateau_end(ordered[index:], best)
    edges = ("lower",) * low_edge + ("upper",) * high_edge
    middle = low * (high / low) ** (MIDDLE_FRACTION if high > COARSE_FACTOR * low else 0.5)
    neighbors = ordered[max(index - 1, 0) : index + 2]
    if not edges and not any(
        is_level(candidate, best) for candidate in neighbors if candidate is not best
    ):
        middle = _parabola_minimum(*neighbors)
    rates = [candidate.rate for candidate in ordered if is_level(candidate, best)]
    worse_rates = tuple(candidate.rate for candidate in ordered if candidate.rate not in rates)
    level_range = rates[0], rates[-1]
    return Plateau(
        min(low, middle), max(high, middle), middle, best, edges, level_range, worse_rates
    )


def _parabola_minimum(lower: Trial, best: Trial, higher: Trial) -> float:
    """Returns the rate at the lowest point of the parabola through three losses, over log rate."""
    log_lower, log_higher = (math.log(neighbor.rate / best.rate) for neighbor in (lower, higher))
    rises = [neighbor.loss - best.loss for neighbor in (lower, higher)]
    if math.isinf(min(rises)):  # both were lost
        return best.rate
    # The steeper side counts for four times the other at most: a steeper loss is a cliff.
    lower_rise, higher_rise = (min(rise, 4 * min(rises)) for rise in rises)
    return best.rate * math.exp(
        (lower_rise * log_higher**2 - higher_rise * log_lower**2)
        / (2 * (lower_rise * log_higher - higher_rise * log_lower))
    )


def _plateau_end(outwards: Sequence[Trial], best: Trial) -> tuple[float, bool]:
    """Returns where the plateau ends on one side, and whether no trial was worse there.

    The end is interpolated in log rate.

    Args:
        outwards: The trials from the best one outwards, in the order of their rates.
        best: The best trial.
    """
    for inner, outer in itertools.pairwise(outwards):
        difference, allowed = gap_and_tolerance(outer, best)
        if difference > allowed:
            inner_difference = gap_and_tolerance(inner, best)[0]
            fraction = (
                (allowed - inner_difference) / (difference - inner_difference)
                if inner_difference < allowed
                else 0.0
            )
            return inner.rate * (outer.rate / inner.rate) ** fraction, False
    return outwards[-1].rate, True


def is_start_kept(start_trial: Trial, best_trial: Trial) -> bool:
    """Returns whether the second rung begins at the start of the first, as it is not clearly worse.

    Args:
        start_trial: The trial at the start of the first rung.
        best_trial: The best trial of the first rung.
    """
    difference, allowed = gap_and_tolerance(start_trial, best_trial)
    return difference <= CLEARLY_WORSE_FACTOR * allowed


def second_rung_factor(plateau: Plateau) -> float:
    """Returns the factor between neighboring rates of the second rung.

        min(max(FINE_FACTOR, sqrt(high/low)), COARSE_FACTOR)

    With it, three rates span the plateau of the first rung from `low` to `high`.

    Args:
        plateau: The plateau of the first rung.
    """
    return min(max(FINE_FACTOR, math.sqrt(plateau.high / plateau.low)), COARSE_FACTOR)


def next_rate(
    trials: Sequence[Trial],
    start_rate: float,
    factor: float,
    most_trials: int,
    best_rate: float | None = None,
) -> float | None:
    """Returns the rate to try next on a rung, or None if the rung is done.

    The first rung tries the start, one rate above and one below it, and then goes on beyond the
    better end until the rates at both ends are worse. The second rung tries the start, the best
    rate of the first rung, and one rate above and one below the better of these two.

    Args:
        trials: The trials on the rung so far, in their order.
        start_rate: The rate to begin with.
        factor: The factor between two rates.
        most_trials: The most trials on the rung.
        best_rate: The best rate of the first rung, for the second. Defaults to None.
    """
    if len(trials) >= most_trials:
        return None
    rates, start_trials = {trial.rate for trial in trials}, []
    for rate in (start_rate, best_rate or start_rate):
        start_trials += [trial for trial in trials if math.isclose(trial.rate, rate)]
        if not start_trials or not math.isclose(start_trials[-1].rate, rate):
            return rate
    center = min(start_trials, key=lambda trial: trial.loss).rate
    for rate in (center * factor, center / factor):
        lowest, highest = min(rate, center) * 0.999, max(rate, center) * 1.001
        if not any(
            lowest <= tried_rate <= highest and not math.isclose(tried_rate, center)
            for tried_rate in rates
        ):
            return rate
    current_plateau = find_plateau(trials)
    if current_plateau is None:
        return min(rates) / factor
    if not current_plateau.open_edges:
        return None
    low, high = (pick(trials, key=lambda trial: trial.rate) for pick in (min, max))
    if len(current_plateau.open_edges) == 2:  # beyond the better end
        return low.rate / factor if low.loss < high.loss else high.rate * factor
    return high.rate * factor if current_plateau.open_edges == ("upper",) else low.rate / factor


def decide_rate(
    first: Plateau, second: Plateau, baseline_rate: float | None
) -> tuple[float | None, str]:
    """Decides on the rate for the real run.

    If the longer runs end at a higher loss than the shorter ones, by more than level losses differ,
    they decide nothing: the best rate was not among theirs, or more steps do harm.

    Args:
        first: The plateau of the first rung.
        second: The plateau of the second rung.
        baseline_rate: The baseline's rate at this batch, if it was a candidate.

    Returns:
        The rate and how it was chosen; None and why if nothing was decided.
    """
    if not is_level(second.best, first.best):
        return None, (
            f"the best of the longer runs ended at {second.best.loss:.4g}, above the "
            f"{first.best.loss:.4g} of the best shorter one"
        )
    if baseline_rate is not None and baseline_rate in second:
        return baseline_rate, "the square-root-scaled baseline: no other rate was clearly better"
    if len(second.open_edges) == len(first.open_edges) == 2:
        return None, "the rates that were tried cannot be told apart"
    for open_edge in second.open_edges:
        if open_edge in first.open_edges:
            return None, f"the best is at the {open_edge} edge of what was tried"
    return second.middle, "the middle of the rates that cannot be told apart"


def rate_interval(first: Plateau, second: Plateau) -> tuple[float, float]:
    """Returns the lowest and the highest rate that may be the best, by the held-out examples.

    A parabola through a level rate and a worse one has its lowest point nearer to the level one. So
    the interval ends halfway between the two in log rate. Where no worse rate was tried in the
    longer runs, the interval goes to the next worse rate of the shorter runs.

    Args:
        first: The plateau of the first rung.
        second: The plateau of the second rung.
    """
    bounds, level_range = [second.low, second.high], second.level_range
    for level_rate, worse_rate, worse_in_shorter in zip(
        level_range,
        _nearest_worse_rates(second, level_range),
        _nearest_worse_rates(first, level_range),
        strict=True,
    ):
        bounds.append(
            math.sqrt(level_rate * worse_rate) if worse_rate else worse_in_shorter or level_rate
        )
    return min(bounds), max(bounds)


def _nearest_worse_rates(plateau, level_range):
    """Returns the nearest worse rate below the level ones, and above; None for a side without one.

    Args:
        plateau: The plateau whose `worse_rates` are searched.
        level_range: The lowest and the highest level rate.
    """
    low, high = level_range
    below = max((rate for rate in plateau.worse_rates if rate < low), default=None)
    return below, min((rate for rate in plateau.worse_rates if rate > high), default=None)


def choose_optimizer(best_trials: Mapping[str, Trial]) -> tuple[str, str]:
    """Chooses the optimizer to take: the first whose best trial is level with the lowest loss.

    Args:
        best_trials: The best trial of each optimizer, by name, in the order of the optimizers.

    Returns:
        The name of the optimizer, and why.
    """
    lowest = min(best_trials, key=lambda name: best_trials[name].loss)
    chosen = next(name for name in best_trials if is_level(best_trials[name], best_trials[lowest]))
    if chosen == lowest:
        return chosen, "the lowest held-out loss"
    return chosen, f"level with {lowest}, and named before it"
