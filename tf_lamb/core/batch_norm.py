"""Batch normalization of a batch in groups, and the running averages of their statistics.

`xp` is an array namespace such as NumPy. The first axis of arrays is that of the examples.
"""

import math
from typing import Any, NamedTuple

_MOST_LEFT = 0.05  # largest share of the initial values that running averages may keep


class Weights(NamedTuple):
    """Holds what a batch is normalized with: scale and offset, and one set of statistics.

    Attributes:
        gamma: The scale of each feature, or None.
        beta: The offset of each feature, or None.
        mean: The mean of each feature.
        variance: The variance of each feature.
    """

    gamma: Any
    beta: Any
    mean: Any
    variance: Any


def train(xp, x, weights: Weights, *, axis, momentum, epsilon, group_size=None):
    """Normalizes each group with its own statistics, and updates the running averages of these.

        mean_k, variance_k = moments of group k
        y = gamma (x - mean_k) / sqrt(variance_k + epsilon) + beta

    Args:
        xp: An array namespace.
        x: The batch, of shape (examples, ...), at least in float32.
        weights: The weights, whose mean and variance are the running averages.
        axis: The axis of the features.
        momentum: The share of a running average that each group keeps.
        epsilon: Added to variances.
        group_size: Examples of one group. None makes the batch one group.

    Returns:
        y, and the running mean and variance after all groups. Both stay as they were if the new
        ones are not finite.

    Source: Hoffer et al., arXiv:1705.08741, algorithm 1, with the variance of the group itself.
    """
    shape = xp.shape(x)
    size = shape[0] if group_size is None else group_size
    groups = 1 if group_size is None else shape[0] // group_size
    grouped = xp.reshape(x, (groups, size, *shape[1:]))
    feature = axis % len(shape) + 1
    reduced = tuple(a for a in range(1, len(shape) + 1) if a != feature)
    mean = xp.mean(grouped, axis=reduced, keepdims=True)
    variance = xp.mean(xp.square(grouped - mean), axis=reduced, keepdims=True)
    y = normalized(xp, grouped, weights._replace(mean=mean, variance=variance), feature, epsilon)
    old = weights.mean, weights.variance
    new = [
        averaged(xp, before, xp.reshape(statistic, (groups, shape[axis])), momentum)
        for before, statistic in zip(old, (mean, variance), strict=True)
    ]
    # A batch that is not finite would stay in the averages for ever, though its step is skipped.
    is_finite = xp.isfinite(sum(xp.sum(statistics) for statistics in new))
    finite_statistics = (
        xp.where(is_finite, *statistics) for statistics in zip(new, old, strict=True)
    )
    return xp.reshape(y, shape), *finite_statistics


def normalized(xp, x, weights: Weights, axis, epsilon):
    """Computes gamma (x - mean) / sqrt(variance + epsilon) + beta.

    Args:
        xp: An array namespace.
        x: The array.
        weights: The weights, each a vector along `axis`, or an array that broadcasts to x.
        axis: The axis of the features.
        epsilon: Added to the variance.
    """

    def along(vector):
        broadcast_shape = [1] * len(x.shape)
        broadcast_shape[axis] = -1
        return xp.reshape(vector, broadcast_shape) if len(vector.shape) == 1 else vector

    y = (x - along(weights.mean)) / xp.sqrt(along(weights.variance) + epsilon)
    if weights.gamma is not None:
        y = y * along(weights.gamma)
    return y if weights.beta is None else y + along(weights.beta)


def averaged(xp, old, statistics, momentum):
    """Computes a running average after the statistics of all groups, in order.

    For each group, the average a becomes a <- momentum a + (1 - momentum) statistic. For G groups,
    k = 0 to G - 1, that is one sum:

        momentum^G old + (1 - momentum) sum_k momentum^(G - 1 - k) statistics_k

    Args:
        xp: An array namespace.
        old: The average before, a vector of features.
        statistics: The statistics, of shape (G groups, features).
        momentum: The share of the average that each group keeps.
    """
    groups = xp.shape(statistics)[0]
    ages = xp.arange(groups, -1, -1, dtype=statistics.dtype)
    remaining = xp.exp(math.log(max(momentum, 1e-38)) * ages)
    return remaining[0] * old + (1 - momentum) * xp.sum(remaining[1:, None] * statistics, axis=0)


def why_averages_lag(momentum: float, steps: int) -> str | None:
    """Returns a warning if running averages still keep much of their initial values, else None.

    Args:
        momentum: The momentum of the running averages.
        steps: The number of their updates.
    """
    remaining = momentum**steps
    if remaining < _MOST_LEFT:
        return None
    # (1 - 6/steps)^steps, about e^-6, keeps a quarter of a percent of the initial values.
    suggestion = max(1 - 6 / max(steps, 1), 0.5)
    return (
        f"after step {steps:,}, running averages of momentum {momentum:g} keep {remaining:.0%} of "
        "what they began with, so that the model is evaluated with statistics that it has not "
        "trained with. Give BatchNormalization "
        f"momentum={math.floor(100 * suggestion) / 100:g} or less, or train for more steps."
    )


def check_batch(name: str, batch: int, group_size: int) -> None:
    """Checks that groups divide a batch.

    Args:
        name: The name of the layer.
        batch: Examples that one replica sees at once.
        group_size: Examples of one group.

    Raises:
        ValueError: if the group size does not divide the batch; the error names one that does.
    """
    if batch % group_size:
        divisor = math.gcd(batch, group_size)
        largest_multiple = batch // group_size * group_size
        instead = (
            f"or batches of {largest_multiple:,}"
            if largest_multiple
            else f"or at least {group_size:,} examples"
        )
        raise ValueError(
            f"{name}: group_size={group_size} does not divide the {batch:,} examples that one "
            f"replica sees at once. Take group_size={divisor}, {instead}; of a data set, drop the "
            "last, smaller batch (drop_remainder=True)."
        )


def check_host(name: str, *, axis, synchronized, renorm) -> None:
    """Checks arguments of `BatchNormalization` for a layer that normalizes a batch in parts.

    Args:
        name: The name of the class of the layer.
        axis: The axis of the features, or a list of axes.
        synchronized: Whether the user asks for statistics of all replicas together.
        renorm: Whether the user asks for batch renormalization.

    Raises:
        ValueError: if one of the two flags is True, for several axes, and for axis 0.
    """
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
