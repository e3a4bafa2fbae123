"""`recipes.largest_batch`: the largest batch that leaves so many updates."""

import pytest

from tf_lamb.core import recipes
from tf_lamb.core.recipes.scaling import fit_steps

RUNS = [(60_000, 5, 1024), (1_281_167, 90, 1024), (1000, 0.5, 37), (100, 3, 3), (7, 1, 7)]


@pytest.mark.parametrize(("examples", "epochs", "updates"), RUNS)
def test_it_leaves_enough_updates_and_the_next_larger_one_does_not(examples, epochs, updates):
    batch_size = recipes.largest_batch(examples, epochs, updates)
    assert fit_steps(epochs, examples, batch_size) >= updates
    assert batch_size == examples or fit_steps(epochs, examples, batch_size + 1) < updates


def test_all_examples_are_the_largest_batch():
    assert recipes.largest_batch(100, 2000, 1024) == 100


def test_a_run_that_is_too_short_at_any_batch_is_refused():
    with pytest.raises(ValueError, match=r"1 epochs of 1,000 examples are fewer than 2,048 upd"):
        recipes.largest_batch(1000, 1)


@pytest.mark.parametrize("arguments", [(0, 1), (100, 0), (100, 1, 0), (100, float("nan"))])
def test_what_is_out_of_range_is_refused(arguments):
    with pytest.raises(ValueError, match="must be a"):
        recipes.largest_batch(*arguments)
