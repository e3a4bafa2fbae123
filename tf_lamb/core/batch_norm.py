"""Computes batch normalization, with statistics of the whole batch or of groups of its examples.

`xp` is an array namespace such as NumPy. The first axis of arrays is that of the examples.
"""

import math
from typing import Any, NamedTuple

_MAX_INITIAL_SHARE = 0.05  # warn if running averages keep this share of their initial values


class Weights(NamedTuple):
    """Holds what a batch is normalized with: scale and offset, mean and variance.

    Attributes:
        gamma: The scale of each feature, or None for no scale.
        beta: The offset of each feature, or None for no offset.
        mean: The mean of each feature.
        variance: The variance of each feature.
    """

    gamma: Any
    beta: Any
    mean: Any
    variance: Any


def train(xp, x, weights: Weights, *, axis, momentum, epsilon, group_size=None):
    """Normalizes each group by its own mean and variance, and updates their running averages.

        mean_k, variance_k = moments of group k
        y = gamma (x - mean_k) / sqrt(variance_k + epsilon) + beta

    Args:
        xp: An array namespace such as NumPy.
        x: The batch, of shape (examples, ...), in float32 or float64.
        weights: The weights, whose mean and variance are the running averages.
        axis: The axis of the features.
        momentum: The share of its old value that a running average keeps in the update for each
            group.
        epsilon: Added to variances.
        group_size: The number of examples in a group. None makes the batch one group.

    Returns:
        y, the new running mean, and the new running variance. If one of the new averages is not
        finite, the old ones are returned.

    Source: Hoffer et al., arXiv:1705.08741, algorithm 1, with the variance of the group itself.
    """
    shape = xp.shape(x)
    examples_per_group = shape[0] if group_size is None else group_size
    group_count = 1 if group_size is None else shape[0] // group_size
    grouped = xp.reshape(x, (group_count, examples_per_group, *shape[1:]))
    feature_axis = axis % len(shape) + 1
    reduced_axes = tuple(i for i in range(1, len(shape) + 1) if i != feature_axis)
    mean = xp.mean(grouped, axis=reduced_axes, keepdims=True)
    variance = xp.mean(xp.square(grouped - mean), axis=reduced_axes, keepdims=True)
    y = normalize(
        xp, grouped, weights._replace(mean=mean, variance=variance), feature_axis, epsilon
    )
    old_averages = weights.mean, weights.variance
    new_averages = [
        running_average(
            xp, old_average, xp.reshape(statistic, (group_count, shape[axis])), momentum
        )
        for old_average, statistic in zip(old_averages, (mean, variance), strict=True)
    ]
    # A NaN or infinity would stay in the averages forever. The optimizer may skip such a step, but
    # that does not restore the averages.
    is_finite = xp.isfinite(sum(xp.sum(statistics) for statistics in new_averages))
    finite_statistics = (
        xp.where(is_finite, *statistics)
        for statistics in zip(new_averages, old_averages, strict=True)
    )
    return xp.reshape(y, shape), *finite_statistics


def normalize(xp, x, weights: Weights, axis, epsilon):
    """Computes gamma (x - mean) / sqrt(variance + epsilon) + beta.

    Args:
        xp: An array namespace such as NumPy.
        x: The array to normalize.
        weights: The weights: each is a vector along `axis`, or an array that broadcasts to x.
        axis: The axis of the features.
        epsilon: Added to the variance.
    """

    def broadcast(vector):
        broadcast_shape = [1] * len(x.shape)
        broadcast_shape[axis] = -1
        return xp.reshape(vector, broadcast_shape) if len(vector.shape) == 1 else vector

    y = (x - broadcast(weights.mean)) / xp.sqrt(broadcast(weights.variance) + epsilon)
    if weights.gamma is not None:
        y = y * broadcast(weights.gamma)
    return y if weights.beta is None else y + broadcast(weights.beta)


def running_average(xp, old_average, statistics, momentum):
    """Updates a running average with the statistics of all groups of a batch, in their order.

    For each group, the average a becomes a <- momentum a + (1 - momentum) statistic. For the groups
    k = 0 to G - 1, the result is one sum:

        momentum^G old_average + (1 - momentum) sum_k momentum^(G - 1 - k) statistics_k

    Args:
        xp: An array namespace such as NumPy.
        old_average: The average before the update, a vector with an element for each feature.
        statistics: The means, or the variances, of the groups, of shape (groups, features).
        momentum: The share of its old value that the average keeps for each group.
    """
    group_count = xp.shape(statistics)[0]
    ages = xp.arange(group_count, -1, -1, dtype=statistics.dtype)
    remaining_shares = xp.exp(math.log(max(momentum, 1e-38)) * ages)
    return remaining_shares[0] * old_average + (1 - momentum) * xp.sum(
        remaining_shares[1:, None] * statistics, axis=0
    )


def why_averages_lag(momentum: float, steps: int) -> str | None:
    """Returns a warning if running averages still contain 5% of their initial values, else None.

    Args:
        momentum: The momentum of the running averages.
        steps: The number of their updates.
    """
    initial_share = momentum**steps
    if initial_share < _MAX_INITIAL_SHARE:
        return None
    # With a momentum of 1 - 6/steps, about e^-6, or 0.25%, of the initial values remain.
    suggestion = max(1 - 6 / max(steps, 1), 0.5)
    return (
        f"after step {steps:,}, running averages of momentum {momentum:g} keep {initial_share:.0%} "
        "of what they began with, so that the model is evaluated with statistics that it has not "
        "trained with. Give BatchNormalization "
        f"momentum={math.floor(100 * suggestion) / 100:g} or less, or train for more steps."
    )


def check_batch(name: str, batch: int, group_size: int) -> None:
    """Checks that groups divide a batch.

    Args:
        name: The name of the layer.
        batch: Examples that one replica sees at once.
        group_size: The number of examples in one group.

    Raises:
        ValueError: if the group size does not divide the batch; the error names one that does.
    """
    if batch % group_size:
        divisor = math.gcd(batch, group_size)
        largest_multiple = batch // group_size * group_size
        alternative = (
            f"or batches of {largest_multiple:,}"
            if largest_multiple
            else f"or at least {group_size:,} examples"
        )
        raise ValueError(
            f"{name}: group_size={group_size} does not divide the {batch:,} examples that one "
            f"replica sees at once. Take group_size={divisor}, {alternative}; of a data set, drop "
            "the last, smaller batch (drop_remainder=True)."
        )


def check_layer_arguments(name: str, *, axis, synchronized, renorm) -> None:
    """Checks arguments of `BatchNormalization` for a layer that normalizes a batch in groups.

    Args:
        name: The name of the class of the layer.
        axis: The axis of the features, or a list of axes.
        synchronized: Whether the user asks for statistics of all replicas together.
        renorm: Whether the user asks for batch renormalization.

    Raises:
        ValueError: if `synchronized` or `renorm` is True, if there are several axes of features, or
            if the axis is 0.
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
