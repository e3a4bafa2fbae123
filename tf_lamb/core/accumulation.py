"""Counts micro-batches per optimizer update, and epochs of a training whose batch size changes."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

# First optimizer step of a stage of training -> the number of micro-batches of each of its updates.
# The steps are in rising order, and the first is 0.
Stages = Mapping[int, int]


def max_micro_batches(steps: int | Stages | None) -> int | None:
    """Returns the largest number of micro-batches of an update; None without accumulation.

    Args:
        steps: The number of micro-batches of each update, or such numbers by stage. None means
            one.
    """
    largest_count = max(steps.values()) if isinstance(steps, Mapping) else steps
    return None if largest_count == 1 else largest_count


def micro_batches_of_update(xp: Any, stages: Stages, step: Any) -> Any:
    """Computes the number of micro-batches of an update from the stage that the update is in.

    Args:
        xp: An array namespace such as NumPy.
        stages: First step of a stage -> the number of micro-batches of each of its updates.
        step: The number of updates before this one; it may be a traced scalar.

    Returns:
        The number of micro-batches, a scalar.
    """
    micro_batches, *later_counts = stages.values()
    for start, stage_count in zip(list(stages)[1:], later_counts, strict=True):
        micro_batches = xp.where(step >= start, stage_count, micro_batches)
    return micro_batches


def is_due(xp: Any, steps: int | Stages, step: Any, accumulated: Any) -> Any:
    """Computes whether enough micro-batches have been added up for an update.

    There may be more than enough, if a run is restored and continued with fewer micro-batches per
    update than before.

    Args:
        xp: An array namespace such as NumPy.
        steps: The number of micro-batches of each update, or such numbers by stage.
        step: The number of updates before this one.
        accumulated: The number of micro-batches that have been added up, a scalar array.

    Returns:
        A boolean scalar.
    """
    if isinstance(steps, Mapping):
        steps = xp.cast(micro_batches_of_update(xp, steps, step), accumulated.dtype)
    return accumulated >= steps


def total_micro_batches(stages: Stages, step: int, updates: int) -> int:
    """Computes how many micro-batches a number of successive updates take in total.

    Args:
        stages: First step of a stage -> the number of micro-batches of each of its updates.
        step: The number of updates that were made before. Counting begins with the next one.
        updates: The number of updates to count.
    """
    end_step, previous_count, total = step + updates, 0, 0
    for start, stage_count in stages.items():
        total += (stage_count - previous_count) * max(0, end_step - max(step, start))
        previous_count = stage_count
    return total


@dataclasses.dataclass(frozen=True)
class Stage:
    """Describes a stage of training: a number of updates with one batch size.

    Attributes:
        batch: The number of examples in an update.
        steps: The number of updates.
        calls_per_update: The number of calls of the training step for an update. Each call gets
            batch / calls_per_update examples. Defaults to 1.
    """

    batch: int
    steps: int
    calls_per_update: int = 1


@dataclasses.dataclass(frozen=True)
class Epochs:
    """Divides a training in stages into epochs, and each epoch into calls of the training step.

    The examples are one stream, from which each update takes the next batch. The stream is cut into
    parts as long as an epoch of Keras's `fit` at the batch size b of the first stage, ceil(N / b) b
    examples. An epoch is the updates whose first example lies in one part.

    Attributes:
        stages: The stages, in order.
        examples: N, the number of examples in one pass over the data. No batch is larger.
    """

    stages: tuple[Stage, ...]
    examples: int

    @property
    def examples_per_epoch(self) -> int:
        """The number of examples in a part of the stream that belongs to one epoch."""
        first_batch = self.stages[0].batch
        return math.ceil(self.examples / first_batch) * first_batch

    @property
    def count(self) -> int:
        """The number of epochs."""
        examples_before_last_update = (
            sum(stage.batch * stage.steps for stage in self.stages) - self.stages[-1].batch
        )
        return examples_before_last_update // self.examples_per_epoch + 1

    def first_example(self, epoch: int) -> int:
        """Computes how many examples of the stream come before the first update of an epoch."""
        examples = 0
        for stage, steps in zip(self.stages, self._stage_updates_before(epoch), strict=True):
            examples += stage.batch * steps
        return examples

    def updates_before(self, epoch: int) -> int:
        """Computes the number of updates in all epochs before this one."""
        return sum(self._stage_updates_before(epoch))

    def calls(self, epoch: int) -> list[tuple[int, int]]:
        """Returns the calls of the training step in an epoch, in order.

        Returns:
            A pair (examples of a call, number of such calls) for each stage that has updates in the
            epoch.
        """
        updates_after = self._stage_updates_before(epoch + 1)
        return [
            (stage.batch // stage.calls_per_update, (stop - first) * stage.calls_per_update)
            for stage, first, stop in zip(
                self.stages, self._stage_updates_before(epoch), updates_after, strict=True
            )
            if stop > first
        ]

    def _stage_updates_before(self, epoch):
        """Returns, for each stage, how many of its updates are in the epochs before this one."""
        position, updates = epoch * self.examples_per_epoch, []
        for stage in self.stages:
            updates.append(min(stage.steps, max(0, math.ceil(position / stage.batch))))
            position -= stage.batch * stage.steps
        return updates
