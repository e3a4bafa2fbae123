"""Overwrites variables whose "gradients" are their next values.

These variables are the scales and histories of float8 layers. No rule is applied to them: they have
no slots and no weight decay, are not clipped, and do not count in a norm. Keras's own optimizers
overwrite each with the largest value of the micro-batches of an update. The optimizers of this
package take the largest value of the replicas, too. They overwrite only if the update is taken, so
that an infinity that is due to a loss scale does not get into a history.
"""

import keras
from keras import ops

from tf_lamb.api.variables import is_overwritten
from tf_lamb.keras import arrays


def split_pairs(grads, variables):
    """Splits off the variables that are overwritten.

    Args:
        grads, variables: Lists of one length. None stands for a missing gradient.

    Returns:
        First, the pairs (gradient, variable) of the variables to overwrite. Second, for all other
        variables, a pair: the list of their gradients, some of which may be None, and the list of
        the variables.
    """
    pairs = list(zip(grads, variables, strict=True))
    overwriting_pairs = [(g, v) for g, v in pairs if g is not None and is_overwritten(v)]
    trained_pairs = [(g, v) for g, v in pairs if g is None or not is_overwritten(v)]
    return overwriting_pairs, ([g for g, _ in trained_pairs], [v for _, v in trained_pairs])


def overwrite(optimizer, pairs, is_update, is_taken):
    """Overwrites variables with the largest of their "gradients" in an update.

    Args:
        optimizer: The optimizer, which has already taken or skipped its step.
        pairs: Pairs of a gradient of this replica, and a variable.
        is_update: A scalar, whether this was the last micro-batch of an update.
        is_taken: A scalar, whether the update has changed weights.
    """
    variables = [variable for _, variable in pairs]
    values = [ops.cast(gradient, variable.dtype) for gradient, variable in pairs]
    if keras.backend.backend() == "tensorflow":
        from tf_lamb.tensorflow import replicas

        values = replicas.max_over_replicas(values)
    accumulators = optimizer._storage.accumulators
    if accumulators:
        totals = [accumulators[optimizer._get_variable_index(v)] for v in variables]
        values = [ops.maximum(v, ops.cast(t, v.dtype)) for v, t in zip(values, totals, strict=True)]
        new_totals = [ops.where(is_update, ops.zeros_like(value), value) for value in values]
        _assign_on_replicas(optimizer, totals, new_totals)
    new_values = [
        ops.where(is_taken, value, ops.convert_to_tensor(variable))
        for value, variable in zip(values, variables, strict=True)
    ]
    _assign_on_replicas(optimizer, variables, new_values)


def _assign_on_replicas(optimizer, variables, values):
    """Assigns to each variable a value that is the same on every replica."""
    if keras.backend.backend() == "tensorflow":
        from tf_lamb.tensorflow import replicas

        strategy = optimizer._distribution_strategy
        replicas.assign(strategy, list(map(arrays.native, variables)), values)
        return
    for variable, value in zip(variables, values, strict=True):
        variable.assign(ops.cast(value, variable.dtype))
