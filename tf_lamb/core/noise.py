"""The noise scale of the gradients of a batch, and AdaScale's gain, which follows from it.

A batch has n independent parts, replicas or micro-batches, with gradients g_i and their mean g.
Everything here follows from two numbers, which are cheap to have:

    local = mean of |g_i|^2        total = |g|^2

and from the scale S, by how much the whole batch is larger than the base batch that training was
tuned at. Arrays may be scalars or hold one entry for each group of variables.

AdaScale's gain is how many steps of the base batch a step of the whole batch is worth. Source:
Johnson et al., arXiv:2007.05105, section 3.2 and Algorithm 2.
"""

import math
import statistics
from typing import Any, NamedTuple

from tf_lamb.core.rules.shared import debias, safe_ratio


class Averages(NamedTuple):
    """Moving averages of both moments of the gradient, without bias."""

    variance: Any  # sigma^2, the trace of the covariance of the gradient of one base batch
    signal: Any  # mu^2, the squared norm of the true gradient
    count: Any  # of the steps that they average


def parts_of_step(xp, before, local, total, *, micro_batches, is_update, successive):
    """The mean square over the parts of a step, of which one call of the optimizer sees some.

    Args:
        before: the squares of the micro-batches so far; of the step before if `successive`.
        local: of this call; over this step and the one before if `successive`.
        total: over all parts.
        successive: whether the parts are this step and the one before.

    Returns:
        The mean of |g_i|^2, whether that is of a whole step, and what is `before` in the next call.
    """
    if successive:  # the first step has none before it
        finite = xp.isfinite(xp.sum(total))
        return local, xp.sum(before) > 0, xp.where(finite, local, before)
    squares = before + local
    return squares / micro_batches, is_update, xp.where(is_update, xp.zeros_like(squares), squares)


def moments(local, total, *, parts, scale=1.0):
    """Unbiased variance and signal of one step; the signal may be below 0.

        sigma^2 = S (local - total) / (n - 1)
        mu^2    = (n total - local) / (n - 1)

    Source: Johnson et al., arXiv:2007.05105, section 3.2, where n = S.
    """
    variance = scale * (local - total) / (parts - 1)
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
    """The simple noise scale in examples, tr(Sigma)/|G|^2, of numbers; nan where it is undefined.

    Args:
        variance: of the gradient of a batch of `batch` examples, averaged with its sign.
        signal: averaged with its sign. At 0 or below, noise hides the gradient altogether.
        batch: examples.

    Source: McCandlish et al., arXiv:1812.06162.
    """
    return batch * variance / signal if signal > 0 else math.nan


def cost(critical, batch):
    """Steps and examples that training takes at a batch, over the fewest of each that it can take.

        S/S_min = 1 + B_crit/B        E/E_min = 1 + B/B_crit

    At the critical batch size both are 2. Source: McCandlish et al., arXiv:1812.06162.
    """
    return 1 + critical / batch, 1 + batch / critical


def advice(critical: float, batch: int) -> str:
    """Compares the batch size with the critical one, and names a better one, in a sentence."""
    if math.isnan(critical):
        return (
            "The noise scale is undefined so far: the mean gradient drowns in noise, as it does at "
            "the end of training, or too few steps were measured."
        )
    steps, examples = cost(critical, batch)
    here = (
        f"Critical batch size about {critical:,.0f}. Batch {batch:,} takes {steps:.1f}x the fewest "
        f"steps and {examples:.1f}x the fewest examples."
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


def gain(xp, averages, scale, *, first_is_one=False):
    """AdaScale's gain: how many steps of the base batch a step of the whole batch is worth.

        r = (sigma^2 + mu^2) / (sigma^2/S + mu^2),  in [1, S]

    It is 1 as long as nothing was measured and, with `first_is_one`, at the first step, too.
    """
    variance, signal, count = averages
    r = safe_ratio(xp, variance + signal, variance / scale + signal)
    return xp.where(count > (1 if first_is_one else 0), r, 1.0)


def measured(xp, averages, variance, signal, *, scale, averaging, when):
    """The averages with the moments of one step more, and the gain that they make.

    Args:
        variance: of the gradient of the whole batch.
        averaging: "paper" or "debiased".
        when: whether this step counts.
    """
    paper = averaging == "paper"
    averages = average(
        xp, averages, *clipped(xp, scale * variance, signal),
        theta=smoothing(scale), mean_first=paper, when=when,
    )  # fmt: skip
    return averages, gain(xp, averages, scale, first_is_one=paper)


def spent(xp, step, fraction, gain, counts):
    """tau <- tau + r if the step counts, in whole steps and the fraction of one.

    Apart, so that a million steps do not swallow a fraction.
    """
    fraction = fraction + xp.where(counts, gain, 0.0)
    whole = xp.floor(fraction)
    return step + xp.cast(whole, "int32"), fraction - whole


def signal_error(noise_scale, part, parts, steps, *, dimensions, along=None):
    """The relative standard error of the signal, averaged over so many steps: the plan of a probe.

        (s.e./mu^2)^2 = [2 Bn^2/(d b^2 n (n - 1)) + 4 Bn a/(n b)] / T

    As normal noise has it, uncorrelated from step to step; what was measured is `blocked_error`.

    Args:
        noise_scale: Bn, in examples.
        part: b, examples of a part.
        parts: n.
        steps: T.
        dimensions: d, that the noise has in effect, tr(Sigma)^2/tr(Sigma^2).
        along: a, the share of tr(Sigma) along the gradient. Defaults to None: 1/d.
    """
    along = 1 / dimensions if along is None else along
    of_noise = 2 * noise_scale**2 / (dimensions * part**2 * parts * (parts - 1))
    return math.sqrt((of_noise + 4 * noise_scale * along / (parts * part)) / steps)


def steps_for_error(error, noise_scale, part, parts, *, dimensions, along=None):
    """Steps until the relative standard error of the signal is this one."""
    one = signal_error(noise_scale, part, parts, 1, dimensions=dimensions, along=along)
    return math.ceil((one / error) ** 2)


def blocked_error(values, blocks=16):
    """The standard error of a mean of successive values, from the means of blocks of them.

    Right where a block is longer than the values' memory of each other. What does not fill the
    blocks is left out at the beginning.
    """
    length = len(values) // blocks
    if length < 1:
        raise ValueError(
            f"{blocks} blocks need {blocks} values at least, not {len(values)}: measure more steps."
        )
    tail = values[len(values) - blocks * length :]
    means = [statistics.fmean(tail[i : i + length]) for i in range(0, len(tail), length)]
    return statistics.stdev(means) / math.sqrt(blocks)
