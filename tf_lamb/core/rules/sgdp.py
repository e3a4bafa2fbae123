"""The rule SGDP: SGD with momentum that does not lengthen scale-invariant weights."""

from tf_lamb.core.rules.rule import Rule
from tf_lamb.core.rules.shared import decayed, project

HYPER = {"momentum": float, "nesterov": bool, "epsilon": float, "delta": float, "wd_ratio": float}


def sgdp(
    xp, g, w, v, *, lr, t, decay, adapt, axes=None,
    momentum=0.9, nesterov=False, epsilon=1e-8, delta=0.1, wd_ratio=0.1,
):  # fmt: skip
    """Takes one SGDP step.

        v <- mu v + g
        u  = v                                         nesterov: g + mu v
        u, rho = project(w, g, u)                      if adapt, and w has two axes or more
        w <- w (1 - lr decay rho/(1 - mu))
        w <- w - lr u

    rho is 1, or `wd_ratio` where u was projected.

    Args:
        xp: An array namespace such as NumPy.
        g, w: The gradient and the weight, of one shape.
        v: The velocity, shaped as the weight; zeros before the first step.
        lr: The learning rate, a scalar.
        t: The number of the step, which this rule does not use.
        decay: The weight decay: a Python float, or an array.
        adapt: Whether the update may be projected.
        axes: The axes within a channel; None is all but the last.
        momentum: mu.
        nesterov: Whether u has Nesterov momentum, as above.
        epsilon, delta, wd_ratio: Three arguments of `project`: the number that is added to norms,
            the threshold for a projection, and the factor of the weight decay after one.

    Returns:
        The new w and v.

    Source: Heo et al., arXiv:2006.08217, and the authors' code.
    """
    v = momentum * v + g
    u = g + momentum * v if nesterov else v
    u, rho = project(
        xp, w, g, u, adapt=adapt, axes=axes, delta=delta, wd_ratio=wd_ratio, epsilon=epsilon
    )
    w = decayed(w, decay, -lr * rho / (1 - momentum) * w)
    return w - lr * u, v


RULE = Rule(
    sgdp,
    ("v",),
    HYPER,
    start_rate=0.05,
    transfer_exponent=0.75,
    stacks_if_adapt=(False,),
)
