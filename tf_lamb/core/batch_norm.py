"""Batch normalization in parts: the statistics of groups, and what running averages make of them.

`xp` is an array namespace such as NumPy; arrays begin with the axis of the examples.
"""

import math
from typing import Any, NamedTuple

_MOST_LEFT = 0.05  # of the initial values, after training


class Weights(NamedTuple):
    """The weights of one set of statistics; gamma and beta may be None."""

    gamma: Any
    beta: Any
    mean: Any
    variance: Any


def train(xp, x, weights: Weights, *, axis, momentum, epsilon, group_size=None):
    """Normalizes each group with statistics of its own, and averages those.

        mean_k, variance_k = moments of group k
        y = gamma (x - mean_k) / sqrt(variance_k + epsilon) + beta

    Args:
        x: (batch, ...), at least float32.
        axis: of the features.
        group_size: examples of one group; None makes the batch one group.

    Returns:
        y, and the running mean and variance after all groups, of those that are finite.

    Source: Hoffer et al., arXiv:1705.08741, algorithm 1, with the variance of the group itself.
    """
    shape = xp.shape(x)
    size = shape[0] if group_size is None else group_size
    groups = 1 if group_size is None else shape[0] // group_size
    grouped = xp.reshape(x, (groups, size, *shape[1:]))
    feature = axis % len(shape) + 1
    others = tuple(a for a in range(1, len(shape) + 1) if a != feature)
    mean = xp.mean(grouped, axis=others, keepdims=True)
    variance = xp.mean(xp.square(grouped - mean), axis=others, keepdims=True)
    y = normalized(xp, grouped, weights._replace(mean=mean, variance=variance), feature, epsilon)
    old = weights.mean, weights.variance
    new = [
        averaged(xp, before, xp.reshape(statistic, (groups, shape[axis])), momentum)
        for before, statistic in zip(old, (mean, variance), strict=True)
    ]
    # A batch that is not finite would stay in the averages, though its step is skipped.
    finite = xp.isfinite(sum(xp.sum(each) for each in new))
    kept = (xp.where(finite, *each) for each in zip(new, old, strict=True))
    return xp.reshape(y, shape), *kept


def normalized(xp, x, weights: Weights, axis, epsilon):
    """gamma (x - mean) / sqrt(variance + epsilon) + beta, of vectors along the axis."""

    def along(vector):
        wide = [1] * len(x.shape)
        wide[axis] = -1
        return xp.reshape(vector, wide) if len(vector.shape) == 1 else vector

    y = (x - along(weights.mean)) / xp.sqrt(along(weights.variance) + epsilon)
    if weights.gamma is not None:
        y = y * along(weights.gamma)
    return y if weights.beta is None else y + along(weights.beta)


def averaged(xp, old, statistics, momentum):
    """The running average after `a <- momentum a + (1 - momentum) statistic`, group after group.

    In one sum: momentum^G old + (1 - momentum) sum_k momentum^(G - 1 - k) statistics_k.
    """
    groups = xp.shape(statistics)[0]
    ages = xp.arange(groups, -1, -1, dtype=statistics.dtype)
    left = xp.exp(math.log(max(momentum, 1e-38)) * ages)
    return left[0] * old + (1 - momentum) * xp.sum(left[1:, None] * statistics, axis=0)


def why_averages_lag(momentum: float, steps: int) -> str | None:
    """Why running averages are still what they began with after so many steps; None if not."""
    left = momentum**steps
    if left < _MOST_LEFT:
        return None
    better = max(1 - 6 / max(steps, 1), 0.5)  # leaves a quarter of a percent
    return (
        f"after step {steps:,}, running averages of momentum {momentum:g} keep {left:.0%} of what "
        "they began with, so that the model is evaluated with statistics that it has not trained "
        f"with. Give BatchNormalization momentum={math.floor(100 * better) / 100:g} or less, or "
        "train for more steps."
    )


def check_batch(name: str, batch: int, group_size: int) -> None:
    """The groups take up the whole batch, or an error that says which would."""
    if batch % group_size:
        fits = math.gcd(batch, group_size)
        near = batch // group_size * group_size
        instead = f"or batches of {near:,}" if near else f"or at least {group_size:,} examples"
        raise ValueError(
            f"{name}: group_size={group_size} does not divide the {batch:,} examples that one "
            f"replica sees at once. Take group_size={fits}, {instead}; of a data set, drop the "
            "last, smaller batch (drop_remainder=True)."
        )


def check_host(name: str, *, axis, synchronized, renorm) -> None:
    """Refuses what Keras's layer can do and one with several statistics cannot."""
    for argument, value in (("synchronized", synchronized), ("renorm", renorm)):
        if value:
            raise ValueError(
                f"{name} cannot have {argument}=True: its statistics are those of a part of one "
                f"replica's batch, as they are. Leave {argument} out."
            )
    axes = list(axis) if isinstance(axis, (list, tuple)) else [axis]
    if len(axes) != 1 or axes[0] == 0:
        raise ValueError(
            f"{name} normalizes one axis of features, not axis={axis!r}; axis 0 is that of the "
            "examples. Try axis=-1."
        )
