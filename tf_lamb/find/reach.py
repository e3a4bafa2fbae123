"""Makes short runs at a constant learning rate, and counts their steps to a target loss.

`find_batch` compares these steps at two batches. A "look" is an evaluation within a run.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from tf_lamb.find import search
from tf_lamb.find.search_log import SearchLog
from tf_lamb.find.trials import NO_TEST_STEP_HINT, Trials

RATES = 5  # the most rates that are tried at a batch
SEEDS = 3  # the number of orders of the data in which the best rate is run
# The most further runs in other orders of the data. A second order may show another rate to be the
# best, which then needs its own SEEDS runs.
MORE = 4
# A run at the large batch is given up after this many times the examples that the base batch took.
FARTHER = 3
# A run in another order of the data is given up after this many times the best rate's mean steps.
GIVEN_UP = 2
WARMUP = 0.05  # the linear warmup at either batch, as a share of the examples of the first run
LOOKS = 1.15  # the factor of steps from one evaluation to the next
# The mean of this many evaluations is compared with the target. The mean lags by one evaluation,
# which is the same share of the steps at every batch.
LAST = 3
SHORTER = 4  # the early loss is the baseline's after 1/SHORTER of the steps of its first run
# The first evaluation is after 1/EARLY of the steps in which the early loss is expected, which are
# 1/SHORTER of the steps to the target.
EARLY = 4
# A run at the large batch has to take this many steps at least, even if the noise scale is
# infinite.
LEAST_STEPS = 4
# For the estimate of time: (runs, evaluations of each), as expected and at most. Expected means
# that the first rates are the best.
LOOKED = ((2 * (2 + SEEDS), 21), (2 * (RATES + MORE), 30))


@dataclasses.dataclass(frozen=True)
class Run:
    """Holds the result of a short run.

    Attributes:
        batch: Examples of an update.
        rate: The learning rate after the warmup.
        seed: Which order of the data it has.
        steps: Steps to the target, interpolated between two evaluations; infinite if the run did
            not reach it. For a run that was given up they are the steps after which it was, a lower
            bound.
        made: Steps in all, with those of repetitions that evaluate earlier.
        loss: The mean of its last `LAST` held-out losses; infinite, the default, if it has fewer.
        early: Steps to the early loss, which the baseline has after a quarter of its run. They are
            infinite, the default, if the run did not reach that loss. They are 0 if the first mean
            of `LAST` evaluations was there already, so that the true number is unknown.
        is_given_up: Whether this is a run at the best rate, in another order of the data, that had
            not reached the target after `GIVEN_UP` times the mean steps. Defaults to False.
    """

    batch: int
    rate: float
    seed: int
    steps: float
    made: int
    loss: float = math.inf
    early: float = math.inf
    is_given_up: bool = False


Losses = dict[int, tuple[float, ...]]  # step -> loss on each held-out block


def losses(
    trials: Trials, rate: float, steps: int, warm: float, first_look: float,
    target: float = -math.inf, order: int = 0,
) -> Losses:  # fmt: skip
    """Trains until the target loss is reached, and returns the held-out losses of all evaluations.

    Args:
        trials: The model, with its optimizer and its batch.
        rate: The learning rate after the warmup.
        steps: The most steps.
        warm: Steps of a linear warmup.
        first_look: The step of the first evaluation after that before all steps.
        target: The loss at which the run ends. Defaults to -infinity: it makes all steps.
        order: Which order of the data to take. Defaults to 0.

    Returns:
        Step -> the loss on each held-out block. They end where a loss is not finite.
    """
    trials.start_run(order)
    history, next_look = {0: trials.evaluate_within_run()}, first_look
    for step in range(1, steps + 1):
        if not math.isfinite(trials.step(rate * min(1.0, step / max(1.0, warm)))):
            break
        if step >= next_look or step == steps:
            if not (block_losses := trials.evaluate_within_run()):
                break
            history[step] = block_losses
            if crossing(history, target) < math.inf:
                break
            next_look = max(step + 1, step * LOOKS)
    return history


def means(history: Losses) -> list[tuple[int, float]]:
    """Returns pairs (step, mean of the last `LAST` losses up to it), without the loss at step 0."""
    steps, mean_losses = zip(
        *((step, statistics.fmean(block_losses)) for step, block_losses in history.items()),
        strict=True,
    )
    return [
        (steps[index], statistics.fmean(mean_losses[index + 1 - LAST : index + 1]))
        for index in range(LAST, len(mean_losses))
    ]


def crossing(history: Losses, target: float) -> float:
    """Returns the step at which `means` first reach the target; infinity if they never do.

    Between two evaluations the step is interpolated.

    Args:
        history: Losses of the held-out blocks, by step.
        target: The loss to reach.
    """
    averages = means(history)
    if averages and averages[0][1] <= target:
        return averages[0][0]
    for (before, above), (after, below) in itertools.pairwise(averages):
        if below <= target < above:
            return before + (after - before) * (above - target) / (above - below)
    return math.inf


def early_crossing(history: Losses, target: float) -> float:
    """Returns `crossing`, but 0 if the first mean is at the target already: the step is unknown.

    Args:
        history: Losses of the held-out blocks, by step.
        target: The loss to reach.
    """
    averages = means(history)
    return 0.0 if averages and averages[0][1] <= target else crossing(history, target)


def learned(history: Losses) -> bool:
    """Returns whether the last loss is lower than the first, and not level by `search.is_level`."""
    first_and_last = [
        search.Trial("", 0.0, 0.0, 0, history[step]) for step in (min(history), max(history))
    ]
    return not search.is_level(*first_and_last) and first_and_last[1].loss < first_and_last[0].loss


def fastest(run: Callable[[float, float], Run], start: float) -> list[Run]:
    """Searches, by factors of two, for the rate that takes the fewest steps to the target.

    The search ends when both twice and half the best rate have been tried, or after `RATES` runs.

    Args:
        run: Makes a run. Its arguments are the rate, and the fewest steps to the target of all runs
            so far, after which it may give up.
        start: The first rate.

    Returns:
        All runs, in the order in which they were made.
    """
    runs: dict[float, Run] = {}
    rate = start
    while len(runs) < RATES:
        fewest = min((candidate.steps for candidate in runs.values()), default=math.inf)
        runs[rate] = run(rate, fewest)
        best_rate = min(runs.values(), key=lambda candidate: (candidate.steps, candidate.loss)).rate
        untried = [
            candidate for candidate in (2 * best_rate, best_rate / 2) if candidate not in runs
        ]
        if not untried:
            break
        rate = untried[0]
    return list(runs.values())


def examples(base: int, length: int) -> tuple[int, int]:
    """Returns how many examples `short_runs` train on, for its progress bar.

    Args:
        base: Examples of the baseline's batch.
        length: Steps of the first run.

    Returns:
        The expected number, which holds if the first rate at each batch is the best, and the
        largest possible number.
    """
    run_examples = base * length
    return 2 * run_examples * (2 + SEEDS), run_examples * (1 + FARTHER) * (RATES + MORE * GIVEN_UP)


def short_runs(
    begin: Callable[[int], AbstractContextManager[Trials]], rate: float, base: int, large: int,
    length: int, say: Callable[[str], None], log: SearchLog,
) -> tuple[float, list[Run]]:  # fmt: skip
    """Makes runs to one target loss at two batches.

    The target is the loss at the end of the first run, of `length` steps at the base batch and the
    rate that was tuned there. The early loss is that after a quarter of these steps. Each `Run`
    holds its steps to both losses.

    Args:
        begin: Takes a batch, and returns a context manager of the model's `Trials` at it.
        rate: The peak rate of the baseline.
        base: Examples of the baseline's batch.
        large: Examples of the large batch.
        length: Steps of the first run.
        say: Prints a line.
        log: Keeps the losses of each run.

    Returns:
        The target, and all runs at both batches.

    Raises:
        ValueError: if the baseline learns nothing or its loss is not finite, if it gets to the
            target in too few steps to compare, or if no run at the large batch gets there.
    """
    warmup_examples = WARMUP * length * base
    with begin(base) as trials:
        first_look = length / (EARLY * SHORTER)
        history = _losses(log, base, trials, rate, length, warmup_examples / base, first_look)
        if len(history) > len(set(history.values())) == 1:
            raise ValueError(
                f"The baseline ends at the losses that it begins with, {NO_TEST_STEP_HINT}"
            )
        if max(history) < length:
            finite_text = "all data are finite, so that the rate is too high"
            why = trials.data.not_finite_message() or finite_text
            raise ValueError(
                f"The loss of the baseline is not finite in {length:,} steps at batch {base:,} and "
                f"rate {rate:.3g}: {why}."
            )
        if not learned(history):
            raise ValueError(
                f"The model learns nothing in {length:,} steps at batch {base:,} and rate "
                f"{rate:.3g}, so that there is no loss to reach: look at the baseline first, or "
                "pass noise_scale=."
            )
        averages = means(history)
        target = averages[-1][1]
        early = next(loss for step, loss in averages if step >= length / SHORTER)
        baseline_run = Run(
            base, rate, 0, crossing(history, target), length, early=early_crossing(history, early)
        )
        targets = target, early
        runs = _runs_at(
            trials,
            base,
            rate,
            targets,
            warmup_examples,
            length,
            baseline_run.steps,
            say,
            log,
            baseline_run,
        )
    best = best_of(runs)
    expected = mean_steps(best) * base / large
    if FARTHER * expected < LAST:
        raise ValueError(
            f"Batch {base:,} reaches the loss in {mean_steps(best):,.0f} steps at rate "
            f"{best[0].rate:.3g}, too few to compare with batch {large:,}: the baseline's rate of "
            f"{rate:.3g} is far too low. Tune it with find_rate first."
        )
    with begin(large) as trials:
        start = rate * math.sqrt(large / base)
        large_runs = _runs_at(
            trials,
            large,
            start,
            targets,
            warmup_examples,
            FARTHER * expected,
            expected,
            say,
            log,
        )
    if not best_of(large_runs):
        noise_limit, smaller_batch = (large - FARTHER * base) / (FARTHER - 1), large // 2
        way_out = f"stay at {base:,}, or look at the rate"
        if smaller_batch >= 2 * base:
            way_out = (
                f"pass a smaller one, such as large_batch_size={smaller_batch}, or stay at {base:,}"
            )
        raise ValueError(
            f"No run at batch {large:,} reaches the loss of the baseline's in {FARTHER} times its "
            + (
                f"examples, so the noise scale is below {noise_limit:,.0f}"
                if noise_limit > 0
                else "examples"
            )
            + f": {way_out}."
        )
    return target, runs + large_runs


def best_of(runs: Iterable[Run]) -> list[Run]:
    """Returns the runs at the best rate; [] if none reached the target.

    The best rate is that with the fewest runs that were given up, and among several such rates
    that with the lowest geometric mean of steps.
    """
    runs_by_rate: dict[float, list[Run]] = {}
    for run in runs:
        if run.steps < math.inf:
            runs_by_rate.setdefault(run.rate, []).append(run)

    def rank(of_rate):
        return sum(run.is_given_up for run in of_rate), mean_steps(of_rate)

    return min(runs_by_rate.values(), key=rank, default=[])


def mean_steps(runs: Iterable[Run]) -> float:
    """Returns the geometric mean of the steps of runs, a lower bound if some were given up."""
    return statistics.geometric_mean(run.steps for run in runs)


def of_best_rates(runs: Iterable[Run]) -> dict[int, list[Run]]:
    """Returns, for each batch, its runs at its best rate; see `best_of`."""
    by_batch: dict[int, list[Run]] = {}
    for run in runs:
        by_batch.setdefault(run.batch, []).append(run)
    return {batch: best_of(batch_runs) for batch, batch_runs in by_batch.items()}


def _losses(log, batch, trials, *arguments):
    """Returns the result of `losses`, from the log if an interrupted search has saved it there.

    Args:
        log: The `SearchLog`.
        batch: Examples of an update.
        trials: The model at that batch.
        *arguments: The other arguments of `losses`. With the batch they are the key in the log.
    """
    history = log.cached(
        [batch, *arguments], lambda: list(losses(trials, *arguments).items()),
        on_saved=lambda history: trials.on_step(history[-1][0] * batch),
    )  # fmt: skip
    return {step: tuple(block_losses) for step, block_losses in history}


def _runs_at(
    trials, batch, start, targets, warm, most_steps, least_steps, say, log, baseline_run=None
):
    """Returns runs at one batch: at several rates, and at the best in other orders of the data.

    Args:
        trials: The model at that batch.
        batch: Examples of an update.
        start: The rate to begin with.
        targets: The target, and the early loss.
        warm: Examples of the warmup.
        most_steps: The steps after which a run is given up.
        least_steps: About the fewest steps to the target, by which the first evaluation is placed.
        say: Prints a line.
        log: The `SearchLog`.
        baseline_run: The baseline's run, which is not made again. Defaults to None.
    """

    arrived: list[Run] = []
    target, early = targets

    def run(rate, max_steps, seed=0):
        """Makes a run, and notes it if it reaches the target; see `train`."""
        finished = train(rate, max_steps, seed)
        has_arrived = finished.steps < math.inf and not finished.is_given_up
        arrived.extend([finished] if has_arrived else [])
        return finished

    def train(rate, max_steps, seed):
        """Makes a run, and repeats it with earlier evaluations if its first one was past a loss.

        Args:
            rate: The learning rate after the warmup.
            max_steps: The steps after which the run is given up.
            seed: Which order of the data to take.
        """
        if baseline_run is not None and (rate, seed) == (baseline_run.rate, 0):
            return baseline_run
        limit = math.ceil(max_steps if seed else min(most_steps, max_steps))
        first_look, total = min(least_steps, limit) / (EARLY * SHORTER), 0
        while True:
            arguments = rate, limit, warm / batch, first_look, target, seed
            history = _losses(log, batch, trials, *arguments)
            steps, total, averages = crossing(history, target), total + max(history), means(history)
            if first_look <= 1 or not averages or steps > averages[0][0]:
                break
            first_look /= EARLY  # the first evaluation was past the target
        is_lost = steps == math.inf and max(history) < limit
        if (
            is_lost
            and any(other_run.rate >= rate for other_run in arrived)
            and (why := trials.data.not_finite_message())
        ):
            raise ValueError(f"The loss is not finite at batch {batch:,}, rate {rate:.3g}: {why}.")
        is_given_up = seed > 0 and steps == math.inf
        outcome = f"{steps:,.1f} steps" if steps < math.inf else f"not in {limit:,} steps"
        say(f"batch {batch:,}, rate {rate:.3g}: {outcome}")
        loss = averages[-1][1] if averages else math.inf
        steps = limit if is_given_up else steps
        early_steps = early_crossing(history, early)
        while early_steps == 0 and first_look > 1:
            # The first evaluation was past the early loss. A repetition that ends there is short.
            first_look /= EARLY
            history = _losses(
                log, batch, trials, rate, limit, warm / batch, first_look, early, seed
            )
            total += max(history)
            early_steps = early_crossing(history, early)
        return Run(batch, rate, seed, steps, total, loss, early_steps, is_given_up)

    runs = fastest(run, start)
    for _ in range(MORE):
        best = best_of(runs)
        if not best or len(best) == SEEDS:
            break
        runs.append(run(best[0].rate, GIVEN_UP * mean_steps(best), len(best)))
    return runs
