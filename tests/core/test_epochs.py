"""Epochs of a training whose batch grows, against a count update by update."""

import pytest

from tf_lamb.core.accumulation import Epochs, Stage

CASES = {
    "one stage": ([(8, 18, 1)], 48),
    "the last batch of a pass is not full": ([(8, 21, 1)], 50),
    "growing": ([(8, 10, 1), (16, 7, 2), (32, 3, 4)], 50),
    "all examples at once": ([(50, 3, 1)], 50),
    "to all examples": ([(7, 9, 1), (50, 2, 5)], 50),
    "two batches of an epoch": ([(3, 4, 1), (12, 1, 3), (24, 5, 3)], 33),
}


def listed(stages):
    """(first example, size of a call, calls) of each update."""
    start = 0
    for batch, steps, calls in stages:
        for _ in range(steps):
            yield start, batch // calls, calls
            start += batch


@pytest.mark.once
@pytest.mark.parametrize("case", CASES)
def test_an_epoch_is_the_updates_that_begin_in_it(case):
    stages, examples = CASES[case]
    epochs, updates = Epochs(tuple(Stage(*each) for each in stages), examples), [*listed(stages)]
    first = stages[0][0]
    length = -(-examples // first) * first  # as `fit` counts
    assert epochs.count == updates[-1][0] // length + 1
    for epoch in range(epochs.count):
        mine = [each for each in updates if each[0] // length == epoch]
        assert epochs.first_example(epoch) == mine[0][0]
        sizes = [size for _, size, calls in mine for _ in range(calls)]
        assert [size for size, number in epochs.calls(epoch) for _ in range(number)] == sizes


@pytest.mark.once
@pytest.mark.parametrize(
    ("batch", "largest", "epochs"), [(256, 8192, 12), (1000, 16000, 30), (256, 60000, 5)]
)
def test_a_recipe_that_grows_makes_the_epochs_that_it_is_for(batch, largest, epochs):
    from tf_lamb.core import recipes

    recipe = recipes.scale(batch, 256, 0.01, 0, examples=60000, epochs=epochs)
    grown = recipes.growing(recipe, largest)
    stages = tuple(Stage(each.batch_size, each.train_steps) for each in grown)
    assert Epochs(stages, 60000).count == epochs
