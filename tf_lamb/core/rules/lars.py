"""LARS: layer-wise adaptive rate scaling, in each form that goes by its name."""

import dataclasses

from tf_lamb.core.rules.rule import Rule
from tf_lamb.core.rules.shared import Interval, decayed, differ, norm, safe_ratio, within


@dataclasses.dataclass(frozen=True)
class Form:
    """What goes by the name of LARS, as `lars` documents it."""

    momentum: str = "inside"
    denominator: str = "sum_of_norms"
    clip: bool = False


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The bounds of the trust ratio."""

    trust_ratio: Interval = None


HYPER = {
    "momentum": float, "nesterov": bool, "trust_coefficient": float, "epsilon": float,
    "form": Form, "bounds": Bounds,
}  # fmt: skip


def lars(
    xp, g, w, v, *, lr, t, decay, adapt, axes=None, observe=None,
    momentum=0.9, nesterov=False, trust_coefficient=0.001, epsilon=0.0, form=Form(),
    bounds=Bounds(),
):  # fmt: skip
    """One LARS step.

        d  = g + decay w
        r  = eta |w| / (|g| + decay |w| + eps)
        v <- mu v + lr r d
        w <- w - v

    r is 1 where |w| or |g| is 0, and 1 throughout if not `adapt`.

    Args:
        momentum, trust_coefficient, epsilon: mu, eta and eps.
        nesterov: w moves by mu v plus what entered v, instead of by v.
        form: its `momentum` is where lr and r stand. "inside" the velocity, as above; "outside":
            v <- mu v + d, w <- w - lr r v; "mixed": v <- mu v + r d, w <- w - lr v.
            Its `denominator` is that of r. "sum_of_norms" as above; "norm_of_sum": |d|;
            "norm_of_update": |v|, or what w moves by, which only "outside" knows in time.
            Its `clip` is LARC's clip mode: r <- min(r/lr, 1).
        bounds, observe: of r, as for `trust_ratio`.

    Source: You, Gitman and Ginsburg, arXiv:1708.03888; the forms are those of Model Garden, of the
    TPU reference, of MLPerf and of LARC. Beyond the paper: the cases in which the ratio is 1.
    """
    d = decayed(g, decay, w)

    def ratio(u):
        if not adapt:
            return within(xp, 1.0, bounds.trust_ratio)
        w_norm, u_norm = norm(xp, w, axes), norm(xp, u, axes)
        bottom = u_norm + epsilon
        if form.denominator == "sum_of_norms":
            joint = bool(getattr(decay, "shape", ()))  # a layer of variables that differ in it
            bottom = bottom + (norm(xp, decay * w, axes) if joint else decay * w_norm)
        r = safe_ratio(xp, trust_coefficient * w_norm, bottom)
        if form.clip:
            r = r / lr
        free = xp.where((w_norm > 0) & (u_norm > 0), r, 1.0)
        held = xp.where(free > 1.0, 1.0, free) if form.clip else free
        r = within(xp, held, bounds.trust_ratio)
        if observe:
            observe(w_norm, bottom, r, differ(free, r))
        return r

    # What d is multiplied by before it enters the velocity, and the velocity after.
    before, after = 1.0, lr
    if form.denominator != "norm_of_update":
        r = ratio(d if form.denominator == "norm_of_sum" else g)
        forms = {"inside": (lr * r, 1.0), "outside": (1.0, lr * r), "mixed": (r, lr)}
        before, after = forms[form.momentum]
    s = before * d
    v = momentum * v + s
    u = s + momentum * v if nesterov else v
    if form.denominator == "norm_of_update":
        after = lr * ratio(u)
    return w - after * u, v


RULE = Rule(lars, ("v",), HYPER, start_rate=1.0, transfer_exponent=0.75)
