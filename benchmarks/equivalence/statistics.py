"""Is a score that of the base, and how many updates are saved? The tests of docs/protocol.md."""

import math
from collections.abc import Sequence

import numpy as np

from benchmarks.equivalence.protocol import FROZEN


def worse_by(scores: Sequence[float], base: Sequence[float], margin: float) -> tuple[float, ...]:
    """Scores minus those of the base, paired by seed: mean, upper bound, p.

    Small scores are good. p is that of the hypothesis that they are worse by the margin or more.
    """
    from scipy import stats

    each = np.subtract(scores, base)
    if not np.isfinite(each).all():
        return math.inf, math.inf, 1.0
    error = each.std(ddof=1) / math.sqrt(len(each))
    degrees = len(each) - 1
    high = each.mean() + stats.t.ppf(FROZEN["confidence"], degrees) * error
    return each.mean(), high, stats.t.cdf((each.mean() - margin) / error, degrees)


def margin(name: str, base: Sequence[float]) -> float:
    """How much worse a score of a workload may be: a share of the base's loss, or points."""
    frozen = FROZEN["workloads"][name]
    relative = frozen["score"] == "loss"
    return frozen["margin"] * sum(base) / len(base) if relative else frozen["margin"]


def holm(ps: Sequence[float]) -> list[bool]:
    """Which hypotheses are rejected, all of a family together, by Holm's method."""
    rejected, left = [False] * len(ps), len(ps)
    for i in np.argsort(ps, kind="stable"):
        if ps[i] > (1 - FROZEN["confidence"]) / left:
            break
        rejected[i], left = True, left - 1
    return rejected


def saving(updates: Sequence[float], base: Sequence[float]) -> tuple[float, float, float]:
    """The median of base / updates, and the 95% bootstrap interval over the seeds."""
    rng = np.random.default_rng(0)
    ratios = np.divide(base, updates)  # an infinite number of updates saves nothing: 0
    drawn = rng.choice(ratios, (FROZEN["resamples"], len(ratios)))
    low, high = np.quantile(np.median(drawn, 1), [0.025, 0.975], method="nearest")
    return float(np.median(ratios)), float(low), float(high)


def power(base: Sequence[float], margin: float, n: int, family: int = 3) -> float:
    """The chance that an arm which is equal to its base in truth is seen to keep its result.

    Of n seeds, by the first step of Holm's method for so many ratios; arm and base vary as the
    base's seeds do.
    """
    from scipy import stats

    error = math.sqrt(2 / n) * float(np.std(base, ddof=1))
    bound = stats.t.ppf((1 - FROZEN["confidence"]) / family, n - 1)
    return float(stats.nct.cdf(bound, n - 1, -margin / error))
