"""Matrices of one shape worked on as one array, a stack, so that one product has them all.

A rule is written for one matrix. What is worth a stack it does not call but yields: a function, its
arrays and its settings, for which it is sent what the function returns. Who runs the rules of many
variables stacks what those of one shape have yielded.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

Asked = tuple[Callable, Sequence, Mapping[str, Any]]
Step = Generator[Asked, Sequence, Any]  # of what it asks it is sent the results; returns its own


def together(xp, steps: Sequence[Step], dealt: Callable | None = None) -> list:
    """Runs the steps to their ends, what they yield in stacks; returns what each returns.

    A function is called as `function(xp, *arrays, **settings)`, returns a sequence of arrays, and
    works on the last two axes: where steps ask for the same with arrays of the same shapes, each
    array has an axis before its own.

    Args:
        dealt: of a function that is given stacks, a function that returns the same, and has each
            device work on its share of the members; None where each works on all of them.
    """
    returned: list = [None] * len(steps)
    answers: dict[int, Any] = dict.fromkeys(range(len(steps)))
    while answers:
        stacks: dict = {}
        for i, answer in answers.items():
            try:
                function, arrays, settings = steps[i].send(answer)
            except StopIteration as end:
                returned[i] = end.value
                continue
            shapes = tuple((tuple(array.shape), str(array.dtype)) for array in arrays)
            key = function, tuple(sorted(settings.items())), shapes
            stacks.setdefault(key, []).append((i, arrays))
        answers = {}
        for (function, settings, _), members in stacks.items():
            positions, arrays = zip(*members, strict=True)
            results = _of_stack(xp, function, arrays, dict(settings), dealt)
            answers |= zip(positions, results, strict=True)
    return returned


def alone(xp, step: Step):
    """What one step comes to."""
    return together(xp, [step])[0]


def _of_stack(xp, function, members, settings, dealt):
    """Of each member, what the function returns for its arrays."""
    if dealt:
        function = dealt(function)
    elif len(members) == 1:
        return [function(xp, *members[0], **settings)]
    stacked = map(xp.stack, zip(*members, strict=True))
    result = function(xp, *stacked, **settings)
    return [[array[i] for array in result] for i in range(len(members))]


def transposed(xp, x):
    """The matrix, or each of a stack, with rows and columns exchanged."""
    *leading, rows, columns = range(len(x.shape))
    return xp.transpose(x, (*leading, columns, rows))
