"""What the compiler says of a replica's step, as a report; and the largest batch that fits."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from tf_lamb.tpu.compiler import Refused, TooLarge
from tf_lamb.tpu.report import Memory, Report, Work


def asked(report: Report, steps: Any, search: Callable[[Report], bool]) -> Report:
    """The report, with all that the compiler says.

    Args:
        report: what is known before: where it would run, the batch and its micro-batches.
        steps: what is compiled: `step(examples)` of a part and `update()` give a `Program` or raise
            `Refused`; `weights` and `slots` are bytes; `network(program)` says the bytes to
            all-reduce, of them those of the update alone, and the collectives if they are known.
        search: of what is known by then, whether to look for the largest batch.
    """
    available = report.topology.chip.memory

    @functools.cache
    def step(examples):
        try:
            return steps.step(examples)
        except TooLarge as error:
            return error

    def needs(examples):
        found = step(examples)
        if isinstance(found, TooLarge):
            return found.needed
        # What compiles fits, whatever the rounding of what there is.
        return min(Memory.of(found, steps.weights, steps.slots, available).needed, available)

    try:
        program = step(report.share)
        if isinstance(program, TooLarge):
            report = dataclasses.replace(report, needed=program.needed)
        else:
            memory = Memory.of(program, steps.weights, steps.slots, available)
            update, (*reduced, collectives) = steps.update(), steps.network(program)
            # Alone, the update may read what the step keeps on the chip.
            moved = program.bytes_moved
            update_moved = min(update.bytes_moved, moved)
            work = Work(program.flops, moved, update.flops, update_moved, *reduced)
            report = dataclasses.replace(
                report, memory=memory, needed=memory.needed, collectives=collectives,
                work=work.times(report.micro_batches),
            )  # fmt: skip
        if search(report):
            report = dataclasses.replace(report, largest=largest(needs, available, report.share))
    except Refused as refusal:
        report = dataclasses.replace(report, refused=str(refusal))
    return report


def largest(needs: Callable[[int], float], available: float, start: int) -> int:
    """The largest batch that fits: it does, and the next one does not.

    Memory grows about as the batch does, so a guess is where the line through what is known meets
    what there is. Near it a compiler may compute again what it cannot keep: where a line gains
    little, the next guess is twice as large, or in the middle.

    Args:
        needs: bytes at a batch; asked once for each that is tried.
        available: bytes.
        start: the first batch to try.

    Returns:
        0 where not even one example fits.
    """
    known: dict[int, float] = {}
    fits, fails, guess = 0, math.inf, max(start, 1)
    while fails - fits > 1:
        before = fails - fits
        known[guess] = needs(guess)
        if known[guess] <= available:
            fits = guess
        else:
            fails = guess
        guess = _guess(known, available, fits, fails, gained=fails - fits <= before / 2)
    return fits


def _guess(known, available, fits, fails, gained):
    if math.isinf(fails):
        if len(known) == 2:
            return max(_line(known, available) + 1, fits + 1)  # what is found must fail above
        return 2 * fits
    if not gained or len(known) == 1:
        return (fits + int(fails)) // 2
    return min(max(_line(known, available), fits + 1), int(fails) - 1)


def _line(known, available):
    """Where the line through the two batches nearest to what there is meets it."""
    one, other = sorted(known, key=lambda batch: abs(known[batch] - available))[:2]
    slope = (known[other] - known[one]) / (other - one)
    return math.floor(one + (available - known[one]) / slope) if slope > 0 else 2 * max(one, other)
