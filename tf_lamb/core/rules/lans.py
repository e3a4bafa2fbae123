"""The rule LANS: LAMB on normalized gradients, with two trust ratios in a Nesterov step."""

from tf_lamb.core.rules.rule import Rule
from tf_lamb.core.rules.shared import decayed, estimate, norm, root, trust_ratio

# Name of a hyper-parameter -> its kind, as for `Rule.hyper`. The defaults are those of `lans`.
HYPER = {"beta_1": float, "beta_2": float, "epsilon": float}


def lans(
    xp, g, w, m, v, *, lr, t, decay, adapt, axes=None, observe=None,
    beta_1=0.9, beta_2=0.999, epsilon=1e-6,
):  # fmt: skip
    """Takes one LANS step.

        g  <- g / (|g| + eps)
        m  <- b1 m + (1 - b1) g
        v  <- b2 v + (1 - b2) g^2
        d   = sqrt(v/(1 - b2^t)) + eps
        um  = m/(1 - b1^t) / d + decay w
        ug  = g / d + decay w
        w  <- w - lr (b1 |w|/|um| um + (1 - b1) |w|/|ug| ug)

    um is the update from the momentum, and ug the update from the gradient. A gradient of norm 0 is
    not divided. Each ratio, |w|/|um| and |w|/|ug|, is 1 where one of its norms is 0. If `adapt` is
    False, both ratios are 1, but the gradient is still normalized.

    Args:
        xp: An array namespace such as NumPy.
        g, w: The gradient and the weight, of one shape.
        m, v: The first and second moment, shaped as the weight; zeros before the first step.
        lr: The learning rate, a scalar.
        t: The number of the optimizer step, from 1; a scalar.
        decay: The weight decay: a Python float, or an array.
        adapt: Whether the layer has trust ratios.
        axes: The axes over which a norm runs; None is all.
        observe: None, or a function that `trust_ratio` calls for |w|/|um|, but not for |w|/|ug|.
        beta_1, beta_2, epsilon: b1, b2 and eps.

    Returns:
        The new w, m and v.

    Source: Zheng et al., arXiv:2006.13484, Algorithm 2, with the defaults of the authors' CUDA
    kernel. The cases of norm 0 are from that kernel, too.
    """
    g_norm = norm(xp, g, axes)
    g = g / xp.where(g_norm > 0, g_norm + epsilon, 1.0)

    m = beta_1 * m + (1 - beta_1) * g
    v = beta_2 * v + (1 - beta_2) * xp.square(g)
    d = root(xp, estimate(xp, v, beta_2, t)) + epsilon
    um, ug = decayed(estimate(xp, m, beta_1, t) / d, decay, w), decayed(g / d, decay, w)
    momentum_ratio, gradient_ratio = (
        trust_ratio(xp, w, u, adapt=adapt, axes=axes, observe=observer)
        for u, observer in ((um, observe), (ug, None))
    )
    return w - lr * (beta_1 * momentum_ratio * um + (1 - beta_1) * gradient_ratio * ug), m, v


RULE = Rule(
    lans,
    ("m", "v"),
    HYPER,
    start_rate=0.01,
    transfer_exponent=0.5,
    takes_gain=False,
    stacks_if_adapt=(True, False),
)
