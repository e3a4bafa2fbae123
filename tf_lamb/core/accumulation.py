"""Counts the micro-batches of updates, and the epochs of a training whose batch size changes."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

# First optimizer step of a stage, rising from 0 -> the number of micro-batches of each update.
Stages = Mapping[int, int]


def max_micro_batches(steps: int | Stages | None) -> int | None:
    """Returns the most micro-batches that an update takes; None if each batch is an update."""
    largest_count = max(steps.values()) if isinstance(steps, Mapping) else steps
    return None if largest_count == 1 else largest_count


def micro_batches_of_update(xp: Any, stages: Stages, step: Any) -> Any:
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


def is_due(xp: Any, steps: int | Stages, step: Any, accumulated: Any) -> Any:
    """Computes whether enough micro-batches have been added up for an update.

    There may be more than enough in a run that accumulated more micro-batches before and
    continues with fewer.

    Args:
        xp: An array namespace such as NumPy.
        steps: Micro-batches of an update, or stages of them.
        step: The number of updates before this one.
        accumulated: The micro-batches that have been added up, a scalar array.

    Returns:
        A boolean scalar.
    """
    if isinstance(steps, Mapping):
        steps = xp.cast(micro_batches_of_update(xp, steps, step), accumulated.dtype)
    return accumulated >= steps


def total_micro_batches(stages: Stages, step: int, updates: int) -> int:
    """Computes how many micro-batches a number of updates take in total.

    Args:
        stages: Dict from the first step of a stage to the micro-batches of its updates.
        step: The number of updates before the first of these.
        updates: The number of updates.
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
        batch: Examples of an update.
        steps: The number of updates.
        calls_per_update: Calls of the training step for an update, with batch / calls_per_update
            examples each. Defaults to 1.
    """

    batch: int
    steps: int
    calls_per_update: int = 1


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
    def examples_per_epoch(self) -> int:
        """The number of examples of an epoch."""
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
        """Computes after how many examples of the stream the first update of an epoch begins."""
        examples = 0
        for stage, steps in zip(self.stages, self._stage_updates_before(epoch), strict=True):
            examples += stage.batch * steps
        return examples

    def updates_before(self, epoch: int) -> int:
        """Computes the number of updates before an epoch."""
        return sum(self._stage_updates_before(epoch))

    def calls(self, epoch: int) -> list[tuple[int, int]]:
        """Returns the calls of the training step in an epoch, in order.

        Returns:
            Pairs (examples of a call, number of such calls).
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
        """Returns, for each stage, the number of its updates that begin before an epoch."""
        position, updates = epoch * self.examples_per_epoch, []
        for stage in self.stages:
            updates.append(min(stage.steps, max(0, math.ceil(position / stage.batch))))
            position -= stage.batch * stage.steps
        return updates
