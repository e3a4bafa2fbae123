"""What the compiler says of a replica's step, as reports: the first answer first."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

from tf_lamb.tpu.compiler import Refused, TooLarge
from tf_lamb.tpu.report import Memory, Report, Work
from tf_lamb.tpu.search import largest
from tf_lamb.tpu.table import news


def asked(
    report: Report, steps: Any, *, largest_batch: bool, print_fn: Callable | None = None
) -> Report:
    """The last of the `answers`; each is printed as soon as it is known.

    Args:
        report, steps, largest_batch: see `answers`.
        print_fn: called with the rows of the table that no earlier answer had.
    """
    shown: Report | None = None
    for answer in answers(report, steps, largest_batch=largest_batch):
        if print_fn is not None and (rows := news(answer, shown)):
            print_fn(rows)
        shown = answer
    assert shown is not None  # there is a first answer
    return shown


def answers(report: Report, steps: Any, *, largest_batch: bool) -> Iterator[Report]:
    """Reports, each of which says more than the one before.

    The first is of one compilation: whether the step fits, and how long it takes at least. What of
    that is the update's comes second, and the largest batch, of three more compilations at most, in
    the end.

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
        yield report
    except Refused as refusal:
        yield dataclasses.replace(report, refused=str(refusal))
        return
    else:
        memory, (*reduced, collectives) = memory_of(program), steps.network(program)
        work = Work(program.flops, program.bytes_moved, None, None, *reduced)
        report = dataclasses.replace(
            report, memory=memory, needed=memory.needed, work=work, collectives=collectives
        )
        yield report
        # It is part of the step, which compiles; alone it may be refused.
        with contextlib.suppress(Refused):
            update = steps.update()
            # Alone, it may read what the step keeps on the chip.
            moved = min(update.bytes_moved, work.bytes_moved)
            work = work.times(report.micro_batches, update.flops, moved)
            report = dataclasses.replace(report, work=work)
            yield report

    def needs(examples):
        try:
            # What compiles fits, whatever the rounding of what there is.
            return min(memory_of(steps.step(examples)).needed, available)
        except TooLarge as error:
            return error.needed
        except Refused:
            return math.inf

    if largest_batch:
        needed = min(report.needed, available) if report.fits else report.needed
        known = {0: steps.weights + steps.slots, report.share: needed}
        found = largest(needs, available, known)
        yield dataclasses.replace(
            report, largest=found.fits, too_large=found.too_large, predicted=found.predicted
        )
