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
BEST_RATE_RUNS = 3  # the number of runs at the best rate, each with another order of the data
# The most runs in other orders of the data than the first. Such a run may show that another rate is
# the best, and BEST_RATE_RUNS runs are then made at that rate.
MAX_FURTHER_RUNS = 4
# A run at the large batch is given up after this many times the examples with which the base batch
# reaches the target.
MAX_EXAMPLES_FACTOR = 3
# A run at the best rate, in another order of the data, is given up after this many times the mean
# steps of the earlier runs at that rate.
MAX_STEPS_FACTOR = 2
# The examples of the linear warmup, as a share of the examples of the first run. Runs at the large
# batch have a warmup of as many examples.
WARMUP_SHARE = 0.05
EVALUATION_SPACING = 1.15  # the step of an evaluation, divided by the step of the one before it
# The mean of the last losses of this many evaluations is compared with the target. This mean lags
# by one evaluation. The lag is the same share of the steps at every batch, so that it does not
# change the ratio of the steps at two batches.
AVERAGED_EVALUATIONS = 3
# The early loss is the loss of the baseline after 1/EARLY_LOSS_DIVISOR of the steps of its first
# run.
EARLY_LOSS_DIVISOR = 4
# The early loss is expected after 1/EARLY_LOSS_DIVISOR of the steps to the target. The first
# evaluation is made after 1/FIRST_EVALUATION_DIVISOR of these.
FIRST_EVALUATION_DIVISOR = 4
# The large batch must be small enough that a run of it takes this many steps at least, even if the
# noise scale is infinite and the steps are as few as can be.
MIN_STEPS = 4
# To estimate the time of all runs: the pair (number of runs, evaluations of a run), first as
# expected, and then at most. As expected, the first rate at each batch is the best.
RUNS_AND_EVALUATIONS = ((2 * (2 + BEST_RATE_RUNS), 21), (2 * (MAX_RATES + MAX_FURTHER_RUNS), 30))


@dataclasses.dataclass(frozen=True)
class Run:
    """Holds the result of a short run.

    Attributes:
        batch: The number of examples in an update.
        rate: The learning rate after the warmup.
        seed: The number of the order in which the run reads the data.
        steps: The number of steps to the target loss, interpolated between two evaluations;
            infinite if the run did not reach it. If `is_given_up`, they are the steps after which
            the run was given up, which is a lower bound of the steps to the target.
        steps_trained: All steps of the run, including those of repetitions of the run in which the
            first evaluation is earlier.
        loss: The mean of the last `AVERAGED_EVALUATIONS` held-out losses of the run. Defaults to
            infinity, if there are fewer.
        early_steps: The number of steps to the early loss, which is the loss of the baseline after
            a quarter of its run. They are infinite, the default, if the run did not reach that
            loss. They are 0, and the true number is unknown, if the first mean of
            `AVERAGED_EVALUATIONS` evaluations had reached it already.
        is_given_up: Whether this is a run at the best rate, in another order of the data, that had
            not reached the target after `MAX_STEPS_FACTOR` times the mean steps of earlier runs.
            Defaults to False.
    """

    batch: int
    rate: float
    seed: int
    steps: float
    steps_trained: int
    loss: float = math.inf
    early_steps: float = math.inf
    is_given_up: bool = False


# The held-out losses of a run: for the step of each evaluation, the loss on each block of held-out
# examples.
Losses = dict[int, tuple[float, ...]]


def train_to_loss(
    trials: Trials, rate: float, most_steps: int, warmup_steps: float, first_evaluation: float,
    target: float = -math.inf, order: int = 0,
) -> Losses:  # fmt: skip
    """Trains until the target loss is reached, and returns the held-out losses of all evaluations.

    Args:
        trials: The `Trials`, which train the model with one optimizer and at one batch size.
        rate: The learning rate after the warmup.
        most_steps: The most steps.
        warmup_steps: The number of steps of a linear warmup.
        first_evaluation: The step of the second evaluation. The first one is before all steps.
        target: The loss at which the run ends. Defaults to -infinity: the run makes `most_steps`.
        order: The number of the order in which the data are read. Defaults to 0.

    Returns:
        A dict from the step of each evaluation to the loss on each block of held-out examples. It
        ends before the first loss that is not finite.
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
    """Returns pairs (step, mean of the last `AVERAGED_EVALUATIONS` held-out losses up to the step).

    The loss at step 0 is in none of the means.

    Args:
        history: The losses on the blocks of held-out examples, by step.
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
    """Returns the step at which the running mean of the loss first reaches a target.

    The step is interpolated between two evaluations. It is infinite if the running mean, which
    `running_means` computes, never reaches the target.

    Args:
        history: The losses on the blocks of held-out examples, by step.
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
    """Returns the result of `steps_to_loss`, or 0 if that step is unknown.

    It is unknown if the first running mean of the loss has already reached the target.

    Args:
        history: The losses on the blocks of held-out examples, by step.
        target: The loss to reach.
    """
    averages = running_means(history)
    return 0.0 if averages and averages[0][1] <= target else steps_to_loss(history, target)


def has_learned(history: Losses) -> bool:
    """Returns whether the last loss is clearly below the first one.

    Losses that are level by `search.is_level`, which means equal within their error, do not count.

    Args:
        history: The losses on the blocks of held-out examples, by step.
    """
    first_and_last = [
        search.Trial("", 0.0, 0.0, 0, history[step]) for step in (min(history), max(history))
    ]
    return not search.is_level(*first_and_last) and first_and_last[1].loss < first_and_last[0].loss


def search_fastest_rate(make_run: Callable[[float, float], Run], start: float) -> list[Run]:
    """Searches, by factors of two, for the rate that takes the fewest steps to the target.

    The search ends when both twice and half the best rate have been tried, or after `MAX_RATES`
    runs.

    Args:
        make_run: A function that makes a run and returns it. Its arguments are the rate, and the
            number of steps after which the run may give up: the fewest steps in which an earlier
            run reached the target.
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
    """Returns on how many examples `make_short_runs` trains, for the progress bar.

    Args:
        base_batch: The number of examples in the baseline's batch.
        first_run_steps: The number of steps of the first run.

    Returns:
        The pair (expected number, largest possible number). The expected number is right if the
        first rate at each batch is the best.
    """
    run_examples = base_batch * first_run_steps
    return 2 * run_examples * (2 + BEST_RATE_RUNS), run_examples * (1 + MAX_EXAMPLES_FACTOR) * (
        MAX_RATES + MAX_FURTHER_RUNS * MAX_STEPS_FACTOR
    )


def make_short_runs(
    open_trials: Callable[[int], AbstractContextManager[Trials]], rate: float, base_batch: int,
    large_batch: int, first_run_steps: int, say: Callable[[str], None], log: SearchLog,
) -> tuple[float, list[Run]]:  # fmt: skip
    """Makes runs to one target loss at two batch sizes.

    The first run has the baseline's batch size, the learning rate that was tuned there, and
    `first_run_steps` steps. The target is the loss at its end. The early loss is its loss after a
    quarter of these steps. Each `Run` holds the number of steps to each of the two losses.

    Args:
        open_trials: A function that takes a batch size and returns a context manager. This yields
            `Trials`, which train the model at that batch size.
        rate: The peak rate of the baseline.
        base_batch: The number of examples in the baseline's batch.
        large_batch: The number of examples in the large batch.
        first_run_steps: The number of steps of the first run.
        say: A function that prints a line.
        log: The `SearchLog`, which saves the losses of each run.

    Returns:
        The target loss, and all runs at both batch sizes.

    Raises:
        ValueError: if the baseline learns nothing or its loss is not finite, if the baseline's
            batch reaches the target in too few steps to compare, or if no run at the large batch
            reaches the target.
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
    """Returns the runs at the best rate; [] if no run has a finite number of steps.

    The best rate is the one with the fewest runs that were given up before the target. Among
    several rates with equally few, it is the one with the lowest geometric mean of steps.
    """
    runs_by_rate: dict[float, list[Run]] = {}
    for run in runs:
        if run.steps < math.inf:
            runs_by_rate.setdefault(run.rate, []).append(run)

    def rank(runs_of_rate):
        return sum(run.is_given_up for run in runs_of_rate), mean_steps(runs_of_rate)

    return min(runs_by_rate.values(), key=rank, default=[])


def mean_steps(runs: Iterable[Run]) -> float:
    """Returns the geometric mean of the steps of runs to the target loss.

    If some of the runs were given up before the target, the result is a lower bound.
    """
    return statistics.geometric_mean(run.steps for run in runs)


def best_runs_by_batch(runs: Iterable[Run]) -> dict[int, list[Run]]:
    """Returns a dict from each batch size to the runs at its best rate.

    `runs_at_best_rate` finds the best rate.
    """
    runs_by_batch: dict[int, list[Run]] = {}
    for run in runs:
        runs_by_batch.setdefault(run.batch, []).append(run)
    return {batch: runs_at_best_rate(batch_runs) for batch, batch_runs in runs_by_batch.items()}


def _train_or_load(log, batch, trials, *arguments):
    """Returns the result of `train_to_loss`, from the log if an interrupted search has saved it.

    Args:
        log: The `SearchLog`.
        batch: The number of examples in an update.
        trials: The `Trials`, which train the model at that batch.
        *arguments: The other arguments of `train_to_loss`. Together with `batch` they are the key
            under which the log saves the result.
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
    """Makes the runs at one batch size.

    The runs are at several rates, and then at the best rate in other orders of the data.

    Args:
        trials: The `Trials`, which train the model at that batch size.
        batch: The number of examples in an update.
        start_rate: The rate to begin with.
        targets: The pair (target loss, early loss). The early loss is a higher one, to which steps
            are counted as well.
        warmup_examples: The number of examples of the warmup.
        most_steps: The steps after which a run in the first order of the data is given up.
        least_steps: About the fewest steps to the target, from which the step of the first
            evaluation is computed.
        say: A function that prints a line.
        log: The `SearchLog`.
        baseline_run: The run at the baseline's rate, if it was made already. Defaults to None.

    Returns:
        The runs, in the order in which they were made.
    """

    reached_runs: list[Run] = []
    target, early_loss = targets

    def make_run(rate, max_steps, seed=0):
        """Makes a short run, and adds it to `reached_runs` if it reaches the target loss."""
        finished = train(rate, max_steps, seed)
        has_reached = finished.steps < math.inf and not finished.is_given_up
        reached_runs.extend([finished] if has_reached else [])
        return finished

    def train(rate, max_steps, seed):
        """Makes a run, or returns the baseline's run if its rate and order of the data are wanted.

        If the run has passed the target or the early loss before its first evaluations, the steps
        to that loss are unknown. The run is then repeated with earlier evaluations.

        Args:
            rate: The learning rate after the warmup.
            max_steps: The steps after which the run is given up.
            seed: The number of the order in which the data are read.

        Raises:
            ValueError: if the run was lost at no higher rate than one that has reached the target,
                and the data are not finite.
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
            # The run had reached the target at its first evaluations: repeat it with earlier ones.
            first_evaluation /= FIRST_EVALUATION_DIVISOR
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
            # The run had reached the early loss at its first evaluations: repeat it with earlier
            # ones. The repetition is short, because it ends at the early loss.
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
