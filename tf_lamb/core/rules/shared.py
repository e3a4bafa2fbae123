"""The parts that rules share: norms, trust ratios, moments without bias, AdamP's projection.

A layer is whatever the rule is given; with `axes`, each slice along the other axes is one.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

Axes = Sequence[int] | None
Interval = tuple[float, float] | None  # the smallest and the largest value


def norm(xp: Any, x: Any, axes: Axes = None) -> Any:
    """Returns the Euclidean norm of x, flattened to a vector; over `axes` alone if they are given.

    In float32 it is 0 for elements below 1e-23 and infinite beyond 1e19, for there squares are.
    """
    squares = xp.sum(xp.square(x), axis=axes, keepdims=axes is not None)
    positive = squares > 0
    # Not `root`, which would add to the norm of what is small. The inner `where` keeps the
    # derivative at 0 finite.
    return xp.where(positive, xp.sqrt(xp.where(positive, squares, 1.0)), squares)


def root(xp: Any, x: Any) -> Any:
    """Returns the square root, with a finite derivative at 0.

    A gradient through the step is then not NaN. At 0 it is 3e-19, far below any epsilon.
    """
    return xp.sqrt(x + 1e-37)


def within(xp, x, bounds):
    """x, no smaller than the first bound and no larger than the second; None is no bounds."""
    if bounds is None:
        return x
    low, high = bounds
    if isinstance(x, float):
        return min(max(x, low), high)
    x = at_least(xp, x, low)
    return xp.where(x > high, high * xp.ones_like(x), x)


def at_least(xp, x, low):
    """The larger of x and a number, in the dtype of x; NaN stays.

    Keras's `maximum` and `matmul` give float32 for float64 on torch (3.15.1).
    """
    return xp.where(x < low, low * xp.ones_like(x), x)


def safe_ratio(xp, top, bottom, otherwise=1.0):
    """top / bottom where both are above 0, and `otherwise` elsewhere; no branch holds a NaN."""
    positive = (top > 0) & (bottom > 0)
    return xp.where(positive, top / xp.where(positive, bottom, 1.0), otherwise)


def trust_ratio(
    xp: Any, w: Any, u: Any, *, adapt: bool, axes: Axes = None, bounds: Any = None,
    observe: Callable | None = None,
) -> Any:  # fmt: skip
    """Returns phi(|w|) / |u|, with phi the identity between its bounds.

    It is 1 where either norm is 0 and, without `adapt`, throughout; the bounds of the ratio hold
    then, too.

    Args:
        bounds: None, or those of |w| and of the ratio, as `lamb` has them.
        observe: None, or called with |w|, |u|, the ratio and whether a bound made it another.
    """
    of_norm, of_ratio = (bounds.weight_norm, bounds.trust_ratio) if bounds else (None, None)
    if not adapt:
        return within(xp, 1.0, of_ratio)
    w_norm, u_norm = norm(xp, w, axes), norm(xp, u, axes)
    phi = within(xp, w_norm, of_norm)
    free = safe_ratio(xp, phi, u_norm)
    if of_norm:  # phi may be bounded up from 0
        free = xp.where(w_norm > 0, free, 1.0)
    ratio = within(xp, free, of_ratio)
    if observe:
        observe(w_norm, u_norm, ratio, differ(w_norm, phi) | differ(free, ratio))
    return ratio


def differ(x, y):
    """True where one is larger than the other; never where one is NaN, which no bound has made."""
    return (x < y) | (x > y)


def decayed(x: Any, decay: Any, w: Any) -> Any:
    """Returns x + decay w; where decay is the number 0, x itself, and no product is computed."""
    return x if isinstance(decay, float) and decay == 0 else x + decay * w


def branch(xp, due, yes, no):
    """What yes() or no() returns, of which a program runs the one that is due."""
    if hasattr(xp, "cond"):
        return xp.cond(due, yes, no)
    return yes() if due else no()  # NumPy knows


def precise(xp, x, y):
    """x @ y with all digits of float32, of which matrix units drop half and more by default."""
    return xp.precise(x, y) if hasattr(xp, "precise") else x @ y


def in_dtype(xp, dtype, *arrays):
    """The arrays in a dtype; as they are where it is theirs, or None."""
    return [x if dtype in (None, x.dtype) else xp.cast(x, dtype) for x in arrays]


def debias(xp, beta, t):
    """1 - beta^t, to the last digit: of the subtraction float32 has five at t = 1, beta = 0.999."""
    if beta == 0:
        return 1.0
    return -xp.expm1(t * math.log(beta))


def estimate(xp: Any, moment: Any, beta: float, t: Any) -> Any:
    """Returns a moment as an estimate of what it averages, moment/(1 - beta^t)."""
    return moment * (1.0 / debias(xp, beta, t))  # one division, not one for each element


def project(
    xp: Any, w: Any, g: Any, u: Any, *, adapt: bool, axes: Axes, delta: float, wd_ratio: float,
    epsilon: float,
) -> tuple[Any, Any]:  # fmt: skip
    """Returns u without its part along w where w is scale-invariant, and the decay's share then.

        for each view, rows = channels first, then the whole variable as one row:
            c = max over rows |cos(w, g)|
            if c < delta / sqrt(row length):  n = w/(|w| + eps);  return u - n <n, u>, wd_ratio
        return u, 1

    A gradient that is orthogonal to its weight is the sign of scale invariance. `axes` are those
    within a channel; None is all but the last, for Keras keeps output channels last.

    Source: Heo et al., arXiv:2006.08217, and the authors' code.
    """
    whole = tuple(range(len(w.shape)))
    if not adapt or len(whole) < 2:
        return u, 1.0
    one = xp.ones_like(xp.sum(w))  # of the dtype of w
    projected, shrink, pending = u, one, one > 0
    for view in (axes or whole[:-1], whole):
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
