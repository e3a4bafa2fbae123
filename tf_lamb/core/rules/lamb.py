"""LAMB: layer-wise adaptive moments for large batches."""

from tf_lamb.core.rules.norms import debias, trust_ratio


def lamb(
    xp, g, w, m, v, *, lr, t, decay, adapt,
    beta_1=0.9, beta_2=0.999, epsilon=1e-6, bias_correction=True,
):  # fmt: skip
    """One LAMB step.

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) g^2
        u  = m/(1 - b1^t) / (sqrt(v/(1 - b2^t)) + eps) + decay w
        w <- w - lr |w|/|u| u

    |w|/|u| is 1 where either norm is 0, and 1 throughout if not `adapt`. Without
    `bias_correction` (version 3 of the paper) both divisors 1 - b^t are 1.

    Args:
        g, w, m, v: gradient, weight and both moments, arrays of one shape.
        lr, t: scalars; t counts from 1.
        decay: weight decay of this variable, a Python float; 0.0 where it is excluded.
        adapt: whether this variable has a trust ratio, a Python bool.

    Returns:
        The new w, m and v.

    Source: You et al., "Large Batch Optimization for Deep Learning", arXiv:1904.00962v5,
    Algorithm 2, with phi the identity as in the authors' code.
    Beyond the paper: the two cases in which the ratio is 1.
    """
    m = beta_1 * m + (1 - beta_1) * g
    v = beta_2 * v + (1 - beta_2) * xp.square(g)
    if bias_correction:
        m_hat, v_hat = m / debias(xp, beta_1, t), v / debias(xp, beta_2, t)
    else:
        m_hat, v_hat = m, v
    u = m_hat / (xp.sqrt(v_hat) + epsilon)
    if decay:
        u = u + decay * w
    if adapt:
        u = trust_ratio(xp, w, u) * u
    return w - lr * u, m, v
