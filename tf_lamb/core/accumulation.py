"""Batches that grow: the micro-batches of an update, and the epochs of a training in stages."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

Stages = Mapping[int, int]  # optimizer step, rising from 0 -> micro-batches of an update from there


def largest(steps: int | Stages | None) -> int | None:
    """The most micro-batches that an update takes; None where each batch is an update."""
    most = max(steps.values()) if isinstance(steps, Mapping) else steps
    return None if most == 1 else most


def count(xp: Any, stages: Stages, step: Any) -> Any:
    """The micro-batches K_i of the update after `step` others, t_i <= step < t_i+1: a scalar."""
    result, *later = stages.values()
    for start, each in zip(list(stages)[1:], later, strict=True):
        result = xp.where(step >= start, each, result)
    return result


def is_due(xp: Any, steps: int | Stages, step: Any, done: Any) -> Any:
    """Whether the update after `step` others takes no more than the `done` micro-batches.

    More may be done where a run that accumulated more micro-batches goes on with fewer.
    """
    if isinstance(steps, Mapping):
        steps = xp.cast(count(xp, steps, step), done.dtype)
    return done >= steps


def batches(stages: Stages, step: int, updates: int) -> int:
    """The micro-batches of so many updates, of which `step` others are before the first."""
    end, before, total = step + updates, 0, 0
    for start, each in stages.items():
        total += (each - before) * max(0, end - max(step, start))
        before = each
    return total


@dataclasses.dataclass(frozen=True)
class Stage:
    """Updates of one batch."""

    batch: int  # examples of an update
    steps: int  # updates
    calls: int = 1  # of the training step for an update, of batch / calls examples each


@dataclasses.dataclass(frozen=True)
class Epochs:
    """The epochs of a training: which calls of the training step, of how many examples.

    The examples are one stream, of which each update takes the next batch. An epoch is the updates
    that begin in its part of the stream, which is as long as an epoch of `fit` at the first batch:
    ceil(N / b) b of N examples.
    """

    stages: tuple[Stage, ...]
    examples: int  # of a pass over the data; no batch is larger

    @property
    def length(self) -> int:
        """Examples of an epoch."""
        first = self.stages[0].batch
        return math.ceil(self.examples / first) * first

    @property
    def count(self) -> int:
        """How many there are."""
        before_last = sum(each.batch * each.steps for each in self.stages) - self.stages[-1].batch
        return before_last // self.length + 1

    def start(self, epoch: int) -> int:
        """The place in the stream at which an epoch begins."""
        start = 0
        for stage, steps in zip(self.stages, self._before(epoch), strict=True):
            start += stage.batch * steps
        return start

    def updates(self, epoch: int) -> int:
        """The updates that begin before an epoch."""
        return sum(self._before(epoch))

    def calls(self, epoch: int) -> list[tuple[int, int]]:
        """Of an epoch, in order: (examples of a call, number of such calls)."""
        ends = self._before(epoch + 1)
        return [
            (stage.batch // stage.calls, (end - begin) * stage.calls)
            for stage, begin, end in zip(self.stages, self._before(epoch), ends, strict=True)
            if end > begin
        ]

    def _before(self, epoch):
        """The updates of each stage that begin before an epoch."""
        at, steps = epoch * self.length, []
        for stage in self.stages:
            steps.append(min(stage.steps, max(0, math.ceil(at / stage.batch))))
            at -= stage.batch * stage.steps
        return steps
