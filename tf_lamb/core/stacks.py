"""Computes the steps of many matrices of one shape as one array, a stack, with one product for all.

A rule is written for one matrix. Where a stack is faster (Muon, SOAP), the rule is a generator: it
does not call a function but yields the function with its arrays and its settings, and is sent the
result. `run_batched` runs the rules of many variables, and stacks the arrays of one shape that they
yield.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

BatchedCall = tuple[Callable, Sequence, Mapping[str, Any]]
# Yields functions with their arguments, is sent their results, and returns a result of its own.
Step = Generator[BatchedCall, Sequence, Any]


def run_batched(xp, steps: Sequence[Step], shard: Callable | None = None) -> list:
    """Runs several steps to their ends, and calls the functions that they yield on stacks.

    A function is called as `function(xp, *arrays, **settings)`. It returns a sequence of arrays and
    works on the last two axes. If several steps yield the same function and settings, with arrays
    of the same shapes, their arrays are stacked along a new first axis for one call.

    Args:
        xp: An array namespace.
        steps: The steps.
        shard: A function that wraps each yielded function, so that each device works on some
            members of the stack. Defaults to None: each device works on all of them.

    Returns:
        The result of each step.
    """
    final_results: list = [None] * len(steps)
    results_to_send: dict[int, Any] = dict.fromkeys(range(len(steps)))
    while results_to_send:
        stacks: dict = {}
        for i, result_to_send in results_to_send.items():
            try:
                function, arrays, settings = steps[i].send(result_to_send)
            except StopIteration as stop:
                final_results[i] = stop.value
                continue
            shapes = tuple((tuple(array.shape), str(array.dtype)) for array in arrays)
            key = function, tuple(sorted(settings.items())), shapes
            stacks.setdefault(key, []).append((i, arrays))
        results_to_send = {}
        for (function, settings, _), batched_calls in stacks.items():
            positions, arrays = zip(*batched_calls, strict=True)
            results = _call_on_stack(xp, function, arrays, dict(settings), shard)
            results_to_send |= zip(positions, results, strict=True)
    return final_results


def run_single(xp, step: Step):
    """Runs one step to its end, and returns its result.

    Args:
        xp: An array namespace.
        step: The step.
    """
    return run_batched(xp, [step])[0]


def _call_on_stack(xp, function, arrays_of_members, settings, shard):
    """Returns, for each member of a stack, the arrays that the function returns for it."""
    if shard:
        function = shard(function)
    elif len(arrays_of_members) == 1:
        return [function(xp, *arrays_of_members[0], **settings)]
    stacked = map(xp.stack, zip(*arrays_of_members, strict=True))
    result = function(xp, *stacked, **settings)
    return [[array[i] for array in result] for i in range(len(arrays_of_members))]


def transposed(xp, x):
    """Exchanges the rows and columns of a matrix, or of each matrix of a stack.

    Args:
        xp: An array namespace.
        x: The matrix, or the stack, whose last two axes are those of the matrices.
    """
    *leading, rows, columns = range(len(x.shape))
    return xp.transpose(x, (*leading, columns, rows))
