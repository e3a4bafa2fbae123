"""Measures the seconds of an epoch of `fit` on a user's data, at several micro-batch sizes."""

import dataclasses
import math
import re
import statistics
from collections.abc import Callable
from time import perf_counter as clock

from tf_lamb.find.feeds import Feed
from tf_lamb.find.trials import Trials

# MIN_EPOCH_SECONDS: a timed epoch has enough steps to last this many seconds, or all steps of an
# epoch if these take less time.
# ROUNDS: the number of rounds of timing. In each round all micro-batches are timed in turn, so that
# a slow moment of the machine does not affect only one of them.
MIN_EPOCH_SECONDS, ROUNDS = 0.15, 3
# While an epoch is shorter than MIN_EPOCH_SECONDS, the next one has at most this many times as many
# steps.
MAX_STEPS_GROWTH = 8
# The most epochs that are timed in one `fit`: MAX_LONG_EPOCHS if they last MIN_EPOCH_SECONDS, and
# MAX_SHORT_EPOCHS if they have the fewest steps.
MAX_LONG_EPOCHS, MAX_SHORT_EPOCHS = 2, 8
SIZE_FACTOR = 4  # the factor from one micro-batch to the next
# A larger micro-batch saves no time if the factor by which its seconds grow is at least this share
# of the factor by which its examples grow.
LINEAR_SHARE = 0.95
# The first epoch at a micro-batch is longer than the next one. This is taken to be compilation if
# the difference is at least this share of the difference at the first micro-batch.
MIN_COMPILE_SHARE = 0.3
# The steps of an epoch are taken to need at least this share of its seconds.
MIN_STEPS_SHARE = 0.1
OUT_OF_MEMORY = re.compile(
    r"resource.?exhausted|out of memory|\bOOM\b|MemoryError|failed to allocate", re.IGNORECASE
)
OnTiming = Callable[[int], None]


@dataclasses.dataclass
class StepEstimate:
    """Holds a first estimate of the seconds of a step at a micro-batch size.

    Attributes:
        steps: The number of steps of an epoch that lasts `MIN_EPOCH_SECONDS`, or of a whole epoch
            if it is shorter.
        step_seconds: The seconds of that epoch, divided by its steps. They include a share of the
            seconds in which the epoch starts.
        compile_seconds: The seconds of compilation, by which the first epoch is longer than others.
        start_seconds: About the seconds of an epoch besides its steps. Defaults to None: unknown,
            because all epochs had the same number of steps.
    """

    steps: int
    step_seconds: float
    compile_seconds: float
    start_seconds: float | None = None

    def net_step_seconds(self, start_seconds: float) -> float:
        """Returns the seconds of a step, without a share of the start of the epoch.

        Args:
            start_seconds: The seconds of an epoch besides its steps.
        """
        return max(
            MIN_STEPS_SHARE * self.step_seconds, self.step_seconds - start_seconds / self.steps
        )


@dataclasses.dataclass(frozen=True)
class EpochTiming:
    """Holds the seconds that `fit` takes for an epoch: `start_seconds` + steps x `step_seconds`.

    Attributes:
        step_seconds: A dict from the size of a micro-batch to the seconds of a step, including the
            time to make its input.
        start_seconds: Seconds of an epoch besides its steps.
        compile_seconds: Seconds of compiling the training step for one micro-batch.
        step_seconds_without_input: A dict from the size of a micro-batch to the seconds of a step
            that does not wait for its input. Empty if the input is rows of arrays.
    """

    step_seconds: dict[int, float]
    start_seconds: float
    compile_seconds: float
    step_seconds_without_input: dict[int, float]


def sizes_to_time(base: int, largest: int) -> list[int]:
    """Returns the micro-batches to time: base/4, base, 4 base, and so on up to `largest`.

    For a base below 4 there is no base/4. `base` is in the list even if it is above `largest`. If
    the next size is above `largest`, twice the last size follows, if this is not. Without it, a
    batch of that size would be split into two micro-batches, even if the device could hold it. If
    the list would have one size only, `largest` follows, if it is larger.

    Args:
        base: The number of examples in the baseline's batch.
        largest: The most examples of a micro-batch.
    """
    sizes = [base] if base < SIZE_FACTOR else [base // SIZE_FACTOR, base]
    while SIZE_FACTOR * sizes[-1] <= largest:
        sizes.append(SIZE_FACTOR * sizes[-1])
    if 2 * sizes[-1] <= largest:
        sizes.append(2 * sizes[-1])
    elif len(sizes) < 2 and largest > sizes[-1]:
        sizes.append(largest)
    return sizes


def sizes_that_fit(
    trials: Trials,
    feed: Feed,
    sizes: list[int],
    fewest_steps: int,
    on_timing: OnTiming = lambda timings: None,
) -> tuple[dict[int, StepEstimate], str]:
    """Finds the micro-batch sizes that are worth timing, and makes a first estimate of each.

    Sizes are tried in ascending order, until one of three things happens: a size does not fit in
    memory; an example takes no less time than in the size before it, which is asked from the third
    size on; or there is no further size. If a size does not fit, half of it is tried, too, if that
    is more than the largest size that fits.

    Args:
        trials: The `Trials`, with which epochs of `fit` are timed.
        feed: Makes the input of `fit`.
        sizes: Micro-batch sizes to try, in ascending order.
        fewest_steps: The fewest steps of an epoch, which is the `steps_per_execution` of the model.
        on_timing: A function that is called with 1 after each of `sizes` that fits, for a progress
            bar. Defaults to a function that does nothing.

    Returns:
        A dict from each size that fits to its `StepEstimate`, and a text on why there is no larger
        size.
    """
    fitting: dict[int, StepEstimate] = {}
    reason = ""
    for size in sizes:
        smaller = max(fitting, default=size)
        if (estimate := _try_size(trials, feed, size, fewest_steps, fitting)) is None:
            if size // 2 > smaller:
                half_estimate = _try_size(trials, feed, size // 2, fewest_steps, fitting)
                fitting |= {} if half_estimate is None else {size // 2: half_estimate}
            reason = f"{2 * max(fitting):,} does not fit"
            break
        fitting[size] = estimate
        on_timing(1)
        start_seconds = min(
            (entry.start_seconds for entry in fitting.values() if entry.start_seconds is not None),
            default=0.0,
        )
        linear_growth = LINEAR_SHARE * size / smaller
        smaller_seconds = fitting[smaller].net_step_seconds(start_seconds)
        size_seconds = estimate.net_step_seconds(start_seconds)
        if len(fitting) > 2 and size_seconds >= linear_growth * smaller_seconds:
            reason = "beyond, an example takes no less time"
            break
    return (
        fitting,
        f"micro-batches up to {max(fitting):,}: {reason or 'larger ones were not tried'}",
    )


def _try_size(trials, feed, size, fewest_steps, smaller_sizes):
    """Times epochs at a micro-batch, and returns its `StepEstimate`, or None if it does not fit.

    Args:
        trials: The `Trials`, with which epochs of `fit` are timed.
        feed: Makes the input of `fit`.
        size: The number of examples in the micro-batch.
        fewest_steps: The fewest steps of an epoch.
        smaller_sizes: Smaller micro-batches that fit. If there are none, a lack of memory raises
            the framework's error. Every other error is raised in any case.
    """
    try:
        return first_estimate(trials, feed, size, fewest_steps)
    except Exception as error:
        if not smaller_sizes or not OUT_OF_MEMORY.search(f"{type(error).__name__}: {error}"):
            raise
        trials.start_run()  # restores variables that the error may have left without a value
        return None


def first_estimate(trials: Trials, feed: Feed, size: int, fewest_steps: int = 1) -> StepEstimate:
    """Makes a first estimate of the seconds of a step at a micro-batch size.

    It trains epochs of ever more steps, until one lasts `MIN_EPOCH_SECONDS` or is a whole epoch.
    The epochs of the fewest steps show the seconds of compilation, and together with the last one
    the seconds in which an epoch starts.

    Args:
        trials: The `Trials`, with which epochs of `fit` are timed.
        feed: Makes the input of `fit`.
        size: The number of examples in a micro-batch.
        fewest_steps: The fewest steps of an epoch. Longer epochs have a multiple of it, except that
            none has more steps than a whole epoch of the data. Defaults to 1.

    Returns:
        A `StepEstimate`.
    """
    trials.start_run()
    epoch_steps = feed.steps_per_epoch(size)
    fewest_steps = min(fewest_steps, epoch_steps)
    steps, fewest_steps_seconds, compile_seconds = fewest_steps, math.inf, math.inf
    while True:
        first_seconds, epoch_seconds = trials.time_epochs(feed.fit_arguments(size, steps), 1)
        if steps == fewest_steps:
            fewest_steps_seconds = epoch_seconds
            compile_seconds = max(0.0, first_seconds - epoch_seconds)
        if epoch_seconds >= MIN_EPOCH_SECONDS or steps >= epoch_steps:
            short_epochs = [fewest_steps_seconds] if steps > fewest_steps else []
            start_seconds = _start_seconds([epoch_seconds], short_epochs, steps, fewest_steps)
            return StepEstimate(steps, epoch_seconds / steps, compile_seconds, start_seconds)
        factor = min(MAX_STEPS_GROWTH, 1.2 * MIN_EPOCH_SECONDS / epoch_seconds)
        steps = min(epoch_steps, fewest_steps * math.ceil(factor * steps / fewest_steps))


def time_in_turn(
    trials: Trials, feed: Feed, sizes: dict[int, StepEstimate], fewest_steps: int = 1,
    on_timing: OnTiming = lambda timings: None,
) -> EpochTiming:  # fmt: skip
    """Times all micro-batch sizes in turn, in `ROUNDS` rounds.

    In each round, each size is timed in epochs of `MIN_EPOCH_SECONDS`, and in epochs of the fewest
    steps. If a pipeline makes the input, the size is also timed in epochs on one repeated batch,
    whose steps do not wait for input.

    Args:
        trials: The `Trials`, with which epochs of `fit` are timed.
        feed: Makes the input of `fit`.
        sizes: A dict from each micro-batch size to its `StepEstimate`.
        fewest_steps: The fewest steps of an epoch. Defaults to 1.
        on_timing: A function that is called with 1 after each size in each round, for a progress
            bar. Defaults to a function that does nothing.

    Returns:
        An `EpochTiming`. Its seconds of a step come from the medians over the rounds. Its
        `start_seconds` are the median over the sizes, each from its median epochs. Its
        `compile_seconds` are not timed here: they are the median of those in `sizes` that are not
        far below the first.
    """
    long_epochs: dict[int, list[float]] = {size: [] for size in sizes}
    short_epochs: dict[int, list[float]] = {size: [] for size in sizes}
    epochs_without_input: dict[int, list[float]] = {size: [] for size in sizes}
    trials.start_run()

    def mean_epoch_seconds(data, count):
        return statistics.fmean(trials.time_epochs(data, count)[1:])

    for size in ROUNDS * [*sizes]:
        steps, short_steps = sizes[size].steps, min(fewest_steps, sizes[size].steps)
        wanted_count = int(3 * MIN_EPOCH_SECONDS / (steps * sizes[size].step_seconds))
        long_count = max(1, min(MAX_LONG_EPOCHS, wanted_count))
        long_epochs[size].append(mean_epoch_seconds(feed.fit_arguments(size, steps), long_count))
        if steps > short_steps:
            wanted_count = int(MIN_EPOCH_SECONDS / (short_steps * sizes[size].step_seconds))
            short_count = max(1, min(MAX_SHORT_EPOCHS, wanted_count))
            short_epochs[size].append(
                mean_epoch_seconds(feed.fit_arguments(size, short_steps), short_count)
            )
        if feed.has_pipeline:
            epochs_without_input[size].append(
                mean_epoch_seconds(feed.repeated_batch_arguments(size, steps), long_count)
            )
        on_timing(1)
    starts = [
        _start_seconds(long_epochs[size], short_epochs[size], sizes[size].steps, fewest_steps)
        for size in sizes
    ]
    start_seconds = statistics.median([item for item in starts if item is not None] or [0.0])

    def step_seconds(samples):
        return {
            size: max(MIN_STEPS_SHARE * epoch_seconds, epoch_seconds - start_seconds)
            / sizes[size].steps
            for size, item in samples.items()
            if item and (epoch_seconds := statistics.median(item))
        }

    all_compile_seconds = [item.compile_seconds for item in sizes.values()]
    # JAX compiles a step for each size, but TensorFlow only for the first sizes. Sizes for which
    # nothing was compiled are left out of the median.
    compile_seconds = statistics.median(
        [item for item in all_compile_seconds if item >= MIN_COMPILE_SHARE * all_compile_seconds[0]]
    )
    return EpochTiming(
        step_seconds(long_epochs),
        start_seconds,
        compile_seconds,
        step_seconds(epochs_without_input),
    )


def _start_seconds(long_epochs, short_epochs, long_steps, short_steps):
    """Returns the seconds that an epoch takes besides its steps, from epochs of two lengths.

    The median epoch of each length is taken.

    Args:
        long_epochs: Seconds of epochs of `long_steps` steps.
        short_epochs: Seconds of epochs of `short_steps` steps; if there are none, the result is
            None.
        long_steps: The number of steps of a long epoch.
        short_steps: The number of steps of a short epoch.
    """
    if not short_epochs:
        return None
    long_seconds, short_seconds = statistics.median(long_epochs), statistics.median(short_epochs)
    return max(
        0.0, (short_seconds * long_steps - long_seconds * short_steps) / (long_steps - short_steps)
    )


def micro_batch_seconds_in_update(
    trials: Trials, feed: Feed, size: int, on_timing: OnTiming = lambda timings: None
) -> float:
    """Times epochs, and returns the mean seconds of a micro-batch over those of an update.

    The mean includes a share of the seconds of the update itself. If a pipeline makes the input,
    one batch is repeated, so that no micro-batch waits for input.

    Args:
        trials: The `Trials`, with `trials.calls` micro-batches in an update.
        feed: Makes the input of `fit`.
        size: The number of examples in a micro-batch.
        on_timing: A function that is called with 1 after each round, for a progress bar. Defaults
            to a function that does nothing.
    """
    estimate = first_estimate(trials, feed, size, trials.calls)
    timing = time_in_turn(trials, feed, {size: estimate}, trials.calls, on_timing)
    return (timing.step_seconds_without_input or timing.step_seconds)[size]


def time_evaluation(
    trials: Trials, feed: Feed, validation_feed: Feed, size: int, fewest_steps: int = 1
) -> tuple[float, float]:
    """Estimates the seconds of the evaluation at the end of an epoch of `fit`, and to compile it.

    Evaluations of one step and of ever more steps are timed, until one takes `MIN_EPOCH_SECONDS`
    longer than one step, or is whole. The seconds of a whole evaluation are those of one step, and
    for each further step the slope between the first and the last of these evaluations. The seconds
    of each are the difference between an epoch of the fewest training steps with this evaluation
    and one without. They include what `fit` does at the start of each evaluation, but not what it
    does only once for all evaluations.

    Args:
        trials: The `Trials`, with which epochs of `fit` are timed.
        feed: Makes the training data of `fit`.
        validation_feed: Makes the validation data of `fit`.
        size: The number of examples in a batch.
        fewest_steps: The fewest steps of an epoch. Defaults to 1.

    Returns:
        The pair (seconds of a whole evaluation, seconds of its compilation).
    """
    trials.start_run()
    fit_steps = min(fewest_steps, feed.steps_per_epoch(size))
    evaluation_steps = validation_feed.steps_per_epoch(size)

    def time_fit(arguments):
        return trials.time_epochs(
            {**feed.fit_arguments(size, fit_steps), **arguments}, MAX_LONG_EPOCHS
        )

    first_without, *without = time_fit({})
    steps, single_seconds, compile_seconds = 1, 0.0, None
    while True:
        first_seconds, *later_seconds = time_fit(validation_feed.validation_arguments(size, steps))
        evaluation_seconds = max(0.0, min(later_seconds) - min(without))
        if compile_seconds is None:
            single_seconds = evaluation_seconds
            compile_seconds = max(0.0, first_seconds - first_without - evaluation_seconds)
        if evaluation_seconds - single_seconds >= MIN_EPOCH_SECONDS or steps >= evaluation_steps:
            step_seconds = (
                max(0.0, evaluation_seconds - single_seconds) / (steps - 1) if steps > 1 else 0.0
            )
            return single_seconds + step_seconds * (evaluation_steps - 1), compile_seconds
        factor = min(MAX_STEPS_GROWTH, 1.2 * MIN_EPOCH_SECONDS / max(evaluation_seconds, 1e-9))
        steps = min(evaluation_steps, max(steps + 1, math.ceil(factor * steps)))


def time_evaluation_within_run(trials: Trials) -> tuple[float, float]:
    """Times an evaluation in the middle of a short run, and the compilation of a training step.

    Args:
        trials: The `Trials`, which make the run.

    Returns:
        The pair (seconds of an evaluation, seconds to compile a training step).
    """

    def seconds_of(call):
        start = clock()
        call()
        return clock() - start

    trials.start_run()
    first_seconds, second_seconds = (seconds_of(lambda: trials.step(0.0)) for _ in range(2))
    evaluation_seconds = [seconds_of(trials.evaluate_within_run) for _ in range(2)][1]
    return evaluation_seconds, max(0.0, first_seconds - second_seconds)
