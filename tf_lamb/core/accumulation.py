"""Counts the micro-batches of updates, and the epochs of a training whose batch size changes."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

# First optimizer step of a stage, rising from 0 -> the number of micro-batches of each update.
Stages = Mapping[int, int]


def largest(steps: int | Stages | None) -> int | None:
    """Returns the most micro-batches that an update takes; None if each batch is an update."""
    largest_count = max(steps.values()) if isinstance(steps, Mapping) else steps
    return None if largest_count == 1 else largest_count


def count(xp: Any, stages: Stages, step: Any) -> Any:
    """Computes the micro-batches K_i of an update, where t_i <= step < t_i+1.

    Args:
        xp: An array namespace such as NumPy.
        stages: Dict from the first step t_i of a stage to its micro-batches K_i.
        step: The number of updates before this one.

    Returns:
        The number of micro-batches, a scalar.
    """
    micro_batches, *later_counts = stages.values()
    for start, stage_count in zip(list(stages)[1:], later_counts, strict=True):
        micro_batches = xp.where(step >= start, stage_count, micro_batches)
    return micro_batches


def is_due(xp: Any, steps: int | Stages, step: Any, done: Any) -> Any:
    """Computes whether enough micro-batches have been added up for an update.

    There may be more than enough in a run that accumulated more micro-batches before and
    continues with fewer.

    Args:
        xp: An array namespace such as NumPy.
        steps: Micro-batches of an update, or stages of them.
        step: The number of updates before this one.
        done: The micro-batches that have been added up, a scalar array.

    Returns:
        A boolean scalar.
    """
    if isinstance(steps, Mapping):
        steps = xp.cast(count(xp, steps, step), done.dtype)
    return done >= steps


def batches(stages: Stages, step: int, updates: int) -> int:
    """Computes how many micro-batches a number of updates take in total.

    Args:
        stages: Dict from the first step of a stage to the micro-batches of its updates.
        step: The number of updates before the first of these.
        updates: The number of updates.
    """
    end, previous, total = step + updates, 0, 0
    for start, micro_batches in stages.items():
        total += (micro_batches - previous) * max(0, end - max(step, start))
        previous = micro_batches
    return total


@dataclasses.dataclass(frozen=True)
class Stage:
    """Describes a stage of training: a number of updates with one batch size.

    Attributes:
        batch: Examples of an update.
        steps: The number of updates.
        calls: Calls of the training step for an update, with batch / calls examples each. Defaults
            to 1.
    """

    batch: int
    steps: int
    calls: int = 1


@dataclasses.dataclass(frozen=True)
class Epochs:
    """Divides a training in stages into epochs, and these into calls of the training step.

    The examples are one stream, from which each update takes the next batch. The stream is cut into
    parts as long as an epoch of `fit` at the batch size b of the first stage, ceil(N / b) b
    examples. The updates that begin in such a part are an epoch.

    Attributes:
        stages: The stages, in order.
        examples: N, the number of examples of a pass over the data. No batch is larger.
    """

    stages: tuple[Stage, ...]
    examples: int

    @property
    def length(self) -> int:
        """The number of examples of an epoch."""
        first = self.stages[0].batch
        return math.ceil(self.examples / first) * first

    @property
    def count(self) -> int:
        """The number of epochs."""
        before_last = (
            sum(stage.batch * stage.steps for stage in self.stages) - self.stages[-1].batch
        )
        return before_last // self.length + 1

    def start(self, epoch: int) -> int:
        """Computes after how many examples of the stream the first update of an epoch begins."""
        start = 0
        for stage, steps in zip(self.stages, self._before(epoch), strict=True):
            start += stage.batch * steps
        return start

    def updates(self, epoch: int) -> int:
        """Computes the number of updates before an epoch."""
        return sum(self._before(epoch))

    def calls(self, epoch: int) -> list[tuple[int, int]]:
        """Returns the calls of the training step in an epoch, in order.

        Returns:
            Pairs (examples of a call, number of such calls).
        """
        ends = self._before(epoch + 1)
        return [
            (stage.batch // stage.calls, (end - begin) * stage.calls)
            for stage, begin, end in zip(self.stages, self._before(epoch), ends, strict=True)
            if end > begin
        ]

    def _before(self, epoch):
        """Returns, for each stage, the number of its updates that begin before an epoch."""
        position, steps = epoch * self.length, []
        for stage in self.stages:
            steps.append(min(stage.steps, max(0, math.ceil(position / stage.batch))))
            position -= stage.batch * stage.steps
        return steps
