"""Seconds of a step at a few micro-batches, up to the largest that fits."""

import re
import time

from tf_lamb.api.find.trials import Trials

clock = time.perf_counter
# Calls of a micro-batch: those that compile, and those of which the quickest counts, as other
# programs only add to it.
DISCARDED, TIMED = 4, 20
GROWTH = 4  # from one micro-batch to the next
LINEAR = 0.95  # of GROWTH: nearly as many times the seconds as the examples
FULL = re.compile(
    r"resource.?exhausted|out of memory|\bOOM\b|MemoryError|failed to allocate", re.IGNORECASE
)


def is_full(error: BaseException) -> bool:
    """Whether TensorFlow, JAX or torch says that a device has no memory left."""
    return bool(FULL.search(f"{type(error).__name__}: {error}"))


def smallest(most: int) -> int:
    """The first of four micro-batches, each `GROWTH` times the one before, up to `most`."""
    times = 0
    while times < 3 and most % GROWTH == 0:
        most, times = most // GROWTH, times + 1
    return most


def step_seconds(trials: Trials, first: int, most: int) -> tuple[dict[int, float], str]:
    """Seconds of a call with its update, by micro-batch, and what ended the list.

    Each micro-batch is `GROWTH` times the one before. It ends where the device is full, after one
    try at half of that size, or where an example takes no less time in a larger micro-batch.
    """
    seen: dict[int, float] = {}
    size = first
    while size <= most:
        seconds = _fitting(trials, size, seen)
        if seconds is None:
            if (seconds := _fitting(trials, size // 2, seen)) is not None:
                seen[size // 2] = seconds
            return seen, f"micro-batches up to {max(seen):,}: {2 * max(seen):,} does not fit"
        seen[size] = seconds
        if len(seen) > 2 and seconds >= LINEAR * GROWTH * seen[size // GROWTH]:
            return seen, f"micro-batches up to {size:,}: beyond, an example takes no less time"
        size *= GROWTH
    return seen, f"micro-batches up to {max(seen):,}: larger ones were not tried"


def update_seconds(trials: Trials, size: int) -> float:
    """Of calls that accumulate two micro-batches: what the second takes longer than the first."""
    accumulates, updates = map(min, _calls(trials, size, parts=2))
    return max(0.0, updates - accumulates)


def _fitting(trials, size, seen):
    """Seconds of a call; None where there is no memory for them, but for the first size."""
    try:
        return min(_calls(trials, size)[0])
    except Exception as error:
        if not seen or not is_full(error):
            raise
        trials.start()  # some variables may be lost
        return None


def _calls(trials, size, parts=1):
    """Seconds of the calls that count, by their place in an update."""
    batch, times = next(trials.data.batches(size, 0)), []
    trials.start()
    for _ in range(DISCARDED + TIMED):
        begin = clock()
        trials.call(batch)
        times.append(clock() - begin)
    return [times[DISCARDED + part :: parts] for part in range(parts)]
