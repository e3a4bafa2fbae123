"""The rule AdamP: Adam that does not lengthen scale-invariant weights."""

from tf_lamb.core.rules.rule import Rule
from tf_lamb.core.rules.shared import bias_divisor, decayed, project, root

HYPER = {
    "beta_1": float, "beta_2": float, "epsilon": float, "delta": float, "wd_ratio": float,
    "nesterov": bool,
}  # fmt: skip


def adamp(
    xp, g, w, m, v, *, lr, t, decay, adapt, axes=None,
    beta_1=0.9, beta_2=0.999, epsilon=1e-8, delta=0.1, wd_ratio=0.1, nesterov=False,
):  # fmt: skip
    """Takes one AdamP step.

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) g^2
        u  = m / (sqrt(v)/sqrt(1 - b2^t) + eps)        nesterov: (b1 m + (1 - b1) g) / (...)
        u, rho = project(w, g, u)                      if adapt, and w has two axes or more
        w <- w (1 - lr decay rho)
        w <- w - lr/(1 - b1^t) u

    rho is 1, or `wd_ratio` where u was projected.

    Args:
        xp: An array namespace such as NumPy.
        g, w: The gradient and the weight, of one shape.
        m, v: The first and second moment, shaped as the weight; zeros before the first step.
        lr: The learning rate, a scalar.
        t: The number of the optimizer step, from 1; a scalar.
        decay: The weight decay: a Python float, or an array.
        adapt: Whether the update may be projected.
        axes: The axes within a channel; None is all but the last.
        beta_1, beta_2, epsilon: b1, b2 and eps.
        delta, wd_ratio: Two arguments of `project`: the threshold for a projection, and the factor
            of the weight decay after one.
        nesterov: Whether u has Nesterov momentum, as above.

    Returns:
        The new w, m and v.

    Source: Heo et al., arXiv:2006.08217, and the authors' code.
    """
    m = beta_1 * m + (1 - beta_1) * g
    v = beta_2 * v + (1 - beta_2) * xp.square(g)
    d = root(xp, v / bias_divisor(xp, beta_2, t)) + epsilon
    u = (beta_1 * m + (1 - beta_1) * g if nesterov else m) / d
    u, rho = project(
        xp, w, g, u, adapt=adapt, axes=axes, delta=delta, wd_ratio=wd_ratio, epsilon=epsilon
    )
    w = decayed(w, decay, -lr * rho * w)
    return w - lr / bias_divisor(xp, beta_1, t) * u, m, v


RULE = Rule(
    adamp,
    ("m", "v"),
    HYPER,
    start_rate=0.002,
    transfer_exponent=0.75,
    stacks_if_adapt=(False,),
)
