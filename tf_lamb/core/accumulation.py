"""Micro-batches of an update: a number, or one that grows from given optimizer steps on."""

from collections.abc import Mapping
from typing import Any

Stages = Mapping[int, int]  # optimizer step, rising from 0 -> micro-batches of an update from there


def largest(steps: int | Stages | None) -> int | None:
    """The most micro-batches that an update takes; None where each batch is an update."""
    most = max(steps.values()) if isinstance(steps, Mapping) else steps
    return None if most == 1 else most


def count(xp: Any, stages: Stages, step: Any) -> Any:
    """The micro-batches of the update after `step` others: a scalar, in one program for all stages.

    K = K_i  where  t_i <= t < t_i+1
    """
    result, *later = stages.values()
    for start, each in zip(list(stages)[1:], later, strict=True):
        result = xp.where(step >= start, each, result)
    return result


def is_due(xp: Any, steps: int | Stages, step: Any, done: Any) -> Any:
    """Whether the update after `step` others takes no more than the `done` micro-batches."""
    if isinstance(steps, Mapping):
        return done >= xp.cast(count(xp, steps, step), done.dtype)
    return xp.equal(done, steps)


def batches(stages: Stages, step: int, updates: int) -> int:
    """The micro-batches of so many updates, of which `step` others are before the first."""
    end, before, total = step + updates, 0, 0
    for start, each in stages.items():
        total += (each - before) * max(0, end - max(step, start))
        before = each
    return total
