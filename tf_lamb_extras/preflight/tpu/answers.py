"""Compiles a replica's training step at several batch sizes, and reports the results."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tf_lamb.core.recipes.recipe import micro_batches
from tf_lamb_extras.preflight.tpu.compiler import Refused, TooLarge
from tf_lamb_extras.preflight.tpu.report import Memory, Report, Work


class Largest(NamedTuple):
    """Holds the result of a search for the largest batch that fits in memory.

    Attributes:
        fits: The most examples that compiled and fit; 0 if no batch did.
        too_large: The fewest examples that do not fit; None if every batch that was tried fits.
        predicted: The most examples that should fit, by linear interpolation between the bytes that
            `fits` and `too_large` examples need. None if `too_large` is None.
    """

    fits: int
    too_large: int | None = None
    predicted: int | None = None


def largest(
    needs: Callable[[int], float],
    available: float,
    bytes_by_batch: Mapping[int, float],
    tries: int = 3,
) -> Largest:
    """Searches for the largest batch that fits in memory.

    The bytes that a batch needs grow linearly with its examples once activations dominate. So the
    next batch to try is the one at which the line through the known sizes meets the available
    memory. After that, the search tries one example more. Near the limit, the compiler may save
    memory by computing some activations twice. So if one example more fits, too, the search tries a
    batch that is 1.5 times as large.

    As long as no batch fits, the search tries batches that divide the requested batch evenly, so
    that they can be its micro-batches. Of these it tries the largest that should fit.

    Args:
        needs: A function from a number of examples to the bytes that they need, infinite if the
            compiler rejects them. It is called once for each batch.
        available: The available bytes.
        bytes_by_batch: A dict from a number of examples to the bytes that they need. It has the
            requested batch, and 0 examples.
        tries: The most batches to try. Defaults to 3.
    """
    if bytes_by_batch[0] > available:
        return Largest(0, 1, 0)
    bytes_by_batch = dict(bytes_by_batch)
    requested = max(bytes_by_batch)
    for _ in range(tries):
        fits, fails = _bracket(bytes_by_batch, available)
        if fails - fits <= 1:
            break
        # The compiler reports a size that is too large as a rounded number. If such a size is near
        # the limit, the next guess is for a slightly lower limit.
        near = fails in bytes_by_batch and bytes_by_batch[fails] < 1.01 * available
        guess = _meeting(bytes_by_batch, available * (0.999 if near else 1), fits, fails)
        if not fits:
            guess = requested // micro_batches(requested, max(guess, 1))
        elif fits - 1 in bytes_by_batch:
            guess = max(guess, int(fits + min(2 * fits, fails)) // 2, fits + 1)
        else:
            guess = max(guess, fits + 1)
        bytes_by_batch[guess] = needs(guess)
    fits, fails = _bracket(bytes_by_batch, available)
    if math.isinf(fails):
        return Largest(fits)
    return Largest(fits, int(fails), _meeting(bytes_by_batch, available, fits, fails))


def _bracket(bytes_by_batch, available):
    """Returns the most examples that fit in memory, and the fewest that do not.

    The second number is infinite if all of them fit.

    Args:
        bytes_by_batch: A dict from a number of examples to the bytes that they need.
        available: The available bytes.
    """
    fits = max((n for n in bytes_by_batch if bytes_by_batch[n] <= available), default=0)
    return fits, min(
        (max(n, 1) for n in bytes_by_batch if bytes_by_batch[n] > available), default=math.inf
    )


def _meeting(bytes_by_batch, available, fits, fails):
    """Returns the number of examples at which a line through the known sizes meets the limit.

    The number is rounded down, and is at least `fits` and at most `fails` - 1. The line goes
    through the most examples that fit and the fewest that do not. If all sizes fit, it goes through
    the largest size and the next one, smaller by at least two examples, that needs fewer bytes; the
    number is then at most 1000 times `fits`.

    Args:
        bytes_by_batch: A dict from a number of examples to the bytes that they need.
        available: The available bytes, which are the limit.
        fits: The most examples that fit.
        fails: The fewest examples that do not fit, or infinity.
    """
    start, end, limit = fits, fails, fails - 1
    if math.isinf(fails):
        end, limit = fits, 1000 * fits  # a line is not extrapolated farther than this
        start = max(
            (
                n
                for n in bytes_by_batch
                if n < fits - 1 and bytes_by_batch[n] < bytes_by_batch[fits]
            ),
            default=0,
        )
    rise = bytes_by_batch[end] - bytes_by_batch[start]
    fraction = (available - bytes_by_batch[start]) / rise if rise > 0 else math.inf
    return int(min(max(start + fraction * (end - start), fits), limit))


def ask_compiler(report: Report, steps: Any, *, largest_batch: bool) -> Report:
    """Compiles the training step, and returns a report that has the results.

    One compilation shows whether the step fits in memory, and its minimum time. A second one, of
    the optimizer's update without the rest of the step, shows the update's share of that time. At
    most three more compilations find the largest batch.

    Args:
        report: A report that has only the topology, the batch and its number of micro-batches.
        steps: An object that compiles. Its methods `step(examples)`, for the examples of one part
            of the batch, and `update()` return a `Program` or raise `Refused`. Its attributes
            `weights` and `slots` are the bytes of the model's and the optimizer's variables. Its
            method `network(program)` returns the bytes to all-reduce in a step, the bytes to
            all-reduce in its update, and the collectives, or None if they are unknown.
        largest_batch: Whether to search for the largest batch.
    """
    available = report.topology.chip.memory
    memory_of = lambda program: Memory.of(program, steps.weights, steps.slots, available)  # noqa: E731
    try:
        program = steps.step(report.share)
    except TooLarge as error:
        report = dataclasses.replace(report, needed=error.needed)
    except Refused as refusal:
        return dataclasses.replace(report, refused=str(refusal))
    else:
        memory, (*reduced, collectives) = memory_of(program), steps.network(program)
        work = Work(program.flops, program.bytes_moved, None, None, *reduced)
        # The compiler may reject the update without the rest of the step, although the whole step
        # compiles. The report then lacks the share of the update.
        with contextlib.suppress(Refused):
            update = steps.update()
            # Compiled alone, the update may read data from memory that is on the chip in a step.
            moved = min(update.bytes_moved, work.bytes_moved)
            work = work.times(report.micro_batches, update.flops, moved)
        report = dataclasses.replace(
            report, memory=memory, needed=memory.needed, work=work, collectives=collectives
        )
    if not largest_batch:
        return report

    def needs(examples):
        try:
            # A program that compiles fits, even if it needs more than `available`, which is a
            # rounded number.
            return min(memory_of(steps.step(examples)).needed, available)
        except TooLarge as error:
            return error.needed
        except Refused:
            return math.inf

    needed = report.needed or 0.0
    alone = steps.weights + steps.slots  # the bytes for 0 examples
    if report.fits:
        needed, alone = min(needed, available), min(alone, available)
    result = largest(needs, available, {0: alone, report.share: needed})
    return dataclasses.replace(
        report, largest=result.fits, too_large=result.too_large, predicted=result.predicted
    )
