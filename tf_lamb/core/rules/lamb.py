"""The rule LAMB: layer-wise adaptive moments for large batches."""

import dataclasses

from tf_lamb.core.rules.rule import Rule
from tf_lamb.core.rules.shared import Interval, decayed, estimate, root, trust_ratio


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Holds the bounds of a trust ratio and of the weight norm in its numerator.

    Attributes:
        weight_norm: (smallest, largest) value to which the weight norm is clipped; None for no
            bounds.
        trust_ratio: (smallest, largest) value to which the trust ratio is clipped; None for no
            bounds.
    """

    weight_norm: Interval = None
    trust_ratio: Interval = None

    @property
    def are_set(self) -> bool:
        """Whether a field is not None. If so, Muon and SOAP have a trust ratio.

        A pair (None, None) counts as set, so that a trust ratio without bounds is possible.
        """
        return self.weight_norm is not None or self.trust_ratio is not None


NO_BOUNDS = Bounds()
HYPER = {
    "beta_1": float, "beta_2": float, "epsilon": float, "bias_correction": bool,
    "weight_decay_mode": str, "bounds": Bounds,
}  # fmt: skip


def lamb(
    xp, g, w, m, v, *, lr, t, decay, adapt, axes=None, observe=None,
    beta_1=0.9, beta_2=0.999, epsilon=1e-6, bias_correction=True, weight_decay_mode="update",
    bounds=Bounds(),
):  # fmt: skip
    """Takes one LAMB step.

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) g^2
        u  = m/(1 - b1^t) / (sqrt(v/(1 - b2^t)) + eps) + decay w
        w <- w - lr phi(|w|)/|u| u

    phi clips |w| to its bounds; without bounds it is the identity. The trust ratio phi(|w|)/|u| is
    1 where either norm is 0, and 1 everywhere if not `adapt`.

    Args:
        xp: An array namespace such as NumPy.
        g, w: The gradient and the weight, of one shape.
        m, v: The first and second moment, shaped as the weight; zeros before the first step.
        lr: The learning rate, a scalar.
        t: The number of the optimizer step, from 1; a scalar.
        decay: The weight decay: a Python float, or an array.
        adapt: Whether the layer has a trust ratio.
        axes: The axes over which a norm runs; None is all.
        observe: None, or a function that `trust_ratio` calls with the norms and the ratio.
        beta_1, beta_2, epsilon: b1, b2 and eps.
        bias_correction: False leaves out both divisors 1 - b^t, as in version 3 of the paper.
        weight_decay_mode: "update" is as above. "decoupled" decays first, w <- w - lr decay w, and
            then takes the step with decay = 0 from the new w, as `keras.optimizers.Lamb` does.
        bounds: The bounds of phi and of the ratio, see `trust_ratio`.

    Returns:
        The new w, m and v.

    Source: You et al., arXiv:1904.00962v5, Algorithm 2; phi is the identity in the authors' code.
    The paper has neither the cases in which the ratio is 1, nor bounds of the ratio, nor
    `weight_decay_mode`.
    """
    if weight_decay_mode == "decoupled":
        w = decayed(w, decay, -lr * w)

    m = beta_1 * m + (1 - beta_1) * g
    v = beta_2 * v + (1 - beta_2) * xp.square(g)
    m_hat, v_hat = m, v
    if bias_correction:
        m_hat, v_hat = estimate(xp, m, beta_1, t), estimate(xp, v, beta_2, t)
    u = m_hat / (root(xp, v_hat) + epsilon)
    if weight_decay_mode == "update":
        u = decayed(u, decay, w)
    ratio = trust_ratio(xp, w, u, adapt=adapt, axes=axes, bounds=bounds, observe=observe)
    return w - lr * ratio * u, m, v


def adamw(xp, g, w, m, v, *, lr, t, decay, beta_1, beta_2, epsilon):
    """Takes one AdamW step, for the variables that Muon and SOAP do not treat as matrices.

    The step is LAMB's with decoupled decay and without a trust ratio.

    Args:
        xp: An array namespace such as NumPy.
        g, w: The gradient and the weight, of one shape.
        m, v: The first and second moment, shaped as the weight; zeros before the first step.
        lr: The learning rate, a scalar.
        t: The number of the optimizer step, from 1; a scalar.
        decay: The weight decay: a Python float, or an array.
        beta_1, beta_2, epsilon: As for `lamb`.

    Returns:
        The new w, m and v.
    """
    return lamb(
        xp, g, w, m, v, lr=lr, t=t, decay=decay, adapt=False,
        beta_1=beta_1, beta_2=beta_2, epsilon=epsilon, weight_decay_mode="decoupled",
    )  # fmt: skip


RULE = Rule(
    lamb,
    ("m", "v"),
    HYPER,
    start_rate=0.01,
    transfer_exponent=0.5,
    stacks_if_adapt=(True, False),
)
