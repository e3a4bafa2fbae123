"""Decides which learning rates a search tries, and which one it takes.

A search makes short training runs, each with a warmup and a decay, in two rounds. In the first
round the rates are far apart. In the second round the runs have four times the steps, and the rates
are around the best one of the first. (In names of the code, a round is a rung.) The best rate falls
with the number of steps as steps^-0.3. So a short run of L steps tests a rate for the real run of T
steps by training at (T/L)^0.3 times that rate. In this module `rate` is always the rate for the
real run. Losses that differ by no more than their error are called level. The plateau is the range
of rates whose losses are level with the lowest one.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

RUNG_FACTOR = 4  # steps of a run in the second round, divided by those in the first
# The best rate falls as steps^-LENGTH_EXPONENT. arXiv 2409.19913 and others measured 0.28 to 0.4.
LENGTH_EXPONENT = 0.3
# The most runs of an optimizer in the first round, and in the second.
MAX_FIRST_RUNS, MAX_SECOND_RUNS = 5, 4
# The factor between rates in the first round, and the least such factor in the second.
COARSE_FACTOR, FINE_FACTOR = 4.0, 2.0
LEVEL_ERRORS = 2.0  # two losses are level if they differ by at most this many standard errors
# A loss is clearly worse than the best one if the difference of the two is more than this many
# times the largest difference of level losses.
CLEARLY_WORSE_FACTOR = 3.0
# Two losses are also level if they differ by at most this share of the better one.
LEVEL_TOLERANCE = 0.005
MIN_RUNG_STEPS = 8  # the fewest steps of a run in the first round
MIN_RUN_STEPS = MIN_RUNG_STEPS * RUNG_FACTOR  # the fewest steps of a real run that can be searched
# The least share of the steps of a short run that is warmup. With the smaller share of the real
# run, the warmup of a short run would have only a few steps.
MIN_WARMUP_SHARE = 0.2
# In a short run with a constant rate, the rate falls to 0 over this last share of the steps.
# Without the fall the final loss would be mostly noise.
COOLDOWN_SHARE = 0.2
# If the rates that are level with the best span a wide range, the rate to take is at this fraction
# of it, from the lower end (0) to the upper end (1) in log rate. The fraction is above 1/2 because
# short runs prefer lower rates than long ones.
MIDDLE_FRACTION = 2 / 3
FINALIST_COUNT = 2  # the most optimizers that are tried in the second round


@dataclasses.dataclass(frozen=True)
class Trial:
    """Holds a short run and how it ended.

    Attributes:
        optimizer: The name of the optimizer's class.
        rate: The rate for the real run that this short run tests.
        peak_rate: The peak rate of the short run.
        steps: The number of steps of the short run.
        losses: The losses at the end of the run, one for each block of the held-out examples; () if
            the run was lost, which means that a loss was not finite.
    """

    optimizer: str
    rate: float
    peak_rate: float
    steps: int
    losses: tuple[float, ...]

    @property
    def loss(self) -> float:
        """The mean held-out loss; infinity if the loss was not finite during the run."""
        return statistics.fmean(self.losses) if self.losses else math.inf


def rung_lengths(
    total_steps: int, optimizer_count: int, budget: float, averaging_updates: int = 0
) -> tuple[int, int]:
    """Returns the steps of a run in each round, so that the search stays within its budget.

    Args:
        total_steps: The number of steps of the real run.
        optimizer_count: The number of optimizers in the first round.
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
        total_steps: The number of steps of the real run.
        optimizer_count: The number of optimizers in the first round.
        averaging_updates: Updates that each run makes in addition, to estimate the running averages
            of batch normalization. Defaults to 0.
    """
    needed_steps = max_steps((MIN_RUNG_STEPS, MIN_RUN_STEPS), optimizer_count, averaging_updates)
    return math.ceil(100 * needed_steps / total_steps) / 100


def max_steps(lengths: tuple[int, int], optimizer_count: int, averaging_updates: int = 0) -> int:
    """Returns the most steps that a search takes.

    Args:
        lengths: The number of steps of a run in each round of the search.
        optimizer_count: The number of optimizers in the first round.
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
    """Returns the peak rate of the short run that tests a rate for the real run.

    Args:
        rate: The rate for the real run.
        steps: The number of steps of the short run.
        total_steps: The number of steps of the real run.
    """
    return rate * (total_steps / steps) ** LENGTH_EXPONENT


def gap_and_tolerance(trial: Trial, best: Trial) -> tuple[float, float]:
    """Compares the held-out loss of a trial with that of the best trial.

    Both trials have a loss on each block of held-out examples, so these losses can be paired. The
    two trials are level if the mean of the paired differences is at most two standard errors, or at
    most 0.5% of the best loss.

    Args:
        trial: The trial to compare.
        best: The trial with the best loss.

    Returns:
        The pair (mean difference, largest mean difference of level trials). The mean difference is
        infinite if the loss of `trial` was not finite.
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
    """Returns whether a trial's loss differs from the best one by no more than its error.

    `gap_and_tolerance` defines the error.

    Args:
        trial: The trial to compare.
        best: The trial with the best loss.
    """
    difference, allowed = gap_and_tolerance(trial, best)
    return difference <= allowed


@dataclasses.dataclass(frozen=True)
class Plateau:
    """Holds the range of rates whose losses differ from the best one by no more than their error.

    The rate to take is halfway between the ends of the range in log rate, or two thirds of the way
    from the lower to the upper end if the ends are more than a factor of four apart. If both
    neighbors of the best trial are worse, the rate to take is the lowest point of the parabola
    through these three trials.

    Attributes:
        low: The lower end of the range, interpolated between rates that were tried.
        high: The upper end of the range, interpolated in the same way.
        middle: The rate to take.
        best: The trial with the lowest loss.
        open_edges: A tuple that contains "lower" or "upper" for each end of the range beyond which
            no worse rate was tried.
        level_range: The lowest and the highest of the tried rates that are level with the best.
        worse_rates: The tried rates that are not level with the best.
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
    """Returns the `Plateau` of one optimizer's trials in one round.

    It is the range of rates whose losses differ from the best one by no more than their error.
    If there are several trials at one rate, in different orders of the data, only the best of them
    counts.

    Args:
        trials: The trials of one optimizer in one round.

    Returns:
        The `Plateau`, or None if no trial has a finite loss.
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
    """Returns the rate at the lowest point of a parabola through the losses of three trials.

    The parabola is a function of the logarithm of the rate.

    Args:
        lower: The trial at the next rate below the best one.
        best: The trial with the lowest loss.
        higher: The trial at the next rate above the best one.
    """
    log_lower, log_higher = (math.log(neighbor.rate / best.rate) for neighbor in (lower, higher))
    rises = [neighbor.loss - best.loss for neighbor in (lower, higher)]
    if math.isinf(min(rises)):  # both neighbors were lost: no parabola goes through them
        return best.rate
    # The rise on one side counts for at most four times the rise on the other. A steeper rise shows
    # that training breaks down there, and would move the lowest point too far away from it.
    lower_rise, higher_rise = (min(rise, 4 * min(rises)) for rise in rises)
    return best.rate * math.exp(
        (lower_rise * log_higher**2 - higher_rise * log_lower**2)
        / (2 * (lower_rise * log_higher - higher_rise * log_lower))
    )


def _plateau_end(outwards: Sequence[Trial], best: Trial) -> tuple[float, bool]:
    """Finds one end of a plateau, the range of rates whose losses are level with the best one.

    Args:
        outwards: The best trial and then those on one side of it, by distance from the best rate.
        best: The best trial.

    Returns:
        The rate, and whether no trial on this side is worse than the best. The rate is interpolated
        in log rate, between the last trial that is level with the best and the first that is worse.
        If no trial is worse, it is the outermost rate that was tried.
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
    """Returns whether the second round begins at the same rate as the first round did.

    The result is True unless that rate was clearly worse in the first round than the best rate.

    Args:
        start_trial: The trial at the rate with which the first round began.
        best_trial: The best trial of the first round.
    """
    difference, allowed = gap_and_tolerance(start_trial, best_trial)
    return difference <= CLEARLY_WORSE_FACTOR * allowed


def second_rung_factor(plateau: Plateau) -> float:
    """Returns the factor between neighboring rates of the second round.

        min(max(FINE_FACTOR, sqrt(high/low)), COARSE_FACTOR)

    The plateau of the first round is the range of rates, from `low` to `high`, whose losses there
    were as low as the lowest one within their error. Three rates with the factor sqrt(high/low) go
    from one end of it to the other.

    Args:
        plateau: The plateau of the first round.
    """
    return min(max(FINE_FACTOR, math.sqrt(plateau.high / plateau.low)), COARSE_FACTOR)


def next_rate(
    trials: Sequence[Trial],
    start_rate: float,
    factor: float,
    most_trials: int,
    best_rate: float | None = None,
) -> float | None:
    """Returns the rate to try next in a round, or None if the round is done.

    The first round tries the start rate, one rate above and one below it. It then goes on beyond
    the end with the lower loss, until the rates at both ends are worse than the best. The second
    round tries the start rate, the best rate of the first round, and one rate above and one below
    the better of these two.

    Args:
        trials: The trials in the round so far, in the order in which they were made.
        start_rate: The rate to begin with.
        factor: The factor between neighboring rates.
        most_trials: The most trials in the round.
        best_rate: In the second round, the best rate of the first round. Defaults to None, for the
            first round.
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
    if len(current_plateau.open_edges) == 2:  # go on beyond the end with the lower loss
        return low.rate / factor if low.loss < high.loss else high.rate * factor
    return high.rate * factor if current_plateau.open_edges == ("upper",) else low.rate / factor


def decide_rate(
    first: Plateau, second: Plateau, baseline_rate: float | None
) -> tuple[float | None, str]:
    """Decides on the rate for the real run.

    The runs of the second round are longer. If the best of them still ends at a clearly higher loss
    than the best run of the first round, nothing is decided: either the longer runs did not try the
    best rate, or more steps do harm.

    Args:
        first: The plateau of the first round.
        second: The plateau of the second round.
        baseline_rate: The rate of the baseline, scaled to the batch of the search. None if this
            optimizer has no baseline.

    Returns:
        The pair (rate, how it was chosen), or the pair (None, why nothing was decided).
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
    """Returns the lowest and the highest rate that may be the best, judged by the held-out loss.

    The interval contains all rates that are level with the best in the second round. At each end it
    goes on at least halfway, in log rate, to the nearest worse rate of that round, because the
    lowest point of a parabola through a level rate and a worse one is nearer to the level one. If
    the second round tried no worse rate on one side, the interval ends there at the nearest worse
    rate of the first round.

    Args:
        first: The plateau of the first round.
        second: The plateau of the second round.
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
    """Returns the nearest worse rate below a range of rates, and the nearest one above it.

    A side on which no worse rate was tried has None instead.

    Args:
        plateau: The plateau whose `worse_rates` are searched.
        level_range: The lowest and the highest rate of the range.
    """
    low, high = level_range
    below = max((rate for rate in plateau.worse_rates if rate < low), default=None)
    return below, min((rate for rate in plateau.worse_rates if rate > high), default=None)


def choose_optimizer(best_trials: Mapping[str, Trial]) -> tuple[str, str]:
    """Chooses the first optimizer whose best trial is level with the lowest loss of all.

    Args:
        best_trials: The best trial of each optimizer, by name, in the order in which the user
            prefers the optimizers.

    Returns:
        The pair (name of the optimizer, why it was chosen).
    """
    lowest = min(best_trials, key=lambda name: best_trials[name].loss)
    chosen = next(name for name in best_trials if is_level(best_trials[name], best_trials[lowest]))
    if chosen == lowest:
        return chosen, "the lowest held-out loss"
    return chosen, f"level with {lowest}, and named before it"
