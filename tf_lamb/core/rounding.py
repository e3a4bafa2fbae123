"""Half precision without drift: stochastic rounding, and float32 masters of half weights."""

_BFLOAT16_DIGITS = 7  # of the significand, after the leading one


def stochastic(xp, x, noise):
    """One of the two neighbours of x in bfloat16, so that the mean over the noise is x.

    An average that decays by 0.1 % a step stands still in bfloat16 when rounded to the nearest.

    Args:
        x: float32.
        noise: uniform in [0, 1), of the shape of x.
    """
    exponent = xp.floor(xp.log2(xp.where(x == 0, 1.0, xp.abs(x))))
    unit = 2.0 ** (exponent - _BFLOAT16_DIGITS)
    lower = xp.floor(x / unit) * unit
    return xp.where(x - lower > noise * unit, lower + unit, lower)


def master(xp, kept, weight, is_its_weight):
    """The float32 master of a half-precision weight: what was kept, unless the weight has moved.

    A weight that somebody loaded or set since the last step is what counts; so is the first one.

    Args:
        kept: the master after the last step, float32; zeros before the first.
        weight: the weight, as float32.
        is_its_weight: whether `kept`, in the weight's own precision, is the weight.
    """
    return xp.where(is_its_weight, kept, weight)
