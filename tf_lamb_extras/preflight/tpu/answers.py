"""Compiles a replica's step at several batches, and collects the results in a report."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tf_lamb.core.recipes.recipe import micro_batches
from tf_lamb_extras.preflight.tpu.compiler import Refused, TooLarge
from tf_lamb_extras.preflight.tpu.report import Memory, Report, Work


class Largest(NamedTuple):
    """Holds what is known of the largest batch that fits.

    Attributes:
        fits: The most examples that compiled and fit; 0 if none did.
        too_large: The fewest examples that do not fit; None if everything that was tried fits.
        predicted: The most examples that should fit, by a line through the bytes that these two
            need; or None.
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
    """Searches for the largest batch that fits.

    Memory is affine in the batch once activations dominate. So the next batch to try is the one at
    which the line through the known sizes meets the available memory. After that, the search tries
    one example more. Near the limit, a compiler may recompute what it cannot keep. So if one
    example more fits, too, the search tries a batch 1.5 times as large.

    If nothing fits yet, the next batch is an equal part of the requested batch: the largest one
    that should fit. It can be a micro-batch, even if a larger batch is not found.

    Args:
        needs: A function from a number of examples to the bytes that they need, infinite if the
            compiler refuses them. It is called once for each batch.
        available: The available bytes.
        bytes_by_batch: Examples -> the bytes that they need, for the requested batch and for 0.
        tries: The number of batches to try. Defaults to 3.
    """
    if bytes_by_batch[0] > available:
        return Largest(0, 1, 0)
    bytes_by_batch = dict(bytes_by_batch)
    requested = max(bytes_by_batch)
    for _ in range(tries):
        fits, fails = _bracket(bytes_by_batch, available)
        if fails - fits <= 1:
            break
        # The compiler rounds a size that is too large, so stay below the limit when near it.
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
    """Returns the most examples that fit, and the fewest that do not, infinite if all fit.

    Args:
        bytes_by_batch: Examples -> the bytes that they need.
        available: The available bytes.
    """
    fits = max((n for n in bytes_by_batch if bytes_by_batch[n] <= available), default=0)
    return fits, min(
        (max(n, 1) for n in bytes_by_batch if bytes_by_batch[n] > available), default=math.inf
    )


def _meeting(bytes_by_batch, available, fits, fails):
    """Returns the most examples that fit by a line through the known sizes.

    The line runs between the most examples that fit and the fewest that do not. If everything fits,
    it runs through the two largest batches, or from no examples to the largest if that line does
    not rise.

    Args:
        bytes_by_batch: Examples -> the bytes that they need.
        available: The available bytes.
        fits: The most examples that fit.
        fails: The fewest that do not, or infinity.
    """
    start, end, limit = fits, fails, fails - 1
    if math.isinf(fails):
        end, limit = fits, 1000 * fits  # no line is trusted farther than that
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
    """Compiles the step, and returns the report with the results.

    One compilation shows whether the step fits, and its minimum time. A second one, of the update
    alone, shows the update's share of this. At most three more find the largest batch.

    Args:
        report: The report before that: with the topology, the batch and its micro-batches.
        steps: An object that compiles. `step(examples)`, for the examples of a part of the batch,
            and `update()` return a `Program` or raise `Refused`. `weights` and `slots` are bytes.
            `network(program)` returns the bytes to all-reduce, those of the update alone, and the
            collectives, or None if these are unknown.
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
        # The update is part of the step, which compiles, but alone it may be refused.
        with contextlib.suppress(Refused):
            update = steps.update()
            # Alone, the update may read from memory what the step keeps on the chip.
            moved = min(update.bytes_moved, work.bytes_moved)
            work = work.times(report.micro_batches, update.flops, moved)
        report = dataclasses.replace(
            report, memory=memory, needed=memory.needed, work=work, collectives=collectives
        )
    if not largest_batch:
        return report

    def needs(examples):
        try:
            # A program that compiles fits, even if the available memory is rounded down.
            return min(memory_of(steps.step(examples)).needed, available)
        except TooLarge as error:
            return error.needed
        except Refused:
            return math.inf

    needed = report.needed or 0.0
    alone = steps.weights + steps.slots  # without examples
    if report.fits:
        needed, alone = min(needed, available), min(alone, available)
    result = largest(needs, available, {0: alone, report.share: needed})
    return dataclasses.replace(
        report, largest=result.fits, too_large=result.too_large, predicted=result.predicted
    )
