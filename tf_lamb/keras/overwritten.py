"""Variables whose "gradients" are their next values: the scales and histories of float8 layers.

They go past the rule, with no slots, decay, clipping or norm. Keras's own optimizers overwrite them
with the largest of the micro-batches of an update. So do ours, with the largest of the replicas,
where the update is taken: what a loss scale makes infinite enters no history.
"""

import keras
from keras import ops

from tf_lamb.api.variables import is_overwritten
from tf_lamb.keras import arrays


def split(grads, variables):
    """Splits off what is overwritten.

    Args:
        grads, variables: of one length. None is a gradient that there is not.

    Returns:
        The pairs of a gradient and a variable to overwrite; then all others, None among them, as
        the list of gradients and the list of variables.
    """
    pairs = list(zip(grads, variables, strict=True))
    overwriting = [(g, v) for g, v in pairs if g is not None and is_overwritten(v)]
    others = [(g, v) for g, v in pairs if g is None or not is_overwritten(v)]
    return overwriting, ([g for g, _ in others], [v for _, v in others])


def overwrite(optimizer, pairs, due, taken):
    """Overwrites variables with the largest "gradients" of an update.

    Args:
        optimizer: that of the step, which has been taken or skipped.
        pairs: of a gradient of this replica, and a variable.
        due, taken: scalars; whether this was the last micro-batch of an update, and whether it has
            moved weights.
    """
    variables = [variable for _, variable in pairs]
    values = [ops.cast(gradient, variable.dtype) for gradient, variable in pairs]
    if keras.backend.backend() == "tensorflow":
        from tf_lamb.tensorflow import replicas

        values = replicas.largest(values)
    sums = optimizer._storage.accumulators
    if sums:
        totals = [sums[optimizer._get_variable_index(v)] for v in variables]
        values = [ops.maximum(v, ops.cast(t, v.dtype)) for v, t in zip(values, totals, strict=True)]
        kept = [ops.where(due, ops.zeros_like(value), value) for value in values]
        _assign(optimizer, totals, kept)
    new = [
        ops.where(taken, value, ops.convert_to_tensor(variable))
        for value, variable in zip(values, variables, strict=True)
    ]
    _assign(optimizer, variables, new)


def _assign(optimizer, variables, values):
    """Gives variables values that are the same on every replica."""
    if keras.backend.backend() == "tensorflow":
        from tf_lamb.tensorflow import replicas

        strategy = optimizer._distribution_strategy
        replicas.assign(strategy, list(map(arrays.native, variables)), values)
        return
    for variable, value in zip(variables, values, strict=True):
        variable.assign(ops.cast(value, variable.dtype))
