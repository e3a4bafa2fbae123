"""LAMB: layer-wise adaptive moments for large batches."""

import dataclasses

from tf_lamb.core.rules.rule import Rule
from tf_lamb.core.rules.shared import Interval, decayed, estimate, root, trust_ratio


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The bounds of the norm of the weights, which are phi's, and of the trust ratio."""

    weight_norm: Interval = None
    trust_ratio: Interval = None


HYPER = {
    "beta_1": float, "beta_2": float, "epsilon": float, "bias_correction": bool,
    "weight_decay_mode": str, "bounds": Bounds,
}  # fmt: skip


def lamb(
    xp, g, w, m, v, *, lr, t, decay, adapt, axes=None, observe=None,
    beta_1=0.9, beta_2=0.999, epsilon=1e-6, bias_correction=True, weight_decay_mode="update",
    bounds=Bounds(),
):  # fmt: skip
    """One LAMB step.

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) g^2
        u  = m/(1 - b1^t) / (sqrt(v/(1 - b2^t)) + eps) + decay w
        w <- w - lr phi(|w|)/|u| u

    phi(|w|)/|u| is 1 where either norm is 0, and 1 throughout if not `adapt`.

    Args:
        bias_correction: False, as in version 3 of the paper, makes both divisors 1 - b^t 1.
        weight_decay_mode: "update" as above; "decoupled": w <- w - lr decay w before all else, with
            the ratio of what remains (`keras.optimizers.Lamb`).
        bounds: see `trust_ratio`.

    Source: You et al., arXiv:1904.00962v5, Algorithm 2; phi is the identity in the authors'
    code. Beyond the paper: the cases in which the ratio is 1, and what is marked above.
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
    """One AdamW step, of what a rule for matrices leaves: LAMB's, decoupled and without a ratio."""
    return lamb(
        xp, g, w, m, v, lr=lr, t=t, decay=decay, adapt=False,
        beta_1=beta_1, beta_2=beta_2, epsilon=epsilon, weight_decay_mode="decoupled",
    )  # fmt: skip


RULE = Rule(lamb, ("m", "v"), HYPER, start_rate=0.01, transfer_exponent=0.5)
