"""Decentralized momentum SGD: each worker averages with its neighbours instead of with everyone.

What is known of the other workers comes through `mix`, which gives a worker sum_j w_ij x_j of an
array x that every worker j has. Only that communicates.

The velocity holds the learning rate, as that of `keras.optimizers.SGD` does: it is the papers' m
times lr. At a constant rate that is the same. After a change of it, the papers' m is so multiplied
by the old rate over the new one, and what DecentLaM's holds of the workers' differences stays what
it was. With `mix` the mean of all, the mean of the workers moves as SGD's, whatever the schedule.
"""

from tf_lamb.core.rules.norms import decayed


def dsgd(xp, g, w, *, lr, decay=0.0, mix):
    """One step of decentralized SGD.

        w <- mix(w - lr (g + decay w))

    Args:
        g, w: gradient and weight of this worker, arrays of one shape.
        lr: a scalar.
        decay: weight decay, a Python float.
        mix: array -> the neighbourhood's weighted mean of it.

    Returns:
        The new w, in a tuple.

    Source: Yuan et al., arXiv:2104.11981; adapt-then-combine.
    """
    return (mix(w - lr * decayed(g, decay, w)),)


def dmsgd(xp, g, w, v, *, lr, decay=0.0, momentum=0.9, mix, order="adapt_then_combine"):
    """One step of decentralized momentum SGD.

        v <- b v + lr (g + decay w)
        w <- mix(w - v)                 adapt, then combine (ATC)
        w <- mix(w) - v                 adapt with combine (AWC): `mix` need not wait for g

    Args:
        g, w, v: gradient, weight and velocity of this worker, arrays of one shape.
        momentum: b.
        order: "adapt_then_combine" or "adapt_with_combine".
        lr, decay, mix: see `dsgd`.

    Returns:
        The new w and v.

    Source: Yuan et al., arXiv:2104.11981; the orders go by BlueFog's names.
    """
    v = momentum * v + lr * decayed(g, decay, w)
    w = mix(w - v) if order == "adapt_then_combine" else mix(w) - v
    return w, v


def decentlam(xp, g, w, v, *, lr, decay=0.0, momentum=0.9, mix):
    """One step of DecentLaM: momentum of what DSGD would have moved w by.

        s  = w - mix(w - lr (g + decay w))
        v <- b v + s
        w <- w - v

    Its fixed point is DSGD's, whatever b is; that of `dmsgd` is DSGD's at lr/(1 - b). Where lr is
    0, neither w nor v changes.

    Args:
        g, w, v, lr, decay, momentum, mix: see `dmsgd`.

    Returns:
        The new w and v.

    Source: Yuan et al., arXiv:2104.11981, where s/lr is the gradient, which lr = 0 leaves
    undefined.
    """
    s = w - mix(w - lr * decayed(g, decay, w))
    new_v = momentum * v + s
    return xp.where(lr > 0, w - new_v, w), xp.where(lr > 0, new_v, v)
