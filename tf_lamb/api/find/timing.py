"""The seconds that `fit` takes for an epoch of the user's data, at several micro-batches."""

import dataclasses
import math
import re
import statistics
from collections.abc import Callable
from time import perf_counter as clock

from tf_lamb.api.find.feeds import Feed
from tf_lamb.api.find.trials import Trials

# Epochs are timed whole, or, where they last longer than this, their first steps, in so many
# rounds. In a round all micro-batches take turns, so that a slow moment of the machine is not that
# of one of them.
LASTS, ROUNDS = 0.15, 3
MORE = 8  # times the steps from one epoch to the next, at most, until it lasts
TIMED, SHORT = 2, 8  # epochs of a `fit` that are timed; at most of those with the fewest steps
GROWTH = 4  # from one micro-batch to the next
LINEAR = 0.95  # of GROWTH: nearly as many times the seconds as the examples
COMPILES = 0.3  # of the first seconds before a step, that those of another size are at least
LEAST = 0.1  # of an epoch of several steps, that are its steps
FULL = re.compile(
    r"resource.?exhausted|out of memory|\bOOM\b|MemoryError|failed to allocate", re.IGNORECASE
)
Tell = Callable[[int], None]


@dataclasses.dataclass
class Size:
    """What is known of a micro-batch."""

    steps: int  # of an epoch that lasts, or of a whole one
    seconds: float  # of a step, about, with its share of the start of that epoch
    begin: float  # of the first epoch, beyond those of another one: compilation
    start: float | None = None  # of an epoch, about; None where it had one length only

    def step(self, start: float) -> float:
        """Seconds of a step of epochs that have this start."""
        return max(LEAST * self.seconds, self.seconds - start / self.steps)


@dataclasses.dataclass(frozen=True)
class Timed:
    """What `fit` takes: `start` + steps x seconds, for an epoch.

    Attributes:
        seconds: Of a step, its input included, by micro-batch.
        start: Of an epoch, beside its steps.
        begin: Of the first step, whose compilation comes before it.
        idle: Of a step of `seconds` without the making of its input, by micro-batch.
    """

    seconds: dict[int, float]
    start: float
    begin: float
    idle: dict[int, float]


def sizes_from(base: int, most: int) -> list[int]:
    """Micro-batches: a quarter of the base, the base, each `GROWTH` times the one before.

    The last is twice the one before where there is no more room, so that it is that of no larger
    batch.
    """
    sizes = [base] if base < GROWTH else [base // GROWTH, base]
    while GROWTH * sizes[-1] <= most:
        sizes.append(GROWTH * sizes[-1])
    if 2 * sizes[-1] <= most:
        sizes.append(2 * sizes[-1])
    elif len(sizes) < 2 and most > sizes[-1]:
        sizes.append(most)
    return sizes


def sizes_that_fit(
    trials: Trials, feed: Feed, sizes: list[int], least: int, tell: Tell = lambda timings: None
) -> tuple[dict[int, Size], str]:
    """The micro-batches that are worth timing, and what ended the list."""
    seen: dict[int, Size] = {}
    how = ""
    for size in sizes:
        smaller = max(seen, default=size)
        if (found := _fitting(trials, feed, size, least, seen)) is None:
            if size // 2 > smaller:
                half = _fitting(trials, feed, size // 2, least, seen)
                seen |= {} if half is None else {size // 2: half}
            how = f"{2 * max(seen):,} does not fit"
            break
        seen[size] = found
        tell(1)
        start = min((each.start for each in seen.values() if each.start is not None), default=0.0)
        grown = LINEAR * size / smaller
        if len(seen) > 2 and found.step(start) >= grown * seen[smaller].step(start):
            how = "beyond, an example takes no less time"
            break
    return seen, f"micro-batches up to {max(seen):,}: {how or 'larger ones were not tried'}"


def _fitting(trials, feed, size, least, seen):
    """What lasts; None where there is no memory for it, but for the first size."""
    try:
        return lasting(trials, feed, size, least)
    except Exception as error:
        if not seen or not FULL.search(f"{type(error).__name__}: {error}"):
            raise
        trials.start()  # some variables may be lost
        return None


def lasting(trials: Trials, feed: Feed, size: int, least: int = 1) -> Size:
    """Steps of an epoch that lasts or is whole, from the least, and the seconds of a step."""
    trials.start()
    whole = feed.steps(size)
    least = min(least, whole)
    steps, few, begin = least, math.inf, math.inf
    while True:
        first, seconds = trials.epochs(feed.of(size, steps), 1)
        if steps == least:
            few, begin = seconds, max(0.0, first - seconds)
        if seconds >= LASTS or steps >= whole:
            start = _start([seconds], [few] if steps > least else [], steps, least)
            return Size(steps, seconds / steps, begin, start)
        more = min(MORE, 1.2 * LASTS / seconds)
        steps = min(whole, least * math.ceil(more * steps / least))


def in_turn(
    trials: Trials, feed: Feed, sizes: dict[int, Size], least: int = 1,
    tell: Tell = lambda timings: None,
) -> Timed:  # fmt: skip
    """The seconds of what lasts, of the fewest steps, and of one batch again and again."""
    long: dict[int, list[float]] = {size: [] for size in sizes}
    short: dict[int, list[float]] = {size: [] for size in sizes}
    idle: dict[int, list[float]] = {size: [] for size in sizes}
    trials.start()

    def mean(data, count):
        return statistics.fmean(trials.epochs(data, count)[1:])

    for size in ROUNDS * [*sizes]:
        steps, few = sizes[size].steps, min(least, sizes[size].steps)
        often = max(1, min(TIMED, int(3 * LASTS / (steps * sizes[size].seconds))))
        long[size].append(mean(feed.of(size, steps), often))
        if steps > few:
            fits = max(1, min(SHORT, int(LASTS / (few * sizes[size].seconds))))
            short[size].append(mean(feed.of(size, few), fits))
        if feed.has_work:
            idle[size].append(mean(feed.repeated(size, steps), often))
        tell(1)
    starts = [_start(long[size], short[size], sizes[size].steps, least) for size in sizes]
    start = statistics.median([each for each in starts if each is not None] or [0.0])

    def step(of):
        return {
            size: max(LEAST * taken, taken - start) / sizes[size].steps
            for size, each in of.items()
            if each and (taken := statistics.median(each))
        }

    begins = [each.begin for each in sizes.values()]
    # On JAX each size is compiled for itself, on TensorFlow the first ones are.
    compiled = statistics.median([each for each in begins if each >= COMPILES * begins[0]])
    return Timed(step(long), start, compiled, step(idle))


def _start(long, short, steps, least):
    """Of an epoch beside its steps; None where it has no other steps than the fewest."""
    if not short:
        return None
    many, few = statistics.median(long), statistics.median(short)
    return max(0.0, (few * steps - many * least) / (steps - least))


def seconds_of_update(
    trials: Trials, feed: Feed, size: int, tell: Tell = lambda timings: None
) -> float:
    """Mean seconds of the k calls of an update, on one batch again and again."""
    found = lasting(trials, feed, size, trials.calls)
    timed = in_turn(trials, feed, {size: found}, trials.calls, tell)
    return (timed.idle or timed.seconds)[size]


def of_evaluation(
    trials: Trials, feed: Feed, held_out: Feed, size: int, least: int = 1
) -> tuple[float, float]:
    """Seconds of the evaluation in an epoch of `fit`, and of the compilation before the first.

    They are those by which an epoch of the fewest steps is longer with it: what `fit` does once for
    all evaluations is not in them, and what begins each of them is.
    """
    trials.start()
    few, whole = min(least, feed.steps(size)), held_out.steps(size)

    def epochs(evaluated):
        return trials.epochs({**feed.of(size, few), **evaluated}, TIMED)

    begun, *alone = epochs({})
    steps, one, compiled = 1, 0.0, None
    while True:
        first, *taken = epochs(held_out.evaluated(size, steps))
        seconds = max(0.0, min(taken) - min(alone))
        if compiled is None:
            one, compiled = seconds, max(0.0, first - begun - seconds)
        if seconds - one >= LASTS or steps >= whole:
            step = max(0.0, seconds - one) / (steps - 1) if steps > 1 else 0.0
            return one + step * (whole - 1), compiled
        more = min(MORE, 1.2 * LASTS / max(seconds, 1e-9))
        steps = min(whole, max(steps + 1, math.ceil(more * steps)))


def of_look(trials: Trials) -> tuple[float, float]:
    """Seconds of an evaluation in a run, and of the compilation before its first step."""

    def seconds(of):
        begin = clock()
        of()
        return clock() - begin

    trials.start()
    first, again = (seconds(lambda: trials.step(0.0)) for _ in range(2))
    look = [seconds(trials.look) for _ in range(2)][1]
    return look, max(0.0, first - again)
