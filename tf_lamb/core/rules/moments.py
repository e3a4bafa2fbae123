"""Adam's moments, without their bias."""

import math


def debias(xp, beta, t):
    """1 - beta^t, to the last digit.

    Written out, the subtraction leaves float32 with five digits at t = 1 and beta = 0.999, and
    with none in half precision.
    """
    if beta == 0:
        return 1.0
    return -xp.expm1(t * math.log(beta))


def estimate(xp, moment, new, beta, t, *, weight, correct, nesterov):
    """The moment as an estimate of what it averages.

        moment/(1 - b^t)                                   plainly
        b moment/(1 - b^(t+1)) + weight new/(1 - b^t)      looking ahead, after Dozat's Nadam

    Args:
        moment: the running average after this step, of `new` among others.
        weight: the weight of `new` in it.
        correct: whether to divide; every divisor is 1 if not.
        nesterov: whether to look ahead.
    """
    now = debias(xp, beta, t) if correct else 1.0
    if not nesterov:
        return moment * (1.0 / now)  # one division, not one for each element
    ahead = debias(xp, beta, t + 1) if correct else 1.0
    return beta * moment / ahead + weight * new / now
