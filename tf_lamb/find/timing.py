"""Measures the seconds that `fit` takes for an epoch on a user's data, at several micro-batches."""

import dataclasses
import math
import re
import statistics
from collections.abc import Callable
from time import perf_counter as clock

from tf_lamb.find.feeds import Feed
from tf_lamb.find.trials import Trials

# LASTS: a timed epoch lasts at least this many seconds, but it is never more than a whole epoch.
# ROUNDS: the rounds of timing. In a round all micro-batches take turns, so that a slow moment of
# the machine does not hit one of them alone.
LASTS, ROUNDS = 0.15, 3
# While an epoch is shorter than LASTS, the next one has at most this many times as many steps.
MORE = 8
# The most epochs that are timed in one `fit`. TIMED: of those that last LASTS seconds. SHORT: of
# those of the fewest steps.
TIMED, SHORT = 2, 8
GROWTH = 4  # the factor from one micro-batch to the next
# A larger micro-batch gains nothing if its seconds grow by this share of its growth in examples.
LINEAR = 0.95
# A size counts as compiled if its seconds of compilation, `Size.begin`, are at least this share of
# those of the first size.
COMPILES = 0.3
LEAST = 0.1  # the steps are taken to need at least this share of the seconds of an epoch
FULL = re.compile(
    r"resource.?exhausted|out of memory|\bOOM\b|MemoryError|failed to allocate", re.IGNORECASE
)
Tell = Callable[[int], None]


@dataclasses.dataclass
class Size:
    """Holds what is known of a micro-batch before it is timed in turn with the others.

    Attributes:
        steps: Steps of an epoch that lasts `LASTS` seconds, or of a whole one if that is shorter.
        seconds: The seconds of that epoch over its steps: those of a step, with its share of the
            start of the epoch.
        begin: Seconds by which the first epoch is longer than another one: compilation.
        start: About the seconds of an epoch besides its steps. Defaults to None: unknown, because
            all epochs had the same number of steps.
    """

    steps: int
    seconds: float
    begin: float
    start: float | None = None

    def step(self, start: float) -> float:
        """Returns the seconds of a step.

        Args:
            start: The seconds of an epoch besides its steps.
        """
        return max(LEAST * self.seconds, self.seconds - start / self.steps)


@dataclasses.dataclass(frozen=True)
class Timed:
    """Holds the seconds that `fit` takes for an epoch: `start` + steps x `seconds`.

    Attributes:
        seconds: Seconds of a step, its input included, by micro-batch.
        start: Seconds of an epoch besides its steps.
        begin: Seconds of compiling the training step for one micro-batch.
        idle: Seconds of a step without the making of its input, by micro-batch. Empty where no
            input is made.
    """

    seconds: dict[int, float]
    start: float
    begin: float
    idle: dict[int, float]


def sizes_from(base: int, largest: int) -> list[int]:
    """Returns the micro-batches to time: base/4, base, 4 base, and so on up to `largest`.

    Where the next would be too large, one of twice the last may follow: else a batch of that size,
    which the device could hold, would be planned as two micro-batches.

    Args:
        base: Examples of the baseline's batch.
        largest: The most examples of a micro-batch.
    """
    sizes = [base] if base < GROWTH else [base // GROWTH, base]
    while GROWTH * sizes[-1] <= largest:
        sizes.append(GROWTH * sizes[-1])
    if 2 * sizes[-1] <= largest:
        sizes.append(2 * sizes[-1])
    elif len(sizes) < 2 and largest > sizes[-1]:
        sizes.append(largest)
    return sizes


def sizes_that_fit(
    trials: Trials, feed: Feed, sizes: list[int], least: int, tell: Tell = lambda timings: None
) -> tuple[dict[int, Size], str]:
    """Finds the micro-batches that are worth timing.

    They end before a micro-batch that does not fit in memory, or at one in which an example takes
    no less time than in a smaller one.

    Args:
        trials: The trials of the model, whose epochs are timed.
        feed: The input of `fit`.
        sizes: Micro-batches to try, in their order.
        least: The fewest steps of an epoch, the `steps_per_execution` of the model.
        tell: Is called with 1 after each size. Defaults to a function that does nothing.

    Returns:
        A `Size` for each micro-batch, and a sentence on why there is no larger one.
    """
    fitting: dict[int, Size] = {}
    reason = ""
    for size in sizes:
        smaller = max(fitting, default=size)
        if (measured := _fitting(trials, feed, size, least, fitting)) is None:
            if size // 2 > smaller:
                half_size = _fitting(trials, feed, size // 2, least, fitting)
                fitting |= {} if half_size is None else {size // 2: half_size}
            reason = f"{2 * max(fitting):,} does not fit"
            break
        fitting[size] = measured
        tell(1)
        start = min(
            (entry.start for entry in fitting.values() if entry.start is not None), default=0.0
        )
        linear_growth = LINEAR * size / smaller
        if len(fitting) > 2 and measured.step(start) >= linear_growth * fitting[smaller].step(
            start
        ):
            reason = "beyond, an example takes no less time"
            break
    return (
        fitting,
        f"micro-batches up to {max(fitting):,}: {reason or 'larger ones were not tried'}",
    )


def _fitting(trials, feed, size, least, smaller):
    """Returns the `Size` of a micro-batch, or None if there is no memory for it.

    Args:
        trials: The trials of the model, whose epochs are timed.
        feed: The input of `fit`.
        size: Examples of the micro-batch.
        least: The fewest steps of an epoch.
        smaller: Smaller micro-batches that fit. If there are none, the error is raised.
    """
    try:
        return lasting(trials, feed, size, least)
    except Exception as error:
        if not smaller or not FULL.search(f"{type(error).__name__}: {error}"):
            raise
        trials.start()  # the error may have lost some variables
        return None


def lasting(trials: Trials, feed: Feed, size: int, least: int = 1) -> Size:
    """Finds how many steps make an epoch that lasts at least `LASTS` seconds, or a whole one.

    Args:
        trials: The trials of the model, whose epochs are timed.
        feed: The input of `fit`.
        size: Examples of a micro-batch.
        least: The fewest steps; epochs have a multiple of these. Defaults to 1.

    Returns:
        A `Size` with the steps and the seconds of a step.
    """
    trials.start()
    epoch_steps = feed.steps_per_epoch(size)
    least = min(least, epoch_steps)
    steps, least_seconds, begin = least, math.inf, math.inf
    while True:
        first_seconds, seconds = trials.epochs(feed.fit_arguments(size, steps), 1)
        if steps == least:
            least_seconds, begin = seconds, max(0.0, first_seconds - seconds)
        if seconds >= LASTS or steps >= epoch_steps:
            start = _start([seconds], [least_seconds] if steps > least else [], steps, least)
            return Size(steps, seconds / steps, begin, start)
        factor = min(MORE, 1.2 * LASTS / seconds)
        steps = min(epoch_steps, least * math.ceil(factor * steps / least))


def in_turn(
    trials: Trials, feed: Feed, sizes: dict[int, Size], least: int = 1,
    tell: Tell = lambda timings: None,
) -> Timed:  # fmt: skip
    """Times all micro-batches in turn, in `ROUNDS` rounds.

    In a round, each micro-batch is timed in epochs that last long enough, in epochs of the fewest
    steps, and, if a pipeline makes the input, in epochs on one repeated batch, whose steps do not
    wait for input.

    Args:
        trials: The trials of the model, whose epochs are timed.
        feed: The input of `fit`.
        sizes: Micro-batches, as `sizes_that_fit` found them.
        least: The fewest steps of an epoch. Defaults to 1.
        tell: Is called with 1 after each size in each round. Defaults to a function that does
            nothing.

    Returns:
        The medians over the rounds.
    """
    long: dict[int, list[float]] = {size: [] for size in sizes}
    short: dict[int, list[float]] = {size: [] for size in sizes}
    idle: dict[int, list[float]] = {size: [] for size in sizes}
    trials.start()

    def mean(data, count):
        return statistics.fmean(trials.epochs(data, count)[1:])

    for size in ROUNDS * [*sizes]:
        steps, fewest = sizes[size].steps, min(least, sizes[size].steps)
        repeats = max(1, min(TIMED, int(3 * LASTS / (steps * sizes[size].seconds))))
        long[size].append(mean(feed.fit_arguments(size, steps), repeats))
        if steps > fewest:
            short_repeats = max(1, min(SHORT, int(LASTS / (fewest * sizes[size].seconds))))
            short[size].append(mean(feed.fit_arguments(size, fewest), short_repeats))
        if feed.has_pipeline:
            idle[size].append(mean(feed.repeated_batch_arguments(size, steps), repeats))
        tell(1)
    starts = [_start(long[size], short[size], sizes[size].steps, least) for size in sizes]
    start = statistics.median([item for item in starts if item is not None] or [0.0])

    def step_seconds(samples):
        return {
            size: max(LEAST * epoch_seconds, epoch_seconds - start) / sizes[size].steps
            for size, item in samples.items()
            if item and (epoch_seconds := statistics.median(item))
        }

    compilations = [item.begin for item in sizes.values()]
    # JAX compiles a step for each size, and TensorFlow only for the first ones.
    compilation = statistics.median(
        [item for item in compilations if item >= COMPILES * compilations[0]]
    )
    return Timed(step_seconds(long), start, compilation, step_seconds(idle))


def _start(long, short, steps, least):
    """Returns the seconds that an epoch takes besides its steps, from epochs of two lengths.

    Args:
        long: Seconds of epochs of `steps` steps.
        short: Seconds of epochs of `least` steps; if there are none, the result is None.
        steps: Steps of a long epoch.
        least: Steps of a short epoch.
    """
    if not short:
        return None
    long_seconds, short_seconds = statistics.median(long), statistics.median(short)
    return max(0.0, (short_seconds * steps - long_seconds * least) / (steps - least))


def seconds_of_update(
    trials: Trials, feed: Feed, size: int, tell: Tell = lambda timings: None
) -> float:
    """Returns the seconds of a micro-batch, as the mean over the k micro-batches of an update.

    If a pipeline makes the input, one batch is repeated.

    Args:
        trials: The trials of the model, whose updates have k = `trials.calls` micro-batches.
        feed: The input of `fit`.
        size: Examples of a micro-batch.
        tell: Is called with 1 after each round. Defaults to a function that does nothing.
    """
    lasting_size = lasting(trials, feed, size, trials.calls)
    timed = in_turn(trials, feed, {size: lasting_size}, trials.calls, tell)
    return (timed.idle or timed.seconds)[size]


def of_evaluation(
    trials: Trials, feed: Feed, held_out: Feed, size: int, least: int = 1
) -> tuple[float, float]:
    """Times the evaluation at the end of an epoch of `fit`, and its compilation.

    The seconds are those by which an epoch of the fewest steps is longer with an evaluation. They
    do not include what `fit` does once for all evaluations, but what it does at the start of each.

    Args:
        trials: The trials of the model, whose epochs are timed.
        feed: The input of `fit`.
        held_out: The input of its evaluation.
        size: Examples of a batch.
        least: The fewest steps of an epoch. Defaults to 1.

    Returns:
        The seconds of an evaluation, and of the compilation.
    """
    trials.start()
    fit_steps = min(least, feed.steps_per_epoch(size))
    evaluation_steps = held_out.steps_per_epoch(size)

    def epochs(arguments):
        return trials.epochs({**feed.fit_arguments(size, fit_steps), **arguments}, TIMED)

    first_without, *without = epochs({})
    steps, single_seconds, compilation = 1, 0.0, None
    while True:
        first_seconds, *epoch_seconds = epochs(held_out.validation_arguments(size, steps))
        seconds = max(0.0, min(epoch_seconds) - min(without))
        if compilation is None:
            single_seconds, compilation = seconds, max(0.0, first_seconds - first_without - seconds)
        if seconds - single_seconds >= LASTS or steps >= evaluation_steps:
            step_seconds = max(0.0, seconds - single_seconds) / (steps - 1) if steps > 1 else 0.0
            return single_seconds + step_seconds * (evaluation_steps - 1), compilation
        factor = min(MORE, 1.2 * LASTS / max(seconds, 1e-9))
        steps = min(evaluation_steps, max(steps + 1, math.ceil(factor * steps)))


def of_look(trials: Trials) -> tuple[float, float]:
    """Returns the seconds of an evaluation within a run, and of the compilation of a step."""

    def seconds(call):
        start = clock()
        call()
        return clock() - start

    trials.start()
    first_seconds, second_seconds = (seconds(lambda: trials.step(0.0)) for _ in range(2))
    look_seconds = [seconds(trials.look) for _ in range(2)][1]
    return look_seconds, max(0.0, first_seconds - second_seconds)
