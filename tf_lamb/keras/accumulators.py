"""What an optimizer that accumulates has added up: where a gradient is missing, and in parts.

Seams into Keras 3 (3.15.1): `_accumulated_gradients`, `_variables`, `_trainable_variables`,
`_get_variable_index` and `_var_key` of an optimizer.
"""

from keras import ops

from tf_lamb.api.variables import is_overwritten


def without_gradient(optimizer, variables):
    """The variables that have no gradient in a micro-batch, and what they have added up.

    The update takes those sums, too. A variable that is frozen waits.

    Args:
        optimizer: one of this package, built.
        variables: those that have a gradient.
    """
    known = {optimizer._var_key(v) for v in variables}
    pairs = zip(optimizer._trainable_variables, optimizer._accumulators, strict=False)
    missing = [
        (variable, total)
        for variable, total in pairs
        if variable.trainable
        and optimizer._var_key(variable) not in known
        and not is_overwritten(variable)
    ]
    return [variable for variable, _ in missing], [total for _, total in missing]


def overwrite_marked(optimizer, gradients, variables):
    """Overwrites what a float8 layer has marked for it: with the largest of an update, as in Keras.

    Returns:
        The other gradients, and their variables.
    """
    others = []
    for gradient, variable in zip(gradients, variables, strict=True):
        if not is_overwritten(variable):
            others.append((gradient, variable))
            continue
        if optimizer.gradient_accumulation_steps:
            total = optimizer._accumulated_gradients[optimizer._get_variable_index(variable)]
            largest, is_update = ops.maximum(gradient, total), optimizer._is_update()
            total.assign(ops.where(is_update, ops.zeros_like(largest), largest))
            gradient = ops.where(is_update, largest, variable.value)
        variable.assign(gradient)
    return [gradient for gradient, _ in others], [variable for _, variable in others]


def split_accumulators(optimizer):
    """Gives the sums of an optimizer that is built a part for each of its replicas.

    The first part is the sum so far.
    """
    for i, variable in enumerate(optimizer._trainable_variables if optimizer._accumulators else ()):
        old = optimizer._accumulated_gradients[i]
        new = optimizer.add_variable_from_reference(variable, "gradient_accumulator")
        rest = ops.zeros((new.shape[0] - 1, *old.shape), old.dtype)
        new.assign(ops.concatenate([ops.convert_to_tensor(old)[None], rest]))
        optimizer._accumulated_gradients[i] = new
        every = optimizer._variables
        every[next(at for at, v in enumerate(every) if v is old)] = every.pop()
