"""The compiler's answers on a replica's step, as a report."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tf_lamb.core.recipes.recipe import micro_batches
from tf_lamb_extras.preflight.tpu.compiler import Refused, TooLarge
from tf_lamb_extras.preflight.tpu.report import Memory, Report, Work


class Largest(NamedTuple):
    """The bounds known of the largest batch that fits."""

    fits: int  # the most examples that compiled and fit; 0 where none did
    too_large: int | None = None  # the fewest that do not fit; None where all that was tried does
    predicted: int | None = None  # the most that fit by the line between those two


def largest(
    needs: Callable[[int], float], available: float, known: Mapping[int, float], tries: int = 3
) -> Largest:
    """Looks for the largest batch that fits.

    Memory is affine in the batch once activations lead, so the next batch to try is where the line
    through what is known meets what there is, and then one more example. Near there a compiler may
    compute again what it cannot keep: where one more fits, too, the next is half as large again.

    Where nothing fits yet, the next is the largest equal part of the batch that was asked for, of
    those that should fit: it is a micro-batch, whether or not a larger one is found.

    Args:
        needs: bytes at a batch, infinite where the compiler refuses it; asked once for each.
        available: bytes.
        known: bytes at the batch that was asked for, and at 0: what lies there without examples.
        tries: how many batches to try.
    """
    if known[0] > available:
        return Largest(0, 1, 0)
    known = dict(known)
    asked = max(known)
    for _ in range(tries):
        fits, fails = _bracket(known, available)
        if fails - fits <= 1:
            break
        # The compiler rounds the size of what is too large: near what there is, stay below it.
        near = fails in known and known[fails] < 1.01 * available
        guess = _meeting(known, available * (0.999 if near else 1), fits, fails)
        if not fits:
            guess = asked // micro_batches(asked, max(guess, 1))
        elif fits - 1 in known:
            guess = max(guess, int(fits + min(2 * fits, fails)) // 2, fits + 1)
        else:
            guess = max(guess, fits + 1)
        known[guess] = needs(guess)
    fits, fails = _bracket(known, available)
    if math.isinf(fails):
        return Largest(fits)
    return Largest(fits, int(fails), _meeting(known, available, fits, fails))


def _bracket(known, available):
    """The most examples that fit, and the fewest that do not; infinite where all do."""
    fits = max((n for n in known if known[n] <= available), default=0)
    return fits, min((max(n, 1) for n in known if known[n] > available), default=math.inf)


def _meeting(known, available, fits, fails):
    """The most examples that the line through what is known has room for.

    It is the line between what fits and what does not, or else through the two most that fit; from
    no examples to the most that fit where that does not rise.
    """
    one, other, most = fits, fails, fails - 1
    if math.isinf(fails):
        other, most = fits, 1000 * fits  # farther than that no line reaches
        one = max((n for n in known if n < fits - 1 and known[n] < known[fits]), default=0)
    rise = known[other] - known[one]
    way = (available - known[one]) / rise if rise > 0 else math.inf
    return int(min(max(one + way * (other - one), fits), most))


def asked(report: Report, steps: Any, *, largest_batch: bool) -> Report:
    """The report with the compiler's answers.

    One compilation says whether the step fits, and how long it takes at least; a second one, what
    of that is the update's; three more at most, the largest batch.

    Args:
        report: what is known before: where it would run, the batch and its micro-batches.
        steps: what is compiled: `step(examples)` of a part and `update()` give a `Program` or raise
            `Refused`; `weights` and `slots` are bytes; `network(program)` says the bytes to
            all-reduce, of them those of the update alone, and the collectives if they are known.
        largest_batch: whether to look for the largest batch.
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
        # It is part of the step, which compiles; alone it may be refused.
        with contextlib.suppress(Refused):
            update = steps.update()
            # Alone, it may read what the step keeps on the chip.
            moved = min(update.bytes_moved, work.bytes_moved)
            work = work.times(report.micro_batches, update.flops, moved)
        report = dataclasses.replace(
            report, memory=memory, needed=memory.needed, work=work, collectives=collectives
        )
    if not largest_batch:
        return report

    def needs(examples):
        try:
            # What compiles fits, whatever the rounding of what there is.
            return min(memory_of(steps.step(examples)).needed, available)
        except TooLarge as error:
            return error.needed
        except Refused:
            return math.inf

    needed = report.needed or 0.0
    needed = min(needed, available) if report.fits else needed
    found = largest(needs, available, {0: steps.weights + steps.slots, report.share: needed})
    return dataclasses.replace(
        report, largest=found.fits, too_large=found.too_large, predicted=found.predicted
    )
