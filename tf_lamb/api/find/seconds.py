"""Seconds of a step of `fit` at a few micro-batches, up to the largest that fits."""

import math
import re

from tf_lamb.api.find.trials import Trials

# Epochs of a micro-batch, of which the quickest counts, as other programs only add to it: to see
# how many steps an epoch needs that lasts as long, in seconds, and in each round. In a round all
# micro-batches take turns, so that a slow moment of the machine is not that of one of them.
SEEN, ROUNDS, TIMED, LASTS = 2, 4, 2, 0.15
MORE = 8  # times the steps from one epoch to the next, at most, until it lasts
ACCUMULATED = 4  # calls of an update
GROWTH = 4  # from one micro-batch to the next
LINEAR = 0.95  # of GROWTH: nearly as many times the seconds as the examples
FULL = re.compile(
    r"resource.?exhausted|out of memory|\bOOM\b|MemoryError|failed to allocate", re.IGNORECASE
)


def is_full(error: BaseException) -> bool:
    """Whether TensorFlow, JAX or torch says that a device has no memory left."""
    return bool(FULL.search(f"{type(error).__name__}: {error}"))


def sizes_from(first: int, most: int) -> list[int]:
    """Micro-batches, each `GROWTH` times the one before, and `most` where it is the second."""
    sizes = [first]
    while GROWTH * sizes[-1] <= most:
        sizes.append(GROWTH * sizes[-1])
    return sizes if len(sizes) > 1 or first == most else [first, most]


def step_seconds(trials: Trials, sizes: list[int]) -> tuple[dict[int, float], str]:
    """Seconds of a call with its update, by micro-batch, and what ended the list.

    It ends where the device is full, after one try at half of that size, or where an example takes
    no less time in a larger micro-batch.
    """
    seen: dict[int, tuple[int, float]] = {}
    how = ""
    for size in sizes:
        smaller = max(seen, default=size)
        if (found := _fitting(trials, size, seen)) is None:
            if (found := _fitting(trials, size // 2, seen)) is not None:
                seen[size // 2] = found
            how = f"{2 * max(seen):,} does not fit"
            break
        seen[size] = found
        if len(seen) > 2 and found[1] >= LINEAR * size / smaller * seen[smaller][1]:
            how = "beyond, an example takes no less time"
            break
    how = f"micro-batches up to {max(seen):,}: {how or 'larger ones were not tried'}"
    return in_turn(trials, {size: steps for size, (steps, _) in seen.items()}), how


def update_seconds(trials: Trials, size: int, whole: float) -> float:
    """Of an update alone, from trials that accumulate and the seconds of a call that does not.

    update = (whole - mean) k/(k - 1),  with the mean of the k calls of an update
    """
    k, (steps, _) = trials.calls, lasting(trials, size)
    return max(0.0, (whole - in_turn(trials, {size: steps})[size]) * k / (k - 1))


def _fitting(trials, size, seen):
    """What lasts; None where there is no memory for it, but for the first size."""
    try:
        return lasting(trials, size)
    except Exception as error:
        if not seen or not is_full(error):
            raise
        trials.start()  # some variables may be lost
        return None


def lasting(trials: Trials, size: int) -> tuple[int, float]:
    """Steps of an epoch that lasts, with whole updates, and about the seconds of a call."""
    batch, steps = next(trials.data.batches(size, 0)), trials.calls
    trials.start()
    while (lasts := min(trials.epochs(batch, steps, SEEN))) < LASTS:
        more = min(MORE, 1.2 * LASTS / lasts)
        steps = trials.calls * math.ceil(more * steps / trials.calls)
    return steps, lasts / steps


def in_turn(trials: Trials, steps: dict[int, int]) -> dict[int, float]:
    """Seconds of a call in the quickest epoch of each micro-batch, from the steps of an epoch."""
    quickest = dict.fromkeys(steps, math.inf)
    batches = {size: next(trials.data.batches(size, 0)) for size in steps}
    trials.start()
    for size in ROUNDS * [*steps]:
        lasts = min(trials.epochs(batches[size], steps[size], TIMED))
        quickest[size] = min(quickest[size], lasts / steps[size])
    return quickest
