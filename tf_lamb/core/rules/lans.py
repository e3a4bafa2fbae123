"""LANS: LAMB on normalized gradients, with a trust ratio for each part of its Nesterov step."""

from tf_lamb.core.rules.rule import Rule
from tf_lamb.core.rules.shared import decayed, estimate, norm, root, trust_ratio

HYPER = {"beta_1": float, "beta_2": float, "epsilon": float}


def lans(
    xp, g, w, m, v, *, lr, t, decay, adapt, axes=None, observe=None,
    beta_1=0.9, beta_2=0.999, epsilon=1e-6,
):  # fmt: skip
    """One LANS step.

        g  <- g / (|g| + eps)
        m  <- b1 m + (1 - b1) g
        v  <- b2 v + (1 - b2) g^2
        d   = sqrt(v/(1 - b2^t)) + eps
        um  = m/(1 - b1^t) / d + decay w
        ug  = g / d + decay w
        w  <- w - lr (b1 |w|/|um| um + (1 - b1) |w|/|ug| ug)

    A gradient of norm 0 stays; each of the two ratios is 1 where one of its norms is 0, and 1
    throughout if not `adapt`. What is observed is the ratio of um.

    Source: Zheng et al., arXiv:2006.13484, Algorithm 2, as the authors' kernel has it by
    default; the cases of 0 are the kernel's.
    """
    length = norm(xp, g, axes)
    g = g / xp.where(length > 0, length + epsilon, 1.0)

    m = beta_1 * m + (1 - beta_1) * g
    v = beta_2 * v + (1 - beta_2) * xp.square(g)
    d = root(xp, estimate(xp, v, beta_2, t)) + epsilon
    um, ug = decayed(estimate(xp, m, beta_1, t) / d, decay, w), decayed(g / d, decay, w)
    of_momentum, of_gradient = (
        trust_ratio(xp, w, u, adapt=adapt, axes=axes, observe=shown)
        for u, shown in ((um, observe), (ug, None))
    )
    return w - lr * (beta_1 * of_momentum * um + (1 - beta_1) * of_gradient * ug), m, v


RULE = Rule(lans, ("m", "v"), HYPER, start_rate=0.01, transfer_exponent=0.5, takes_gain=False)
