"""Seconds of a step, from a few that were timed.

    C(b) = micro_batch + example b           a micro-batch of b examples; between sizes that were
                                             timed, on the line through them
    T    = k C(b) + update                   k micro-batches

The lines between sizes are there because time bends where a cache or a device is full.

Source: Qiao et al., Pollux, https://arxiv.org/abs/2008.12260, without the network.
"""

import dataclasses
import itertools
from collections.abc import Sequence

from tf_lamb.core import checks


@dataclasses.dataclass(frozen=True)
class StepTime:
    """The seconds that a step is made of, and how well they are known."""

    micro_batch: float
    example: float  # one more in a micro-batch
    update: float = 0.0
    residual: float = 0.0  # the largest of the fit, relative
    timed: tuple[tuple[float, float], ...] = ()  # micro-batches and the seconds of each, in order

    def call(self, size: float) -> float:
        """C of a micro-batch; below and beyond the sizes that were timed, by the fit."""
        points = ((0.0, self.micro_batch), *self.timed)
        for (smaller, less), (larger, more) in itertools.pairwise(points):
            if size <= larger:
                return less + (more - less) * (size - smaller) / (larger - smaller)
        largest, most = points[-1]
        return most + self.example * (size - largest)

    def step(self, size: float, accumulation: int = 1) -> float:
        """T of micro-batches of a size."""
        return accumulation * self.call(size) + self.update


def fit(micro_batches: Sequence[float], seconds: Sequence[float], update: float = 0.0) -> StepTime:
    """Fits C to measured steps of one device, by relative least squares, nothing below 0.

        minimize the sum of (C(b)/(t - update) - 1)^2,  micro_batch, example >= 0

    Args:
        micro_batches: Examples of each step.
        seconds: That each step took, its update included.
        update: Seconds of the update alone, if it was measured.

    Raises:
        ValueError: if all micro-batches are of one size, or no time is left for one.

    Example:
        >>> time = fit([16, 64, 256], [0.066, 0.114, 0.306])
        >>> round(time.micro_batch, 6), round(time.example, 6)
        (0.05, 0.001)
    """
    sizes = [checks.number("micro_batches", size, "(0, inf)") for size in micro_batches]
    if len(set(sizes)) < 2:
        raise ValueError(
            f"A fit needs two different micro-batches at least, not {sizes}: time a smaller one."
        )
    checks.number("update", update, "[0, inf)")
    rest = [checks.number("seconds", t, "(0, inf)") - update for t in seconds]
    if min(rest) <= 0:
        raise ValueError(f"update={update:g} s is no less than a step of {min(seconds):g} s.")
    rows = [(1 / t, size / t) for size, t in zip(sizes, rest, strict=True)]
    xx, xy, yy = (sum(r[i] * r[j] for r in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    x, y = (sum(r[i] for r in rows) for i in (0, 1))
    determinant = xx * yy - xy * xy
    alpha, beta = (x * yy - y * xy) / determinant, (y * xx - x * xy) / determinant
    if alpha < 0:
        alpha, beta = 0.0, y / yy
    elif beta < 0:
        alpha, beta = x / xx, 0.0
    residual = max(abs(alpha * r[0] + beta * r[1] - 1) for r in rows)
    least: dict[float, float] = {}
    for size, t in zip(sizes, rest, strict=True):
        least[size] = min(t, least.get(size, t))
    return StepTime(alpha, beta, update, residual=residual, timed=tuple(sorted(least.items())))
