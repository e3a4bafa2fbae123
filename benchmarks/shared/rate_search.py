"""Searches a learning rate on a grid of 2, by the losses of trial runs.

A rate is named by its power: it is the start rate times 2^power. `loss_at` makes a run at a power
and returns its loss.
"""

from collections.abc import Callable


def bracketed(loss_at: Callable[[int], float], most: int) -> dict[int, float]:
    """Tries rates until the best one has a worse one on either side.

    Args:
        loss_at: A function: power -> loss.
        most: The number of rates after which the search ends in any case.

    Returns:
        Power -> loss, in the order in which they were tried. The first is 0.
    """
    losses: dict[int, float] = {}

    def try_rate(power):
        if power not in losses and len(losses) < most:
            losses[power] = loss_at(power)

    try_rate(0)
    while True:
        count, best = len(losses), min(losses, key=losses.__getitem__)
        try_rate(best - 1)
        try_rate(best + 1)
        if len(losses) == count:
            return losses


def best_of(loss_at: Callable[[int], float], points: int) -> tuple[int, float]:
    """Tries this many rates, whatever they show, so that no optimizer is tuned more than another.

    The next rate is the untried one nearest to the best so far. Of two that are as near, and of two
    losses that are equal, the lower rate is taken, because runs diverge at high rates.

    Args:
        loss_at: A function: power -> loss.
        points: The number of rates.

    Returns:
        The power with the lowest loss, and its loss.
    """
    losses: dict[int, float] = {}  # the powers have no gaps
    best = power = 0
    while len(losses) < points:
        losses[power] = loss_at(power)
        best = min(losses, key=lambda power: (losses[power], power))
        beyond = min(losses) - 1, max(losses) + 1
        power = min(beyond, key=lambda power: (abs(power - best), power))
    return best, losses[best]
