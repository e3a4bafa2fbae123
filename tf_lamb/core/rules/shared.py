"""Holds functions that several rules use: norms, trust ratios, bias correction, AdamP's projection.

A layer is the array that a rule gets. If `axes` are given, each slice along the other axes is a
layer.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

Axes = Sequence[int] | None
# (smallest value, largest value), each None if there is no such bound; None if there is neither.
Interval = tuple[float | None, float | None] | None


def norm(xp: Any, x: Any, axes: Axes = None) -> Any:
    """Returns the Euclidean norm of all elements of x, or of the elements along some axes.

    In float32 the norm is 0 if all elements are below 1e-23, and infinite if an element is beyond
    1.8e19, because the squares of such elements are 0 or infinite. It is also infinite if the sum
    of the squares is beyond 3.4e38.

    Args:
        xp: An array namespace such as NumPy.
        x: The array.
        axes: The axes to sum over, which stay in the result with length 1. None sums over all axes;
            the result is then a scalar.
    """
    squares = xp.sum(xp.square(x), axis=axes, keepdims=axes is not None)
    is_positive = squares > 0
    # `root` is not used, because it adds a number to the squares, which would change a small norm.
    # The inner `where` keeps the derivative at 0 finite.
    return xp.where(is_positive, xp.sqrt(xp.where(is_positive, squares, 1.0)), squares)


def root(xp: Any, x: Any) -> Any:
    """Returns the square root of x, with a finite derivative at 0.

    Because of this derivative, a gradient that is taken through an optimizer step is not NaN. The
    root of 0 is 3e-19 instead of 0, which is far below any usual epsilon.

    Args:
        xp: An array namespace such as NumPy.
        x: The array, not below 0.
    """
    return xp.sqrt(x + 1e-37)


def clip_to_bounds(xp, x, bounds):
    """Returns x, no smaller than the first bound and no larger than the second.

    Args:
        xp: An array namespace such as NumPy.
        x: A Python float or an array.
        bounds: (smallest value, largest value), each None if there is no such bound. None leaves x
            as it is.
    """
    low, high = bounds or (None, None)
    if isinstance(x, float):
        x = x if low is None else max(x, low)
        return x if high is None else min(x, high)
    if low is not None:
        x = clip_min(xp, x, low)
    return x if high is None else xp.where(x > high, high * xp.ones_like(x), x)


def clip_min(xp, x, minimum):
    """Returns the larger of x and a number, in the dtype of x; NaN stays.

    Keras's `maximum` is not used, because on torch it returns float32 for float64, as `matmul`
    does (Keras 3.15.1).

    Args:
        xp: An array namespace such as NumPy.
        x: The array.
        minimum: The number.
    """
    return xp.where(x < minimum, minimum * xp.ones_like(x), x)


def safe_ratio(xp, numerator, denominator, default=1.0):
    """Returns numerator / denominator where both are above 0, else `default`.

    There is no division by 0, so neither the result nor its derivative is NaN because of one.

    Args:
        xp: An array namespace such as NumPy.
        numerator, denominator: The arrays, of one shape.
        default: The value where the numerator or the denominator is not above 0.
    """
    is_positive = (numerator > 0) & (denominator > 0)
    return xp.where(is_positive, numerator / xp.where(is_positive, denominator, 1.0), default)


def trust_ratio(
    xp: Any, w: Any, u: Any, *, adapt: bool, axes: Axes = None, bounds: Any = None,
    observe: Callable | None = None,
) -> Any:  # fmt: skip
    """Returns the trust ratio phi(|w|) / |u|, where phi clips |w| to its bounds.

    The ratio is 1 where |w| or |u| is 0, and everywhere if `adapt` is False. In every case it is
    then clipped to the bounds of the ratio.

    Args:
        xp: An array namespace such as NumPy.
        w: The weight.
        u: The update, of the same shape.
        adapt: Whether the layer has a trust ratio.
        axes: The axes over which a norm runs; None is all.
        bounds: None for no bounds, or an object with two attributes, `weight_norm` for the bounds
            of |w| and `trust_ratio` for those of the ratio. Each is None or a pair (smallest,
            largest), either of which may be None for no such bound. Defaults to None.
        observe: None, or a function that is called with |w|, |u|, the ratio, and whether a bound
            has changed the ratio. It is not called if `adapt` is False.
    """
    norm_bounds, ratio_bounds = (bounds.weight_norm, bounds.trust_ratio) if bounds else (None, None)
    if not adapt:
        return clip_to_bounds(xp, 1.0, ratio_bounds)
    w_norm, u_norm = norm(xp, w, axes), norm(xp, u, axes)
    phi = clip_to_bounds(xp, w_norm, norm_bounds)
    unbounded = safe_ratio(xp, phi, u_norm)
    if norm_bounds:  # a bound may have raised phi above 0 where |w| is 0
        unbounded = xp.where(w_norm > 0, unbounded, 1.0)
    ratio = clip_to_bounds(xp, unbounded, ratio_bounds)
    if observe:
        # Where a norm is 0 the ratio is 1, and no bound of |w| changes it.
        is_phi_clipped = differ(w_norm, phi) & (w_norm > 0) & (u_norm > 0)
        observe(w_norm, u_norm, ratio, is_phi_clipped | differ(unbounded, ratio))
    return ratio


def with_norm_of(xp, x, w, axes=None):
    """Returns x, scaled to the norm of w; where the norm of x or of w is 0, x as it is.

    Args:
        xp: An array namespace such as NumPy.
        x: The array.
        w: An array of the same shape.
        axes: The axes over which a norm runs; None is all.

    Source: Wen et al., Hyperball Optimization, 2025.
    """
    return safe_ratio(xp, norm(xp, w, axes), norm(xp, x, axes)) * x


def differ(x, y):
    """Returns True where x and y differ, but False where one of them is NaN.

    It tells where a bound has changed a value, and a bound never makes or removes a NaN.

    Args:
        x, y: The arrays: the values before and after a bound was applied.
    """
    return (x < y) | (x > y)


def decayed(x: Any, decay: Any, w: Any) -> Any:
    """Returns x + decay w. If decay is the Python float 0.0, it returns x without any computation.

    Args:
        x: The array that the decay is added to.
        decay: The weight decay: a Python float, or an array.
        w: The weight.
    """
    return x if isinstance(decay, float) and decay == 0 else x + decay * w


def branch(xp, condition, if_true, if_false):
    """Returns if_true() or if_false(). A compiled program, too, runs only one of the functions.

    Args:
        xp: An array namespace such as NumPy.
        condition: A boolean scalar: True for if_true(), False for if_false().
        if_true, if_false: Functions without arguments that return arrays of the same shapes.
    """
    if hasattr(xp, "cond"):
        return xp.cond(condition, if_true, if_false)
    return if_true() if condition else if_false()  # in NumPy the condition is a known value


def precise_matmul(xp, x, y):
    """Returns x @ y in the full precision of float32, which GPUs and TPUs reduce by default.

    Args:
        xp: An array namespace such as NumPy.
        x, y: Matrices, or stacks of matrices.
    """
    return xp.precise_matmul(x, y) if hasattr(xp, "precise_matmul") else x @ y


def in_dtype(xp, dtype, *arrays):
    """Returns a list of the arrays, cast to a dtype.

    Args:
        xp: An array namespace such as NumPy.
        dtype: The dtype; None leaves all arrays as they are.
        *arrays: The arrays. One that has the dtype already is not cast.
    """
    return [x if dtype in (None, x.dtype) else xp.cast(x, dtype) for x in arrays]


def bias_divisor(xp, beta, t):
    """Returns 1 - beta^t, the divisor of bias correction, in the full precision of the dtype.

    In float32 a plain subtraction would have only five correct digits at t = 1, beta = 0.999.

    Args:
        xp: An array namespace such as NumPy.
        beta: The decay rate of a moment, a float.
        t: The number of the optimizer step, from 1; a scalar.
    """
    if beta == 0:
        return 1.0
    return -xp.expm1(t * math.log(beta))


def estimate(xp: Any, moment: Any, beta: float, t: Any) -> Any:
    """Returns moment/(1 - beta^t): the moving average without the bias from its start at 0.

    Args:
        xp: An array namespace such as NumPy.
        moment: The moment.
        beta: Its decay rate.
        t: The number of the optimizer step, from 1; a scalar.
    """
    return moment * (1.0 / bias_divisor(xp, beta, t))  # this way only one scalar is divided


def project(
    xp: Any, w: Any, g: Any, u: Any, *, adapt: bool, axes: Axes, delta: float, wd_ratio: float,
    epsilon: float,
) -> tuple[Any, Any]:  # fmt: skip
    """Returns u without its part along w if w is scale-invariant, and a factor of weight decay.

    A weight counts as scale-invariant if its gradient is orthogonal to it, with a cosine c near 0.
    This is tested with each channel as a row first, then with the whole variable as one row:

        for rows in (the channels, the whole variable):
            c = max over rows |cos(w, g)|
            if c < delta / sqrt(row length):  n = w/(|w| + eps);  return u - n <n, u>, wd_ratio
        return u, 1

    Args:
        xp: An array namespace such as NumPy.
        w, g, u: The weight, the gradient and the update, of one shape.
        adapt: Whether the update may be projected.
        axes: The axes within a channel. None means all axes except the last, which holds the output
            channels in Keras.
        delta: The threshold of c, in units of 1 / sqrt(row length).
        wd_ratio: The factor of weight decay where u is projected.
        epsilon: eps.

    Returns:
        The update, and the factor by which the caller multiplies weight decay: wd_ratio or 1.

    Source: Heo et al., arXiv:2006.08217, and the authors' code.
    """
    all_axes = tuple(range(len(w.shape)))
    if not adapt or len(all_axes) < 2:
        return u, 1.0
    one = xp.ones_like(xp.sum(w))  # the scalar 1 in the dtype of w
    new_u, decay_factor, is_pending = u, one, one > 0
    for row_axes in (axes or all_axes[:-1], all_axes):
        n = w / (norm(xp, w, row_axes) + epsilon)
        row_length = math.prod(w.shape[axis] for axis in row_axes)
        is_invariant = is_pending & (
            _largest_cosine(xp, w, g, row_axes, epsilon) < delta / row_length**0.5
        )
        component = n * xp.sum(n * u, axis=row_axes, keepdims=True)
        new_u = xp.where(is_invariant, u - component, new_u)
        decay_factor = xp.where(is_invariant, wd_ratio * one, decay_factor)
        is_pending = is_pending & xp.logical_not(is_invariant)
    return new_u, decay_factor


def _largest_cosine(xp, x, y, axes, epsilon):
    """Returns the largest |cos(x, y)| over the slices of x and y.

    Args:
        xp: An array namespace such as NumPy.
        x, y: Arrays of one shape.
        axes: The axes within a slice.
        epsilon: The smallest divisor: a smaller norm is replaced by it.
    """
    inner_products = xp.abs(xp.sum(x * y, axis=axes, keepdims=True))
    x_norm, y_norm = (clip_min(xp, norm(xp, array, axes), epsilon) for array in (x, y))
    return xp.max(inner_products / (x_norm * y_norm))
