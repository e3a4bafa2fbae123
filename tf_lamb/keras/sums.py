"""Sums gradients over replicas, on TensorFlow alone.

Seams (uses of private API) of Keras 3 (3.15.1): `_distribution_strategy`,
`_all_reduce_sum_gradients`.
"""

from tf_lamb.keras import arrays


def accumulate(optimizer, gradients, accumulators):
    """Adds the gradients of a micro-batch to the accumulators of their replica.

    If this micro-batch ends an update, the accumulators are then summed over replicas.

    Args:
        optimizer: The optimizer.
        gradients: The gradients of this replica.
        accumulators: For each gradient the variable to add it to, which every replica has a copy
            of.
    """
    from tf_lamb.tensorflow import replicas

    strategy, accumulators = (
        optimizer._distribution_strategy,
        list(map(arrays.native, accumulators)),
    )
    replicas.accumulate(strategy, accumulators, gradients, optimizer._is_update)


def aggregate(optimizer, gradients, accumulators):
    """Sums gradients over replicas; with gradient accumulation, adds them to accumulators instead.

    It does neither if a wrapper such as `MeasureNoise` has already done so.

    Args:
        optimizer: The optimizer.
        gradients: The gradients of this replica.
        accumulators: The accumulator of each gradient; empty without accumulation.

    Returns:
        The sums over replicas; [] with accumulation, where the update reads the accumulators.
    """
    if optimizer.gradient_accumulation_steps:
        if not optimizer.gradients_are_gathered:
            accumulate(optimizer, gradients, accumulators)
        return []
    if optimizer.gradients_are_summed:
        return gradients
    pairs = optimizer._all_reduce_sum_gradients([(gradient, None) for gradient in gradients])
    return [gradient for gradient, _ in pairs]
