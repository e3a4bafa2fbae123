"""The rule LARS: layer-wise adaptive rate scaling, in each form that goes by its name."""

import dataclasses

from tf_lamb.core.rules.rule import Rule
from tf_lamb.core.rules.shared import Interval, clip_to_bounds, decayed, differ, norm, safe_ratio


@dataclasses.dataclass(frozen=True)
class LARSForm:
    """Selects one of the forms that go by the name of LARS; `lars` has their equations.

    Attributes:
        momentum: Where lr and the trust ratio enter: both in the velocity ("inside"), both in the
            step ("outside"), or the ratio in the velocity and lr in the step ("mixed").
        denominator: The denominator of the ratio: "sum_of_norms", "norm_of_sum" or
            "norm_of_update".
        clip: Whether the ratio is clipped as in LARC.
    """

    momentum: str = "inside"
    denominator: str = "sum_of_norms"
    clip: bool = False


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Holds the bounds of LARS's trust ratio.

    Attributes:
        trust_ratio: (smallest, largest) value to which the trust ratio is clipped; None for no
            bounds.
    """

    trust_ratio: Interval = None


HYPER = {
    "momentum": float, "nesterov": bool, "trust_coefficient": float, "epsilon": float,
    "form": LARSForm, "bounds": Bounds,
}  # fmt: skip


def lars(
    xp, g, w, v, *, lr, t, decay, adapt, axes=None, observe=None,
    momentum=0.9, nesterov=False, trust_coefficient=0.001, epsilon=0.0, form=LARSForm(),
    bounds=Bounds(),
):  # fmt: skip
    """Takes one LARS step.

        d  = g + decay w
        r  = eta |w| / (|g| + decay |w| + eps)
        v <- mu v + lr r d
        w <- w - v

    The trust ratio r is 1 where |w| or |g| is 0, and 1 everywhere if not `adapt`.

    Args:
        xp: An array namespace such as NumPy.
        g, w: The gradient and the weight, of one shape.
        v: The velocity, shaped as the weight; zeros before the first step.
        lr: The learning rate, a scalar.
        t: The number of the step, which this rule does not use.
        decay: The weight decay: a Python float, or an array.
        adapt: Whether the layer has a trust ratio.
        axes: The axes over which a norm runs; None is all.
        observe: None, or a function that is called with |w|, the denominator, r, and whether the
            clip mode or a bound has changed r.
        momentum, trust_coefficient, epsilon: mu, eta and eps.
        nesterov: Whether to use Nesterov momentum: with v <- mu v + x, where x is lr r d or as
            below, w moves by x + mu v instead of by v.
        form: The form of the equations.
            `form.momentum` says where lr and r enter. "inside" is as above; "outside" is
            v <- mu v + d, w <- w - lr r v; "mixed" is v <- mu v + r d, w <- w - lr v.
            `form.denominator` is the denominator of r, to which eps is added. "sum_of_norms" is as
            above; "norm_of_sum" is |d|; "norm_of_update" is |v|, or |x + mu v| with `nesterov`.
            The last one needs "outside", because v must not depend on r.
            `form.clip` selects LARC's clip mode: r <- min(r/lr, 1).
        bounds: The bounds of r, as for `trust_ratio`.

    Returns:
        The new w and v.

    Source: You, Gitman and Ginsburg, arXiv:1708.03888; the forms are those of Model Garden, of the
    TPU reference, of MLPerf and of LARC. The paper does not have the cases in which the ratio is 1.
    """
    d = decayed(g, decay, w)

    def ratio(u):
        if not adapt:
            return clip_to_bounds(xp, 1.0, bounds.trust_ratio)
        w_norm, u_norm = norm(xp, w, axes), norm(xp, u, axes)
        denominator = u_norm + epsilon
        if form.denominator == "sum_of_norms":
            # If decay differs between elements, the norm of decay w is not decay |w|.
            decays_differ = bool(getattr(decay, "shape", ()))
            denominator = denominator + (
                norm(xp, decay * w, axes) if decays_differ else decay * w_norm
            )
        r = safe_ratio(xp, trust_coefficient * w_norm, denominator)
        if form.clip:
            r = r / lr
        unbounded = xp.where((w_norm > 0) & (u_norm > 0), r, 1.0)
        clipped = xp.where(unbounded > 1.0, 1.0, unbounded) if form.clip else unbounded
        r = clip_to_bounds(xp, clipped, bounds.trust_ratio)
        if observe:
            observe(w_norm, denominator, r, differ(unbounded, r))
        return r

    # d is multiplied by `d_factor` before it enters the velocity, and w moves by `v_factor` v.
    d_factor, v_factor = 1.0, lr
    if form.denominator != "norm_of_update":
        r = ratio(d if form.denominator == "norm_of_sum" else g)
        factors = {"inside": (lr * r, 1.0), "outside": (1.0, lr * r), "mixed": (r, lr)}
        d_factor, v_factor = factors[form.momentum]
    s = d_factor * d
    v = momentum * v + s
    u = s + momentum * v if nesterov else v
    if form.denominator == "norm_of_update":
        v_factor = lr * ratio(u)
    return w - v_factor * u, v


RULE = Rule(
    lars,
    ("v",),
    HYPER,
    start_rate=1.0,
    transfer_exponent=0.75,
    stacks_if_adapt=(True, False),
)
