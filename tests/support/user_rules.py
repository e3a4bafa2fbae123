"""Rules as a user writes them: those of docs/own_rule.md, and their steps in NumPy."""

import numpy as np

from tf_lamb import rules


def layerwise_lion(
    xp, g, w, m, *, lr, t, decay, adapt, axes, observe=None, beta_1=0.9, beta_2=0.99
):  # fmt: skip
    """Lion, with the trust ratio of LAMB."""
    u = rules.decayed(xp.sign(beta_1 * m + (1 - beta_1) * g), decay, w)
    ratio = rules.trust_ratio(xp, w, u, adapt=adapt, axes=axes, observe=observe)
    return w - lr * ratio * u, beta_2 * m + (1 - beta_2) * g


def plain_sign(xp, g, w, *, lr, t, decay, adapt, axes):
    """The sign of the gradient: no slots, no hyper-parameters, no ratio."""
    return w - lr * rules.decayed(xp.sign(g), decay, w)


def lion_in_numpy(g, w, m, lr, decay=0.0, adapt=True, beta_1=0.9, beta_2=0.99):
    """The new weight and m, in float64."""
    u = np.sign(beta_1 * m + (1 - beta_1) * g) + decay * w
    ratio = np.linalg.norm(w) / np.linalg.norm(u) if adapt else 1.0
    return w - lr * ratio * u, beta_2 * m + (1 - beta_2) * g
