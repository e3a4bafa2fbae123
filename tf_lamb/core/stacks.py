"""Matrices of one shape worked on as one array, a stack, so that one product has them all.

A rule is written for one matrix. What is worth a stack it does not call but yields: the function
and its array, for which it is sent what the function returns. Who runs the rules of many variables
stacks what those of one shape have yielded.
"""

from collections.abc import Generator, Sequence
from typing import Any

Step = Generator[tuple, Any, Any]  # yields a function and its array, and returns what it comes to


def together(xp, steps: Sequence[Step]) -> list:
    """Runs the steps to their ends, what they yield in stacks; returns what each returns.

    A function is taken for another's equal where they stand in steps of one rule. It takes an array
    of any number of axes, works on the last two, and returns one of the same shape.
    """
    returned: list = [None] * len(steps)
    answers: dict[int, Any] = dict.fromkeys(range(len(steps)))
    while answers:
        stacks: dict = {}
        for i, answer in answers.items():
            try:
                function, array = steps[i].send(answer)
            except StopIteration as end:
                returned[i] = end.value
                continue
            alike = tuple(array.shape), str(array.dtype)
            stacks.setdefault(alike, []).append((i, function, array))
        answers = {}
        for members in stacks.values():
            positions, (function, *_), arrays = zip(*members, strict=True)
            answers |= zip(positions, _of_stack(xp, function, arrays), strict=True)
    return returned


def alone(xp, step: Step):
    """What one step comes to."""
    return together(xp, [step])[0]


def _of_stack(xp, function, arrays):
    if len(arrays) == 1:
        return [function(arrays[0])]
    made = function(xp.stack(arrays))
    return [made[i] for i in range(len(arrays))]


def transposed(xp, x):
    """The matrix, or each of a stack, with rows and columns exchanged."""
    *others, rows, columns = range(len(x.shape))
    return xp.transpose(x, (*others, columns, rows))
