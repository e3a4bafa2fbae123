"""Computes the noise scale of gradients, and AdaScale's gain, from the parts of each batch.

A batch has n independent parts: the replicas, or the micro-batches. The gradient of part i is g_i,
and the mean of these is g. In each step two numbers are measured, either over all variables or, as
an array, for each group of variables:

    local = mean of |g_i|^2        total = |g|^2

AdaScale also needs the scale S, the size of the whole batch divided by the size of the base batch,
for which training was tuned. Source: Johnson et al., arXiv:2007.05105, section 3.2 and Algorithm 2.
"""

import itertools
import math
from typing import Any, NamedTuple

from tf_lamb.core.rules.shared import bias_divisor, safe_ratio


class Averages(NamedTuple):
    """Holds moving averages of the variance and of the signal of the gradient, without bias.

    Attributes:
        variance: sigma^2, the trace of the covariance of the gradient of one batch. For the noise
            scale this is the whole batch, for AdaScale the base batch.
        signal: mu^2, the squared norm of the true gradient.
        count: The number of steps that have entered the averages.
    """

    variance: Any
    signal: Any
    count: Any


def moments(local, total, *, parts):
    """Computes unbiased estimates of variance and signal of the gradient from one step.

        sigma^2 = (local - total) / (n - 1),  mu^2 = (n total - local) / (n - 1)

    sigma^2 is the variance, the trace of the covariance of the gradient of the whole batch; mu^2 is
    the signal, the squared norm of the true gradient. The estimate of the signal may be below 0.

    Args:
        local: The mean of |g_i|^2 over the parts of the batch, whose gradients are g_i.
        total: |g|^2 of the mean gradient g.
        parts: n, the number of parts.

    Returns:
        (sigma^2, mu^2).
    """
    variance = (local - total) / (parts - 1)
    signal = (parts * total - local) / (parts - 1)
    return variance, signal


def next_averages(xp, averages, variance, signal, *, theta, mean_first=False, count_step=True):
    """Returns the averages after one more step.

        x <- x + rate (new - x)

    x is the average of the variance or of the signal, new the value of the step, and count the
    number of steps including this one. With `mean_first`, rate = max(1/count, 1 - theta): this is
    the plain mean for the first 1/(1 - theta) steps, then an exponential average, as in the paper
    of AdaScale. Otherwise rate = (1 - theta)/(1 - theta^count), which is an exponential average
    with bias correction.

    The averages stay as they are if the variance or the signal of the step is not finite, or if
    `count_step` is False.

    Args:
        xp: An array namespace such as NumPy.
        averages: The `Averages` before the step.
        variance: The variance of the step.
        signal: The signal of the step.
        theta: The decay factor per step of the exponential average.
        mean_first: Whether to begin with a plain mean. Defaults to False.
        count_step: Whether the step enters the averages. Defaults to True.
    """
    is_counted = xp.isfinite(xp.sum(variance) + xp.sum(signal)) & count_step
    count = averages.count + 1
    if mean_first:
        rate = xp.maximum(1 / count, 1 - theta)
    else:
        rate = (1 - theta) / bias_divisor(xp, theta, count)

    def update(old, new):
        return xp.where(is_counted, old + rate * (new - old), old)

    return Averages(
        update(averages.variance, variance),
        update(averages.signal, signal),
        xp.where(is_counted, count, averages.count),
    )


def noise_scale(variance, signal, batch):
    """Returns the simple noise scale in examples, tr(Sigma)/|G|^2.

    Sigma is the covariance of the gradient of one example, and G the true gradient. The result is
    nan if the signal is not above 0, because the gradient cannot then be told from noise. Source:
    McCandlish et al., arXiv:1812.06162.

    Args:
        variance: sigma^2, the trace of the covariance of the gradient of a batch.
        signal: mu^2, the squared norm of the true gradient.
        batch: The number of examples of that batch.
    """
    return batch * variance / signal if signal > 0 else math.nan


MIN_BLOCKS = 4  # `standard_error` is nan if the effective number of blocks is smaller


def standard_error(readings: list[Averages], theta: float) -> float:
    """Estimates the relative standard error of the noise scale at the last reading.

    The readings divide the steps into blocks. Two readings x_s and x_t of an average, after s and t
    steps, determine the exponentially weighted mean of the steps between them:

        block = (d_t x_t - theta^(t-s) d_s x_s) / (1 - theta^(t-s)),        d_t = 1 - theta^t

    The mean of all steps since the first reading is a weighted mean of the blocks, whose noise is
    independent. The noise scale Bn is proportional to V/M, where V and M are these means of the
    variance and of the signal. With the variance v, the signal m and the weight w of each block
    (the weights sum to 1), the standard error s.e. is

        (s.e./Bn)^2 = sum of w^2 (v/V - m/M)^2 / (1 - sum of w^2)

    If there are steps before the first reading, as in a restored run, they are assumed to be as
    noisy as the others. Then the error is multiplied by sqrt(n_since/n_all), where n is that of
    `updates_for_error` for the steps since the first reading and for all steps. If the noise scale
    itself changes during the readings, the change is included in the error.

    Args:
        readings: The values of the averages, as floats, at several times of a training, in the
            order of their counts. The count of the first may be 0 or more.
        theta: The decay factor per step of the exponential averages.

    Returns:
        The relative standard error. It is nan if one of V, M and the last averages is not above 0,
        or if the effective number of blocks, 1/(sum of w^2), is below 4.
    """
    if len(readings) < 2:
        return math.nan
    first, last = readings[0], readings[-1]
    if (total_steps := last.count - first.count) <= 0:
        return math.nan
    mean_variance, mean_signal = _mean_between(first, last, theta)
    error_squares = squared_weights = 0.0
    if not min(*last[:2], mean_variance, mean_signal) > 0:
        return math.nan
    for earlier, later in itertools.pairwise(readings):
        if (steps_between := later.count - earlier.count) > 0:
            variance, signal = _mean_between(earlier, later, theta)
            share = (
                theta ** (last.count - later.count)
                * (1 - theta**steps_between)
                / (1 - theta**total_steps)
            )
            error_squares += (share * (variance / mean_variance - signal / mean_signal)) ** 2
            squared_weights += share**2
    if squared_weights * MIN_BLOCKS > 1:
        return math.nan
    shrinkage = _equivalent_steps(total_steps, theta) / _equivalent_steps(last.count, theta)
    return math.sqrt(error_squares / (1 - squared_weights) * shrinkage)


def _mean_between(earlier, later, theta):
    """Returns the mean variance and the mean signal of the steps between two readings.

    The means are weighted exponentially, as in `standard_error`.
    """
    retained = theta ** (later.count - earlier.count)
    later_weight, earlier_weight = 1 - theta**later.count, retained * (1 - theta**earlier.count)
    pairs = zip(later[:2], earlier[:2], strict=True)
    return tuple((later_weight * new - earlier_weight * old) / (1 - retained) for new, old in pairs)


def _equivalent_steps(count, theta):
    """Returns the n for which a plain mean of n steps has the error of an exponential average.

    `updates_for_error` has the equation.

    Args:
        count: The number of steps in the exponential average.
        theta: The share of its old value that this average keeps in a step.
    """
    retained = theta**count
    return (1 + theta) / (1 - theta) * (1 - retained) / (1 + retained)


def updates_for_error(target_error: float, error: float, theta: float, count: float) -> int:
    """Returns the number of updates that a plain mean needs to reach a standard error.

    It is computed from the error of an exponential average. After `count` steps this average has
    the same error as a plain mean of n steps:

        n = (1 + theta)/(1 - theta) (1 - theta^count)/(1 + theta^count)

    The error of a plain mean is proportional to 1/sqrt(n). So the result is
    n (error/target_error)^2, rounded up.

    Args:
        target_error: The relative standard error to reach.
        error: The relative standard error of the exponential average.
        theta: The share of its old value that the exponential average keeps in a step.
        count: The steps of the exponential average.
    """
    return math.ceil(_equivalent_steps(count, theta) * (error / target_error) ** 2)


TARGET_ERROR = 0.1  # the relative standard error that a `smoothing` should reach (`precision_text`)


def precision_text(readings: list[Averages], theta: float) -> str:
    """Formats the relative standard error of the noise scale, such as " (standard error 5%)".

    If the error is above 10%, the text also gives the value of the argument `smoothing` that would
    reduce it to 10%.

    Args:
        readings: The readings of the averages, as in `standard_error`.
        theta: The share of their old value that the averages keep in a step.

    Returns:
        The text, which begins with a space; "" if the error is nan.
    """
    error = standard_error(readings, theta)
    if math.isnan(error):
        return ""
    if error <= TARGET_ERROR:
        return f" (standard error {error:.0%})"
    updates = updates_for_error(TARGET_ERROR, error, theta, readings[-1].count)
    return (
        f" (standard error {error:.0%}; {TARGET_ERROR:.0%} takes an average over {updates:,} "
        f"updates: smoothing={(updates - 1) / (updates + 1):.5g})"
    )


def relative_cost(critical, batch):
    """Returns how many times the minimum number of steps, and of examples, training takes.

        S/S_min = 1 + B_crit/B        E/E_min = 1 + B/B_crit

    S is the number of steps to a given loss, and E the number of examples. S_min and E_min are the
    smallest of these numbers at any batch size. At the critical batch size both ratios are 2.
    Source: McCandlish et al., arXiv:1812.06162.

    Args:
        critical: B_crit, the critical batch size, in examples.
        batch: B, the batch size, in examples.

    Returns:
        (S/S_min, E/E_min).
    """
    return 1 + critical / batch, 1 + batch / critical


def advice_text(critical: float, batch: int, error_text: str = "") -> str:
    """Returns sentences that compare a batch size with the critical one and propose a better one.

    Args:
        critical: The critical batch size in examples; nan if it is not known.
        batch: The batch size in examples.
        error_text: The text of `precision_text`. Defaults to "".
    """
    if math.isnan(critical):
        return (
            "The noise scale is undefined so far: the mean gradient drowns in noise, as it does at "
            "the end of training, or too few steps were measured."
        )
    if critical <= 0:  # a rounding error may make a noise of 0 negative
        return (
            "No noise was measured: the parts of a batch have equal gradients, as those of one "
            "example that is repeated. Give them different examples to know the critical batch "
            "size."
        )
    steps, examples = relative_cost(critical, batch)
    summary = (
        f"Critical batch size about {critical:,.0f}{error_text}. Batch {batch:,} takes "
        f"{steps:.1f}x the minimum steps and {examples:.1f}x the minimum examples."
    )
    proposed_batch = int(batch * 2.0 ** round(math.log2(max(critical, 1.0) / batch)))
    if proposed_batch == batch or proposed_batch < 1:
        return f"{summary} That is a balance of both."
    proposed_steps, proposed_examples = relative_cost(critical, proposed_batch)
    ratios = ("steps", steps / proposed_steps), ("examples", examples / proposed_examples)
    if proposed_batch < batch:
        ratios = ratios[::-1]
    (saved_unit, saving), (extra_unit, extra_ratio) = ratios
    trade = f"{saving:.1f}x fewer {saved_unit} at {1 / extra_ratio:.1f}x the {extra_unit}"
    return f"{summary} Batch {proposed_batch:,} would need {trade}."


MIN_VARIANCE = 1e-6  # the lower bound of the variance in AdaScale's paper


def smoothing(scale):
    """Returns theta = max(1 - S/1000, 0) for the averages of AdaScale, as in its paper.

    theta is the share of its old value that an exponential average keeps in a step. A larger S
    gives a smaller theta, so that fewer steps are averaged.

    Args:
        scale: S, the whole batch over the base batch.
    """
    return max(1 - scale / 1000, 0.0)


def clip_moments(xp, variance, signal):
    """Returns the variance, raised to at least 1e-6, and the signal, raised to at least 0.

    AdaScale averages these values. Its gain is a quotient of sums of the averages, so the sums have
    to be positive.

    Args:
        xp: An array namespace such as NumPy.
        variance: The variance of a step.
        signal: The signal of a step.
    """
    return xp.maximum(variance, MIN_VARIANCE), xp.maximum(signal, 0.0)


def gain(xp, averages, scale):
    """Returns AdaScale's gain: the steps of the base batch that a step of the whole batch replaces.

        r = (sigma^2 + mu^2) / (sigma^2/S + mu^2),  in [1, S]

    Args:
        xp: An array namespace such as NumPy.
        averages: The `Averages`, with sigma^2 of the base batch, and mu^2.
        scale: S, the whole batch over the base batch.
    """
    variance, signal, _ = averages
    return safe_ratio(xp, variance + signal, variance / scale + signal)


def next_averages_and_gain(xp, averages, variance, signal, *, scale, count_step):
    """Returns AdaScale's averages after one more step, and the gain that follows from them.

    The gain is 1 until two steps have entered the averages.

    Args:
        xp: An array namespace such as NumPy.
        averages: The `Averages` before the step, with the variance of the base batch.
        variance: The variance of the whole batch, from `moments` of this step.
        signal: The signal, from `moments` of this step.
        scale: S, the whole batch over the base batch.
        count_step: Whether the step enters the averages.

    Returns:
        (the new `Averages`, the gain).
    """
    averages = next_averages(
        xp, averages, *clip_moments(xp, scale * variance, signal),
        theta=smoothing(scale), mean_first=True, count_step=count_step,
    )  # fmt: skip
    return averages, xp.where(averages.count > 1, gain(xp, averages, scale), 1.0)


def add_gain(xp, step, fraction, gain, count_step):
    """Adds the gain r of a step to tau, the steps of the base batch done so far: tau <- tau + r.

    tau is stored as an integer part and a fractional part, because a single float32 would lose the
    fraction after a million steps.

    Args:
        xp: An array namespace such as NumPy.
        step: The integer part of tau, int32.
        fraction: The fractional part of tau.
        gain: r, the gain of this step.
        count_step: Whether the gain is added; if False, tau stays.

    Returns:
        The integer part and the fractional part of the new tau.
    """
    fraction = fraction + xp.where(count_step, gain, 0.0)
    whole_steps = xp.floor(fraction)
    return step + xp.cast(whole_steps, "int32"), fraction - whole_steps
