"""Stacks matrices of one shape, so that one call computes the steps of many variables.

An update rule is written for one matrix. The rules that multiply or decompose matrices (Muon, SOAP)
are generators: they do not call a function, but yield it with its arrays and its settings, and are
sent the result. `run_batched` runs the rules of many variables, and calls a function once for all
arrays of the same shapes.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

BatchedCall = tuple[Callable, Sequence, Mapping[str, Any]]
# A generator that yields functions with their arguments, and is sent the results of the functions.
# The value that it returns is the result of the step.
Step = Generator[BatchedCall, Sequence, Any]


def run_batched(xp, steps: Sequence[Step], shard: Callable | None = None) -> list:
    """Runs several steps to their ends, and calls the functions that they yield on stacks.

    A function is called as `function(xp, *arrays, **settings)`. It returns a sequence of arrays and
    works on the last two axes. If several steps yield the same function and settings, with arrays
    of the same shapes and dtypes, their arrays are stacked along a new first axis for one call.

    Args:
        xp: An array namespace such as NumPy.
        steps: The generators of the steps.
        shard: A function that wraps each yielded function, so that each device computes only some
            of the stacked matrices. Defaults to None: each device computes all of them.

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
        xp: An array namespace such as NumPy.
        step: The generator of the step.
    """
    return run_batched(xp, [step])[0]


def _call_on_stack(xp, function, arrays_of_members, settings, shard):
    """Calls a function once for several steps.

    Args:
        xp: An array namespace such as NumPy.
        function: The function.
        arrays_of_members: The arrays of each step. They are stacked for the call, unless there is
            one step and no `shard`.
        settings: The keyword arguments of the function.
        shard: As in `run_batched`.

    Returns:
        For each step the list of its result arrays.
    """
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
        xp: An array namespace such as NumPy.
        x: The matrix, or the stack, whose last two axes are those of the matrices.
    """
    *leading, rows, columns = range(len(x.shape))
    return xp.transpose(x, (*leading, columns, rows))
