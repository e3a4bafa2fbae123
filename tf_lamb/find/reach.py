"""Makes short runs at a constant learning rate, and counts their steps to a target loss.

`find_batch` compares these steps at two batches.
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

MAX_RATES = 5  # the most rates that are tried at a batch
BEST_RATE_RUNS = 3  # the number of orders of the data in which the best rate is run
# The most further runs in other orders of the data. A second order may show another rate to be the
# best, which then needs its own BEST_RATE_RUNS runs.
MAX_FURTHER_RUNS = 4
# A run at the large batch is given up after this many times the examples that the base batch took.
MAX_EXAMPLES_FACTOR = 3
# A run in another order of the data is given up after this many times the best rate's mean steps.
MAX_STEPS_FACTOR = 2
# The linear warmup at either batch, as a share of the examples of the first run.
WARMUP_SHARE = 0.05
EVALUATION_SPACING = 1.15  # the factor of steps from one evaluation to the next
# The mean of this many evaluations is compared with the target. The mean lags by one evaluation,
# which is the same share of the steps at every batch.
AVERAGED_EVALUATIONS = 3
# The early loss is the baseline's after 1/EARLY_LOSS_DIVISOR of the steps of its first run.
EARLY_LOSS_DIVISOR = 4
# The first evaluation is after 1/FIRST_EVALUATION_DIVISOR of the steps in which the early loss is
# expected, which are 1/EARLY_LOSS_DIVISOR of the steps to the target.
FIRST_EVALUATION_DIVISOR = 4
# A run at the large batch has to take this many steps at least, even if the noise scale is
# infinite.
MIN_STEPS = 4
# For the estimate of time: (runs, evaluations of each), as expected and at most. Expected means
# that the first rates are the best.
RUNS_AND_EVALUATIONS = ((2 * (2 + BEST_RATE_RUNS), 21), (2 * (MAX_RATES + MAX_FURTHER_RUNS), 30))


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
        steps_trained: Steps in all, with those of repetitions that evaluate earlier.
        loss: The mean of its last `AVERAGED_EVALUATIONS` held-out losses; infinite, the default, if
            it has fewer.
        early_steps: Steps to the early loss, which the baseline has after a quarter of its run.
            They are infinite, the default, if the run did not reach that loss. They are 0 if the
            first mean of `AVERAGED_EVALUATIONS` evaluations was there already, so that the true
            number is unknown.
        is_given_up: Whether this is a run at the best rate, in another order of the data, that had
            not reached the target after `MAX_STEPS_FACTOR` times the mean steps. Defaults to False.
    """

    batch: int
    rate: float
    seed: int
    steps: float
    steps_trained: int
    loss: float = math.inf
    early_steps: float = math.inf
    is_given_up: bool = False


Losses = dict[int, tuple[float, ...]]  # step -> loss on each held-out block


def train_to_loss(
    trials: Trials, rate: float, most_steps: int, warmup_steps: float, first_evaluation: float,
    target: float = -math.inf, order: int = 0,
) -> Losses:  # fmt: skip
    """Trains until the target loss is reached, and returns the held-out losses of all evaluations.

    Args:
        trials: The model, with its optimizer and its batch.
        rate: The learning rate after the warmup.
        most_steps: The most steps.
        warmup_steps: Steps of a linear warmup.
        first_evaluation: The step of the first evaluation after that before all steps.
        target: The loss at which the run ends. Defaults to -infinity: it makes all steps.
        order: Which order of the data to take. Defaults to 0.

    Returns:
        Step -> the loss on each held-out block. They end where a loss is not finite.
    """
    trials.start_run(order)
    history, next_evaluation = {0: trials.evaluate_within_run()}, first_evaluation
    for step in range(1, most_steps + 1):
        if not math.isfinite(trials.step(rate * min(1.0, step / max(1.0, warmup_steps)))):
            break
        if step >= next_evaluation or step == most_steps:
            if not (block_losses := trials.evaluate_within_run()):
                break
            history[step] = block_losses
            if steps_to_loss(history, target) < math.inf:
                break
            next_evaluation = max(step + 1, step * EVALUATION_SPACING)
    return history


def running_means(history: Losses) -> list[tuple[int, float]]:
    """Returns pairs (step, mean of the last `AVERAGED_EVALUATIONS` losses up to it).

    The loss at step 0 is left out.
    """
    steps, mean_losses = zip(
        *((step, statistics.fmean(block_losses)) for step, block_losses in history.items()),
        strict=True,
    )
    return [
        (steps[index], statistics.fmean(mean_losses[index + 1 - AVERAGED_EVALUATIONS : index + 1]))
        for index in range(AVERAGED_EVALUATIONS, len(mean_losses))
    ]


def steps_to_loss(history: Losses, target: float) -> float:
    """Returns the step at which `running_means` first reach the target; infinity if they never do.

    Between two evaluations the step is interpolated.

    Args:
        history: Losses of the held-out blocks, by step.
        target: The loss to reach.
    """
    averages = running_means(history)
    if averages and averages[0][1] <= target:
        return averages[0][0]
    for (step_before, loss_before), (step_after, loss_after) in itertools.pairwise(averages):
        if loss_after <= target < loss_before:
            return step_before + (step_after - step_before) * (loss_before - target) / (
                loss_before - loss_after
            )
    return math.inf


def steps_to_early_loss(history: Losses, target: float) -> float:
    """Returns `steps_to_loss`, but 0 if the first mean is at the target already.

    The step is then unknown.

    Args:
        history: Losses of the held-out blocks, by step.
        target: The loss to reach.
    """
    averages = running_means(history)
    return 0.0 if averages and averages[0][1] <= target else steps_to_loss(history, target)


def has_learned(history: Losses) -> bool:
    """Returns whether the last loss is lower than the first, and not level by `search.is_level`."""
    first_and_last = [
        search.Trial("", 0.0, 0.0, 0, history[step]) for step in (min(history), max(history))
    ]
    return not search.is_level(*first_and_last) and first_and_last[1].loss < first_and_last[0].loss


def search_fastest_rate(make_run: Callable[[float, float], Run], start: float) -> list[Run]:
    """Searches, by factors of two, for the rate that takes the fewest steps to the target.

    The search ends when both twice and half the best rate have been tried, or after `MAX_RATES`
    runs.

    Args:
        make_run: Makes a run. Its arguments are the rate, and the fewest steps to the target of all
            runs so far, after which it may give up.
        start: The first rate.

    Returns:
        All runs, in the order in which they were made.
    """
    runs: dict[float, Run] = {}
    rate = start
    while len(runs) < MAX_RATES:
        fewest_steps = min((candidate.steps for candidate in runs.values()), default=math.inf)
        runs[rate] = make_run(rate, fewest_steps)
        best_rate = min(runs.values(), key=lambda candidate: (candidate.steps, candidate.loss)).rate
        untried = [
            candidate for candidate in (2 * best_rate, best_rate / 2) if candidate not in runs
        ]
        if not untried:
            break
        rate = untried[0]
    return list(runs.values())


def example_counts(base_batch: int, first_run_steps: int) -> tuple[int, int]:
    """Returns how many examples `make_short_runs` train on, for its progress bar.

    Args:
        base_batch: Examples of the baseline's batch.
        first_run_steps: Steps of the first run.

    Returns:
        The expected number, which holds if the first rate at each batch is the best, and the
        largest possible number.
    """
    run_examples = base_batch * first_run_steps
    return 2 * run_examples * (2 + BEST_RATE_RUNS), run_examples * (1 + MAX_EXAMPLES_FACTOR) * (
        MAX_RATES + MAX_FURTHER_RUNS * MAX_STEPS_FACTOR
    )


def make_short_runs(
    open_trials: Callable[[int], AbstractContextManager[Trials]], rate: float, base_batch: int,
    large_batch: int, first_run_steps: int, say: Callable[[str], None], log: SearchLog,
) -> tuple[float, list[Run]]:  # fmt: skip
    """Makes runs to one target loss at two batches.

    The target is the loss at the end of the first run, of `first_run_steps` steps at the base batch
    and the rate that was tuned there. The early loss is that after a quarter of these steps. Each
    `Run` holds its steps to both losses.

    Args:
        open_trials: Takes a batch, and returns a context manager of the model's `Trials` at it.
        rate: The peak rate of the baseline.
        base_batch: Examples of the baseline's batch.
        large_batch: Examples of the large batch.
        first_run_steps: Steps of the first run.
        say: Prints a line.
        log: Keeps the losses of each run.

    Returns:
        The target, and all runs at both batches.

    Raises:
        ValueError: if the baseline learns nothing or its loss is not finite, if it gets to the
            target in too few steps to compare, or if no run at the large batch gets there.
    """
    warmup_examples = WARMUP_SHARE * first_run_steps * base_batch
    with open_trials(base_batch) as trials:
        first_evaluation = first_run_steps / (FIRST_EVALUATION_DIVISOR * EARLY_LOSS_DIVISOR)
        history = _train_or_load(
            log,
            base_batch,
            trials,
            rate,
            first_run_steps,
            warmup_examples / base_batch,
            first_evaluation,
        )
        if len(history) > len(set(history.values())) == 1:
            raise ValueError(
                f"The baseline ends at the losses that it begins with, {NO_TEST_STEP_HINT}"
            )
        if max(history) < first_run_steps:
            finite_text = "all data are finite, so that the rate is too high"
            reason = trials.data.not_finite_message() or finite_text
            raise ValueError(
                f"The loss of the baseline is not finite in {first_run_steps:,} steps at batch "
                f"{base_batch:,} and rate {rate:.3g}: {reason}."
            )
        if not has_learned(history):
            raise ValueError(
                f"The model learns nothing in {first_run_steps:,} steps at batch {base_batch:,} "
                f"and rate {rate:.3g}, so that there is no loss to reach: look at the baseline "
                "first, or pass noise_scale=."
            )
        averages = running_means(history)
        target = averages[-1][1]
        early_loss = next(
            loss for step, loss in averages if step >= first_run_steps / EARLY_LOSS_DIVISOR
        )
        baseline_run = Run(
            base_batch,
            rate,
            0,
            steps_to_loss(history, target),
            first_run_steps,
            early_steps=steps_to_early_loss(history, early_loss),
        )
        targets = target, early_loss
        base_runs = _runs_at_batch(
            trials,
            base_batch,
            rate,
            targets,
            warmup_examples,
            first_run_steps,
            baseline_run.steps,
            say,
            log,
            baseline_run,
        )
    best_runs = runs_at_best_rate(base_runs)
    expected_steps = mean_steps(best_runs) * base_batch / large_batch
    if MAX_EXAMPLES_FACTOR * expected_steps < AVERAGED_EVALUATIONS:
        raise ValueError(
            f"Batch {base_batch:,} reaches the loss in {mean_steps(best_runs):,.0f} steps at rate "
            f"{best_runs[0].rate:.3g}, too few to compare with batch {large_batch:,}: the "
            f"baseline's rate of {rate:.3g} is far too low. Tune it with find_rate first."
        )
    with open_trials(large_batch) as trials:
        start_rate = rate * math.sqrt(large_batch / base_batch)
        large_runs = _runs_at_batch(
            trials,
            large_batch,
            start_rate,
            targets,
            warmup_examples,
            MAX_EXAMPLES_FACTOR * expected_steps,
            expected_steps,
            say,
            log,
        )
    if not runs_at_best_rate(large_runs):
        noise_limit = (large_batch - MAX_EXAMPLES_FACTOR * base_batch) / (MAX_EXAMPLES_FACTOR - 1)
        smaller_batch = large_batch // 2
        way_out = f"stay at {base_batch:,}, or look at the rate"
        if smaller_batch >= 2 * base_batch:
            way_out = (
                f"pass a smaller one, such as large_batch_size={smaller_batch}, or stay at "
                f"{base_batch:,}"
            )
        raise ValueError(
            f"No run at batch {large_batch:,} reaches the loss of the baseline's in "
            f"{MAX_EXAMPLES_FACTOR} times its "
            + (
                f"examples, so the noise scale is below {noise_limit:,.0f}"
                if noise_limit > 0
                else "examples"
            )
            + f": {way_out}."
        )
    return target, base_runs + large_runs


def runs_at_best_rate(runs: Iterable[Run]) -> list[Run]:
    """Returns the runs at the best rate; [] if none reached the target.

    The best rate is that with the fewest runs that were given up, and among several such rates
    that with the lowest geometric mean of steps.
    """
    runs_by_rate: dict[float, list[Run]] = {}
    for run in runs:
        if run.steps < math.inf:
            runs_by_rate.setdefault(run.rate, []).append(run)

    def rank(runs_of_rate):
        return sum(run.is_given_up for run in runs_of_rate), mean_steps(runs_of_rate)

    return min(runs_by_rate.values(), key=rank, default=[])


def mean_steps(runs: Iterable[Run]) -> float:
    """Returns the geometric mean of the steps of runs, a lower bound if some were given up."""
    return statistics.geometric_mean(run.steps for run in runs)


def best_runs_by_batch(runs: Iterable[Run]) -> dict[int, list[Run]]:
    """Returns, for each batch, its runs at its best rate; see `runs_at_best_rate`."""
    runs_by_batch: dict[int, list[Run]] = {}
    for run in runs:
        runs_by_batch.setdefault(run.batch, []).append(run)
    return {batch: runs_at_best_rate(batch_runs) for batch, batch_runs in runs_by_batch.items()}


def _train_or_load(log, batch, trials, *arguments):
    """Returns the result of `train_to_loss`, from the log if an interrupted search has saved it.

    Args:
        log: The `SearchLog`.
        batch: Examples of an update.
        trials: The model at that batch.
        *arguments: The other arguments of `train_to_loss`. With the batch they are the key in the
            log.
    """
    history = log.cached(
        [batch, *arguments], lambda: list(train_to_loss(trials, *arguments).items()),
        on_saved=lambda history: trials.on_step(history[-1][0] * batch),
    )  # fmt: skip
    return {step: tuple(block_losses) for step, block_losses in history}


def _runs_at_batch(
    trials,
    batch,
    start_rate,
    targets,
    warmup_examples,
    most_steps,
    least_steps,
    say,
    log,
    baseline_run=None,
):
    """Returns runs at one batch: at several rates, and at the best in other orders of the data.

    Args:
        trials: The model at that batch.
        batch: Examples of an update.
        start_rate: The rate to begin with.
        targets: The target, and the early loss.
        warmup_examples: Examples of the warmup.
        most_steps: The steps after which a run is given up.
        least_steps: About the fewest steps to the target, by which the first evaluation is placed.
        say: Prints a line.
        log: The `SearchLog`.
        baseline_run: The baseline's run, which is not made again. Defaults to None.
    """

    reached_runs: list[Run] = []
    target, early_loss = targets

    def make_run(rate, max_steps, seed=0):
        """Makes a run, and notes it if it reaches the target; see `train`."""
        finished = train(rate, max_steps, seed)
        has_reached = finished.steps < math.inf and not finished.is_given_up
        reached_runs.extend([finished] if has_reached else [])
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
        step_limit = math.ceil(max_steps if seed else min(most_steps, max_steps))
        divisor = FIRST_EVALUATION_DIVISOR * EARLY_LOSS_DIVISOR
        first_evaluation, steps_trained = min(least_steps, step_limit) / divisor, 0
        while True:
            arguments = rate, step_limit, warmup_examples / batch, first_evaluation, target, seed
            history = _train_or_load(log, batch, trials, *arguments)
            steps, loss_means = steps_to_loss(history, target), running_means(history)
            steps_trained += max(history)
            if first_evaluation <= 1 or not loss_means or steps > loss_means[0][0]:
                break
            first_evaluation /= FIRST_EVALUATION_DIVISOR  # the first evaluation was past the target
        is_lost = steps == math.inf and max(history) < step_limit
        if (
            is_lost
            and any(other_run.rate >= rate for other_run in reached_runs)
            and (reason := trials.data.not_finite_message())
        ):
            raise ValueError(
                f"The loss is not finite at batch {batch:,}, rate {rate:.3g}: {reason}."
            )
        is_given_up = seed > 0 and steps == math.inf
        outcome = f"{steps:,.1f} steps" if steps < math.inf else f"not in {step_limit:,} steps"
        say(f"batch {batch:,}, rate {rate:.3g}: {outcome}")
        loss = loss_means[-1][1] if loss_means else math.inf
        steps = step_limit if is_given_up else steps
        early_steps = steps_to_early_loss(history, early_loss)
        while early_steps == 0 and first_evaluation > 1:
            # The first evaluation was past the early loss. A repetition that ends there is short.
            first_evaluation /= FIRST_EVALUATION_DIVISOR
            history = _train_or_load(
                log,
                batch,
                trials,
                rate,
                step_limit,
                warmup_examples / batch,
                first_evaluation,
                early_loss,
                seed,
            )
            steps_trained += max(history)
            early_steps = steps_to_early_loss(history, early_loss)
        return Run(batch, rate, seed, steps, steps_trained, loss, early_steps, is_given_up)

    runs = search_fastest_rate(make_run, start_rate)
    for _ in range(MAX_FURTHER_RUNS):
        best_runs = runs_at_best_rate(runs)
        if not best_runs or len(best_runs) == BEST_RATE_RUNS:
            break
        runs.append(
            make_run(best_runs[0].rate, MAX_STEPS_FACTOR * mean_steps(best_runs), len(best_runs))
        )
    return runs
