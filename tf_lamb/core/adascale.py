"""AdaScale: how many steps of the base batch a step of the whole batch is worth, and was.

Source: Johnson et al., arXiv:2007.05105, section 3.2 and Algorithm 2. S is the scale, by how much
the whole batch is larger; sigma^2 and mu^2 are the moments of `tf_lamb.core.noise`.
"""

from tf_lamb.core import noise
from tf_lamb.core.rules.norms import safe_ratio

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
    averages = noise.average(
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
