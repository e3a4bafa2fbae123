"""Half precision without drift: stochastic rounding, and float32 masters of half weights."""

_BFLOAT16_DIGITS = 7  # of the significand, after the leading one


def dither(xp, x, noise):
    """x + noise ulp(x), which rounds to a neighbour of x in bfloat16, and on average to x.

    An average that decays by 0.1 % a step stands still in bfloat16 when rounded to the nearest.

    Args:
        x: float32.
        noise: uniform in [-0.5, 0.5), of the shape of x.
    """
    exponent = xp.floor(xp.log2(xp.where(x == 0, 1.0, xp.abs(x))))
    return xp.where(x == 0, 0.0, x + noise * 2.0 ** (exponent - _BFLOAT16_DIGITS))


def master(xp, kept, weight, weight_of_kept):
    """The float32 master of a half-precision weight: what was kept, unless the weight has moved.

    A weight that somebody loaded or set since the last step is what counts; so is the first one.

    Args:
        kept: the master after the last step, float32; zeros before the first.
        weight: the weight, as float32.
        weight_of_kept: `kept` in the weight's own precision, as float32.
    """
    return xp.where(weight_of_kept == weight, kept, weight)
