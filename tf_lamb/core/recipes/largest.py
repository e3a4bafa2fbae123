"""Computes the largest batch size that leaves a run enough optimizer updates."""

import math

from tf_lamb.core import checks
from tf_lamb.core.recipes.scaling import fit_steps
from tf_lamb.core.recipes.updates_left import ENOUGH_UPDATES


def largest_batch(examples: int, epochs: float, updates: int = ENOUGH_UPDATES) -> int:
    """Returns the largest batch size at which `fit` makes at least a number of updates.

    An update is one step of the optimizer; Keras's `fit` makes epochs x ceil(examples / batch) of
    them. If a large batch leaves only few updates, no scaling of hyper-parameters gives a result as
    good as with a smaller batch. Published runs have 8,599 updates for BERT at batches of 32K and
    more, and 3,519 for ResNet-50 at 32K.

    Args:
        examples: The number of examples in an epoch.
        epochs: The number of epochs to train.
        updates: The fewest updates that the run may have. Defaults to 2,048. With this many left or
            more, the networks of a registered study lost at most 2.0% (docs/updates_left.md).

    Returns:
        The batch size, `examples` at the most.

    Raises:
        TypeError: if an argument is not a number.
        ValueError: if an argument is out of range, or if even batches of one example leave fewer
            updates than `updates`.

    Example:
        >>> largest_batch(1_281_167, 90)  # ImageNet, as ResNet-50 is trained
        58234
        >>> largest_batch(60_000, 5)
        146
    """
    examples = checks.integer("examples", examples, maximum=math.inf)
    checks.number("epochs", epochs, "(0, inf)")
    updates = checks.integer("updates", updates)
    if fit_steps(epochs, examples, 1) < updates:
        raise ValueError(
            f"{epochs:g} epochs of {examples:,} examples are fewer than {updates:,} updates at any "
            "batch. Train for longer, or ask for fewer updates=."
        )
    feasible, too_large = 1, examples + 1
    while too_large - feasible > 1:
        batch_size = (feasible + too_large) // 2
        if fit_steps(epochs, examples, batch_size) >= updates:
            feasible = batch_size
        else:
            too_large = batch_size
    return feasible
