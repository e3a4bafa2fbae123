"""AdamP's projection: of scale-invariant weights, only the direction should move."""

import math

from tf_lamb.core.rules.norms import at_least, norm


def project(xp, w, g, u, *, axes, delta, wd_ratio, epsilon):
    """u without its part along w where w is scale-invariant, and by what decay then shrinks.

        for each view, rows = channels first, then the whole variable as one row:
            c = max over rows |cos(w, g)|
            if c < delta / sqrt(row length):  n = w/(|w| + eps);  return u - n <n, u>, wd_ratio
        return u, 1

    A gradient that is orthogonal to its weight is the sign of scale invariance. The test sees the
    gradient, the projection changes the update.

    Args:
        axes: the axes within a channel; what is left are the channels. Keras keeps output
            channels last, PyTorch first.
        delta, wd_ratio, epsilon: as in the paper's code.

    Source: Heo et al., arXiv:2006.08217, and the authors' code.
    """
    whole = tuple(range(len(w.shape)))
    one = xp.ones_like(xp.sum(w))  # of the dtype of w
    projected, shrink, pending = u, one, one > 0
    for view in (axes, whole):
        n = w / (norm(xp, w, view) + epsilon)
        row_length = math.prod(w.shape[axis] for axis in view)
        invariant = pending & (_largest_cosine(xp, w, g, view, epsilon) < delta / row_length**0.5)
        along = n * xp.sum(n * u, axis=view, keepdims=True)
        projected = xp.where(invariant, u - along, projected)
        shrink = xp.where(invariant, wd_ratio * one, shrink)
        pending = pending & xp.logical_not(invariant)
    return projected, shrink


def _largest_cosine(xp, x, y, axes, epsilon):
    inner = xp.abs(xp.sum(x * y, axis=axes, keepdims=True))
    x_norm, y_norm = (at_least(xp, norm(xp, each, axes), epsilon) for each in (x, y))
    return xp.max(inner / (x_norm * y_norm))
