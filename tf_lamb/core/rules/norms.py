"""What the layer-wise rules share: the norm of a layer, its trust ratio, and Adam's debiasing."""

import math


def l2_norm(xp, x):
    """The Euclidean norm of a layer, flattened to a vector."""
    return xp.sqrt(xp.sum(xp.square(x)))


def trust_ratio(xp, w, u):
    """phi(|w|) / |u| with phi the identity; 1 where either norm is 0.

    The inner `where` keeps a zero out of the division, so that no branch ever holds a NaN.
    """
    w_norm, u_norm = l2_norm(xp, w), l2_norm(xp, u)
    ratio = w_norm / xp.where(u_norm > 0, u_norm, 1.0)
    return xp.where((w_norm > 0) & (u_norm > 0), ratio, 1.0)


def debias(xp, beta, t):
    """1 - beta^t, to the last digit.

    Written out, the subtraction leaves float32 with five digits at t = 1 and beta = 0.999, and
    with none in half precision.
    """
    if beta == 0:
        return 1.0
    return -xp.expm1(t * math.log(beta))
