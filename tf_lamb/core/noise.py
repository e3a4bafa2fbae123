"""The noise scale of the gradients of a batch, and AdaScale's gain, which follows from it.

A batch has n independent parts, replicas or micro-batches, with gradients g_i and their mean g.
Everything follows from two numbers, scalars or an array of groups of variables,

    local = mean of |g_i|^2        total = |g|^2

and from the scale S, by how much the whole batch is larger than the base batch that training was
tuned at. Source: Johnson et al., arXiv:2007.05105, section 3.2 and Algorithm 2.
"""

import itertools
import math
from typing import Any, NamedTuple

from tf_lamb.core.rules.shared import debias, safe_ratio


class Averages(NamedTuple):
    """Moving averages of both moments of the gradient, without bias.

    Attributes:
        variance: sigma^2, the trace of the covariance of the gradient of one base batch.
        signal: mu^2, the squared norm of the true gradient.
        count: The steps that they average.
    """

    variance: Any
    signal: Any
    count: Any


def moments(local, total, *, parts):
    """Returns unbiased estimates of variance and signal from one step of the whole batch.

        sigma^2 = (local - total) / (n - 1),  mu^2 = (n total - local) / (n - 1)

    The signal may be below 0.

    Args:
        local: The mean of |g_i|^2 over the parts.
        total: |g|^2 of the mean gradient.
        parts: n, the number of parts.
    """
    variance = (local - total) / (parts - 1)
    signal = (parts * total - local) / (parts - 1)
    return variance, signal


def average(xp, averages, variance, signal, *, theta, mean_first=False, when=True):
    """Returns the averages with the moments of one step more.

        x <- x + rate (new - x)

    With `mean_first`, rate = max(1/count, 1 - theta): the plain mean of the first 1/(1 - theta)
    steps, then an exponential average, as the paper has it. Otherwise
    rate = (1 - theta)/(1 - theta^count), an exponential average without the bias of its start.

    A step that is not finite leaves everything as it is, and so does one that is not `when`.

    Args:
        xp: The array library.
        averages: The `Averages` before the step.
        variance: The variance of the step.
        signal: The signal of the step.
        theta: The share of the old averages that an exponential average keeps.
        mean_first: Whether to begin with a plain mean. Defaults to False.
        when: Whether to count the step. Defaults to True.
    """
    is_counted = xp.isfinite(xp.sum(variance) + xp.sum(signal)) & when
    count = averages.count + 1
    if mean_first:
        rate = xp.maximum(1 / count, 1 - theta)
    else:
        rate = (1 - theta) / debias(xp, theta, count)

    def updated(old, new):
        return xp.where(is_counted, old + rate * (new - old), old)

    return Averages(
        updated(averages.variance, variance),
        updated(averages.signal, signal),
        xp.where(is_counted, count, averages.count),
    )


def noise_scale(variance, signal, batch):
    """Returns the simple noise scale in examples, tr(Sigma)/|G|^2.

    It is nan where the signal is 0 or below: noise hides the gradient altogether. Source:
    McCandlish et al., arXiv:1812.06162.

    Args:
        variance: sigma^2 of a batch.
        signal: mu^2.
        batch: The examples of that batch.
    """
    return batch * variance / signal if signal > 0 else math.nan


LEAST_BLOCKS = 4  # the fewest blocks in effect that give a standard error


def standard_error(readings: list[Averages], theta: float) -> float:
    """Returns the relative standard error of the noise scale at the last reading.

    It comes from blocks of steps. Two readings of an average x, after s and t steps, give back the
    mean of the steps between them:

        block = (d_t x_t - theta^(t-s) d_s x_s) / (1 - theta^(t-s)),        d_t = 1 - theta^t

    The steps since the first reading are in the average as a weighted mean of the blocks, whose
    noise is independent. The noise scale is a quotient V/M. With the blocks v and m, and their
    weights w, which sum to 1,

        (s.e./Bn)^2 = sum of w^2 (v/V - m/M)^2 / (1 - sum of w^2)

    The steps before the first reading, as in a run that was restored, are taken as equally noisy:
    the error of all is smaller by the root of what both are worth; see `updates_for`. A noise scale
    that changes meanwhile counts as error.

    Args:
        readings: Readings of one pair of averages, as numbers, in the order of their counts. The
            first is where the reader began: of no step, or of some.
        theta: The share that the averages keep.

    Returns:
        The error; nan without a signal or without noise, and for fewer than 4 blocks in effect,
        1/(sum of w^2).
    """
    if len(readings) < 2:
        return math.nan
    start, last = readings[0], readings[-1]
    if (total_steps := last.count - start.count) <= 0:
        return math.nan
    mean, squares, weights = _entered(start, last, theta), 0.0, 0.0
    if not min(*last[:2], *mean) > 0:
        return math.nan
    for before, after in itertools.pairwise(readings):
        if (steps_between := after.count - before.count) > 0:
            variance, signal = _entered(before, after, theta)
            share = (
                theta ** (last.count - after.count)
                * (1 - theta**steps_between)
                / (1 - theta**total_steps)
            )
            squares += (share * (variance / mean[0] - signal / mean[1])) ** 2
            weights += share**2
    if weights * LEAST_BLOCKS > 1:
        return math.nan
    shrinkage = _worth(total_steps, theta) / _worth(last.count, theta)
    return math.sqrt(squares / (1 - weights) * shrinkage)


def _entered(before, now, theta):
    """Returns the mean variance and signal of the steps between two readings."""
    retained = theta ** (now.count - before.count)
    weight_now, weight_before = 1 - theta**now.count, retained * (1 - theta**before.count)
    pairs = zip(now[:2], before[:2], strict=True)
    return tuple((weight_now * new - weight_before * old) / (1 - retained) for new, old in pairs)


def _worth(count, theta):
    """Returns the steps of a plain mean that an average over `count` steps is worth."""
    past = theta**count
    return (1 + theta) / (1 - theta) * (1 - past) / (1 + past)


def updates_for(wanted: float, error: float, theta: float, count: float) -> int:
    """Returns the updates over which an average has a wanted standard error.

    An average with theta, after `count` steps, is worth

        n = (1 + theta)/(1 - theta) (1 - theta^count)/(1 + theta^count)

    steps of a plain mean, and an error falls with the root of n.

    Args:
        wanted: The relative standard error to reach.
        error: The relative standard error of this average.
        theta: The share that this average keeps.
        count: The steps of this average.
    """
    return math.ceil(_worth(count, theta) * (error / wanted) ** 2)


WANTED_ERROR = 0.1  # relative standard error that `precision` asks for


def precision(readings: list[Averages], theta: float) -> str:
    """Returns the standard error and how many updates a smaller one takes, in brackets.

    Args:
        readings: Readings of the averages, as `standard_error` takes them.
        theta: The share that the averages keep.

    Returns:
        The text with a space before it; "" if the error is not known.
    """
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
    """Returns the steps and the examples that training takes at a batch, over the minimum of each.

        S/S_min = 1 + B_crit/B        E/E_min = 1 + B/B_crit

    At the critical batch size both are 2. Source: McCandlish et al., arXiv:1812.06162.

    Args:
        critical: The critical batch size, B_crit.
        batch: The batch, B.
    """
    return 1 + critical / batch, 1 + batch / critical


def advice(critical: float, batch: int, precision: str = "") -> str:
    """Compares the batch size with the critical one, and names a better one, in sentences.

    Args:
        critical: The critical batch size in examples; nan if it is not known.
        batch: Examples of the batch.
        precision: The text of `precision`. Defaults to "".
    """
    if math.isnan(critical):
        return (
            "The noise scale is undefined so far: the mean gradient drowns in noise, as it does at "
            "the end of training, or too few steps were measured."
        )
    if critical <= 0:  # rounding may take 0 below 0
        return (
            "No noise was measured: the parts of a batch have equal gradients, as those of one "
            "example that is repeated. Give them different examples to know the critical batch "
            "size."
        )
    steps, examples = cost(critical, batch)
    summary = (
        f"Critical batch size about {critical:,.0f}{precision}. Batch {batch:,} takes {steps:.1f}x "
        f"the minimum steps and {examples:.1f}x the minimum examples."
    )
    proposed = int(batch * 2.0 ** round(math.log2(max(critical, 1.0) / batch)))
    if proposed == batch or proposed < 1:
        return f"{summary} That is a balance of both."
    proposed_steps, proposed_examples = cost(critical, proposed)
    ratios = ("steps", steps / proposed_steps), ("examples", examples / proposed_examples)
    (saved, gain), (spent, loss) = ratios if proposed > batch else ratios[::-1]
    trade = f"{gain:.1f}x fewer {saved} at {1 / loss:.1f}x the {spent}"
    return f"{summary} Batch {proposed:,} would need {trade}."


LEAST_VARIANCE = 1e-6  # from the paper


def smoothing(scale):
    """Returns the paper's theta, 1 - S/1000 or 0: the larger the batch, the shorter the memory."""
    return max(1 - scale / 1000, 0.0)


def clipped(xp, variance, signal):
    """Returns both moments as AdaScale averages them: a gain needs them positive.

    Args:
        xp: The array library.
        variance: The variance of a step.
        signal: The signal of a step.
    """
    return xp.maximum(variance, LEAST_VARIANCE), xp.maximum(signal, 0.0)


def gain(xp, averages, scale):
    """Returns AdaScale's gain: the steps of the base batch that a step of the whole batch is worth.

        r = (sigma^2 + mu^2) / (sigma^2/S + mu^2),  in [1, S]

    Args:
        xp: The array library.
        averages: The `Averages` of both moments.
        scale: S, the whole batch over the base batch.
    """
    variance, signal, _ = averages
    return safe_ratio(xp, variance + signal, variance / scale + signal)


def measured(xp, averages, variance, signal, *, scale, when):
    """Returns the averages with the moments of one step more, and their gain.

    The gain is 1 up to the first step.

    Args:
        xp: The array library.
        averages: The `Averages` before the step.
        variance: The variance of the step, of the whole batch.
        signal: The signal of the step.
        scale: S, the whole batch over the base batch.
        when: Whether to count the step.
    """
    averages = average(
        xp, averages, *clipped(xp, scale * variance, signal),
        theta=smoothing(scale), mean_first=True, when=when,
    )  # fmt: skip
    return averages, xp.where(averages.count > 1, gain(xp, averages, scale), 1.0)


def spent(xp, step, fraction, gain, counts):
    """Adds a gain to the steps that are done, tau <- tau + r.

    Whole steps and the fraction are apart, so that fractions are kept after a million steps.

    Args:
        xp: The array library.
        step: The whole steps, int32.
        fraction: The fraction of a step beyond them.
        gain: r, the gain of this step.
        counts: Whether the step counts.

    Returns:
        The whole steps and the fraction.
    """
    fraction = fraction + xp.where(counts, gain, 0.0)
    whole_steps = xp.floor(fraction)
    return step + xp.cast(whole_steps, "int32"), fraction - whole_steps
