"""The noise scale of the gradients of a batch, and AdaScale's gain, which follows from it.

A batch has n independent parts, replicas or micro-batches, with gradients g_i and their mean g. All
follows from two numbers, scalars or an array of groups of variables,

    local = mean of |g_i|^2        total = |g|^2

and from the scale S, by how much the whole batch is larger than the base batch that training was
tuned at. Source: Johnson et al., arXiv:2007.05105, section 3.2 and Algorithm 2.
"""

import itertools
import math
from typing import Any, NamedTuple

from tf_lamb.core.rules.shared import debias, safe_ratio


class Averages(NamedTuple):
    """Moving averages of both moments of the gradient, without bias."""

    variance: Any  # sigma^2, the trace of the covariance of the gradient of one base batch
    signal: Any  # mu^2, the squared norm of the true gradient
    count: Any  # of the steps that they average


def moments(local, total, *, parts):
    """Unbiased variance and signal of one step, of the whole batch; the signal may be below 0.

    sigma^2 = (local - total) / (n - 1),  mu^2 = (n total - local) / (n - 1)
    """
    variance = (local - total) / (parts - 1)
    signal = (parts * total - local) / (parts - 1)
    return variance, signal


def average(xp, averages, variance, signal, *, theta, mean_first=False, when=True):
    """The averages with the moments of one step more.

        x <- x + rate (new - x)

    With `mean_first`, rate = max(1/count, 1 - theta): the plain mean of the first 1/(1 - theta)
    steps, then an exponential average, as the paper has it. Otherwise rate =
    (1 - theta)/(1 - theta^count), an exponential average without the bias of its start.

    A step that is not finite leaves everything as it is, and so does one that is not `when`.
    """
    taken = xp.isfinite(xp.sum(variance) + xp.sum(signal)) & when
    count = averages.count + 1
    if mean_first:
        rate = xp.maximum(1 / count, 1 - theta)
    else:
        rate = (1 - theta) / debias(xp, theta, count)

    def mixed(old, new):
        return xp.where(taken, old + rate * (new - old), old)

    return Averages(
        mixed(averages.variance, variance),
        mixed(averages.signal, signal),
        xp.where(taken, count, averages.count),
    )


def noise_scale(variance, signal, batch):
    """The simple noise scale in examples, tr(Sigma)/|G|^2: of the moments of a batch of so many.

    nan where the signal is 0 or below: noise hides the gradient altogether. Source: McCandlish et
    al., arXiv:1812.06162.
    """
    return batch * variance / signal if signal > 0 else math.nan


LEAST_BLOCKS = 4  # in effect, for a standard error


def standard_error(readings: list[Averages], theta: float) -> float:
    """The relative standard error of the noise scale at the last reading, from blocks of steps.

    Two readings of an average x, after s and t steps, give back the mean of the steps between them:

        block = (d_t x_t - theta^(t-s) d_s x_s) / (1 - theta^(t-s)),        d_t = 1 - theta^t

    What has entered since the first reading is a weighted mean of the blocks, whose noise is
    independent. As its noise scale is a quotient V/M, with the blocks v and m and their weights w,
    which sum to 1:

        (s.e./Bn)^2 = sum of w^2 (v/V - m/M)^2 / (1 - sum of w^2)

    What had entered before, as of a run that was restored, is taken as equally noisy: the error of
    all is smaller by the root of what both are worth; see `updates_for`. A noise scale that changes
    meanwhile counts as error.

    Args:
        readings: Of one pair of averages, as numbers, in the order of their counts. The first is
            where the reader began: of no step, or of some.
        theta: Of the averages.

    Returns:
        nan without a signal or without noise, and for fewer than 4 blocks in effect, 1/(sum of
        w^2).
    """
    if len(readings) < 2:
        return math.nan
    start, whole = readings[0], readings[-1]
    if (steps := whole.count - start.count) <= 0:
        return math.nan
    mean, squares, weights = _entered(start, whole, theta), 0.0, 0.0
    if not min(*whole[:2], *mean) > 0:
        return math.nan
    for before, now in itertools.pairwise(readings):
        if (passed := now.count - before.count) > 0:
            variance, signal = _entered(before, now, theta)
            share = theta ** (whole.count - now.count) * (1 - theta**passed) / (1 - theta**steps)
            squares += (share * (variance / mean[0] - signal / mean[1])) ** 2
            weights += share**2
    if weights * LEAST_BLOCKS > 1:
        return math.nan
    smaller = _worth(steps, theta) / _worth(whole.count, theta)
    return math.sqrt(squares / (1 - weights) * smaller)


def _entered(before, now, theta):
    """The means of the variance and of the signal of the steps between two readings."""
    kept = theta ** (now.count - before.count)
    here, there = 1 - theta**now.count, kept * (1 - theta**before.count)
    pairs = zip(now[:2], before[:2], strict=True)
    return tuple((here * new - there * old) / (1 - kept) for new, old in pairs)


def _worth(count, theta):
    """The steps of a plain mean that an average over `count` steps is worth."""
    past = theta**count
    return (1 + theta) / (1 - theta) * (1 - past) / (1 + past)


def updates_for(wanted: float, error: float, theta: float, count: float) -> int:
    """The updates over which an average has the standard error `wanted`; here it has `error`.

    An average with theta, after so many steps, is worth

        n = (1 + theta)/(1 - theta) (1 - theta^count)/(1 + theta^count)

    steps of a plain mean, and an error falls with the root of n.
    """
    return math.ceil(_worth(count, theta) * (error / wanted) ** 2)


WANTED_ERROR = 0.1


def precision(readings: list[Averages], theta: float) -> str:
    """In brackets: the standard error, and how many updates a smaller one takes, if it is known."""
    error = standard_error(readings, theta)
    if math.isnan(error):
        return ""
    if error <= WANTED_ERROR:
        return f" (standard error {error:.0%})"
    updates = updates_for(WANTED_ERROR, error, theta, readings[-1].count)
    return (
        f" (standard error {error:.0%}; {WANTED_ERROR:.0%} takes an average over {updates:,} "
        f"updates: smoothing={(updates - 1) / (updates + 1):.5g})"
    )


def cost(critical, batch):
    """Steps and examples that training takes at a batch, over the minimum of each.

        S/S_min = 1 + B_crit/B        E/E_min = 1 + B/B_crit

    At the critical batch size both are 2. Source: McCandlish et al., arXiv:1812.06162.
    """
    return 1 + critical / batch, 1 + batch / critical


def advice(critical: float, batch: int, precision: str = "") -> str:
    """Compares the batch size with the critical one, and names a better one, in sentences."""
    if math.isnan(critical):
        return (
            "The noise scale is undefined so far: the mean gradient drowns in noise, as it does at "
            "the end of training, or too few steps were measured."
        )
    if critical <= 0:  # below 0 by rounding
        return (
            "No noise was measured: the parts of a batch have equal gradients, as those of one "
            "example that is repeated. Give them different examples to know the critical batch "
            "size."
        )
    steps, examples = cost(critical, batch)
    here = (
        f"Critical batch size about {critical:,.0f}{precision}. Batch {batch:,} takes {steps:.1f}x "
        f"the minimum steps and {examples:.1f}x the minimum examples."
    )
    other = int(batch * 2.0 ** round(math.log2(max(critical, 1.0) / batch)))
    if other == batch or other < 1:
        return f"{here} That is a balance of both."
    other_steps, other_examples = cost(critical, other)
    fewer = ("steps", steps / other_steps), ("examples", examples / other_examples)
    (saved, gain), (spent, loss) = fewer if other > batch else fewer[::-1]
    cost_of_it = f"{gain:.1f}x fewer {saved} at {1 / loss:.1f}x the {spent}"
    return f"{here} Batch {other:,} would need {cost_of_it}."


LEAST_VARIANCE = 1e-6  # the paper's


def smoothing(scale):
    """The paper's theta, 1 - S/1000 or 0: the larger the batch, the shorter the memory."""
    return max(1 - scale / 1000, 0.0)


def clipped(xp, variance, signal):
    """Both moments as AdaScale averages them: a gain needs them positive."""
    return xp.maximum(variance, LEAST_VARIANCE), xp.maximum(signal, 0.0)


def gain(xp, averages, scale):
    """AdaScale's gain: how many steps of the base batch a step of the whole batch is worth.

    r = (sigma^2 + mu^2) / (sigma^2/S + mu^2),  in [1, S]
    """
    variance, signal, _ = averages
    return safe_ratio(xp, variance + signal, variance / scale + signal)


def measured(xp, averages, variance, signal, *, scale, when):
    """The averages with the moments of one step more, and their gain, 1 up to the first step."""
    averages = average(
        xp, averages, *clipped(xp, scale * variance, signal),
        theta=smoothing(scale), mean_first=True, when=when,
    )  # fmt: skip
    return averages, xp.where(averages.count > 1, gain(xp, averages, scale), 1.0)


def spent(xp, step, fraction, gain, counts):
    """tau <- tau + r if the step counts, in whole steps and the fraction, which a million keep."""
    fraction = fraction + xp.where(counts, gain, 0.0)
    whole = xp.floor(fraction)
    return step + xp.cast(whole, "int32"), fraction - whole
