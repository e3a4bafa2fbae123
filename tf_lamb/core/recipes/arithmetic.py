"""Shared arithmetic of the recipes."""

import math
from fractions import Fraction

from tf_lamb.core import checks
from tf_lamb.core.messages import warn

IMAGENET = 1281167  # training pictures


def nearest(value) -> int:
    """Rounds an exact fraction to the nearest integer, halves up."""
    return math.floor(Fraction(value) + Fraction(1, 2))


def epochs_to_steps(epochs: float, examples: int, batch_size: int) -> int:
    """Returns epochs x examples / batch_size, rounded to the nearest step."""
    return nearest(Fraction(float(epochs)) * int(examples) / batch_size)


def fit_steps(epochs: float, examples: int, batch_size: int) -> int:
    """Counts the steps of `fit`, which ends an epoch with a smaller batch of the rest."""
    return nearest(Fraction(float(epochs)) * math.ceil(Fraction(int(examples), batch_size)))


def training(epochs: float, examples: int, batch_size: int, count=epochs_to_steps) -> int:
    """Checks the arguments and returns the steps of a run in epochs."""
    checks.number("epochs", epochs, "(0, inf)")
    examples = checks.integer("examples", examples, most=math.inf)
    steps = count(epochs, examples, checks.integer("batch_size", batch_size))
    if steps < 1:
        raise ValueError(
            f"Nothing would be trained: {epochs:g} epochs x {examples:,} examples / batch_size "
            f"{batch_size:,} = {epochs * examples / batch_size:.3g} steps. Take a smaller batch."
        )
    if count is fit_steps and batch_size > examples:
        warn(
            f"A batch of {batch_size:,} is larger than all {examples:,} examples: fit makes "
            f"batches of {examples:,}, for which this rate is too high."
        )
    return steps


def micro_batches(batch_size: int, most: int) -> int:
    """Counts the fewest equal micro-batches of `most` examples at most."""
    least = -(-batch_size // most)
    return next(count for count in range(least, batch_size + 1) if batch_size % count == 0)


def in_epochs(
    name: str, epochs: float, examples: int, batch_size: int, count=epochs_to_steps
) -> str:
    """Formats the conversion of epochs to steps in one line."""
    part = f"{examples:,} / {batch_size:,}"
    if count is fit_steps and examples % batch_size:
        part = f"ceil({part})"
    return f"{name} = {epochs:g} epochs x {part} = {count(epochs, examples, batch_size):,} steps"
