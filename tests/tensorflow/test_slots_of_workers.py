"""Slots of several workers: values of float32 come from the first one, of bfloat16 from each."""

import contextlib
import types

import pytest

from tf_lamb.tensorflow import replicas


def strategy_of(workers):
    """What `colocated_with` reads of a strategy."""
    colocate = lambda variable: contextlib.nullcontext()  # noqa: E731
    extended = types.SimpleNamespace(_num_workers=workers, colocate_vars_with=colocate)
    return types.SimpleNamespace(extended=extended)


@pytest.mark.parametrize(("dtype", "within"), [("bfloat16", 1), ("float32", 2)])
def test_only_bfloat16_is_made_by_each_worker(dtype, within):
    strategy = strategy_of(2)
    with replicas.colocated_with(strategy, None, dtype):
        assert strategy.extended._num_workers == within
    assert strategy.extended._num_workers == 2


def test_an_error_leaves_the_strategy_as_it_was():
    strategy = strategy_of(2)
    with pytest.raises(ZeroDivisionError), replicas.colocated_with(strategy, None, "bfloat16"):
        1 / 0  # noqa: B018
    assert strategy.extended._num_workers == 2
