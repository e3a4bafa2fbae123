"""The seams into Keras 3, and what differs between its versions and backends.

Seams into Keras 3 (3.12.0 to 3.15.1); the rest of the room uses what is here, and these:
    `_backend_apply_gradients`: clips after the aggregation over replicas, and averages weights
        once an optimizer step; Keras clips before, and averages at every micro-step.
    `variables`, with those of a wrapper: what a step on JAX is handed, and what is saved.
    `_model_variables_moving_average`: Keras's `build` makes it; `SwapEMAWeights` reads it.
    `_overwrite_variables_directly_with_gradients`: before Keras comes to constraints; what it would
        overwrite, `apply` has split off by then.
    `Variable._value`: None while `fit` on JAX has the array, which a step donates.
    `_all_reduce_sum_gradients`, `_get_variable_index`, `_var_key`, `_iterations`,
    `_distribution_strategy`, `_accumulated_gradients`, `_variables`, `_trainable_variables`: used
        as Keras's own optimizers use them.
"""

import functools

import keras
from keras import ops

from tf_lamb.api.variables import is_overwritten, path_of
from tf_lamb.keras import arrays, sharding
from tf_lamb.keras.arrays import native as native

Layer = keras.layers.Layer
key_of = id  # by which the variables of a model are known


def is_variable(item):
    """Whether it is a variable, which a layer may have."""
    return isinstance(item, keras.Variable)


def has_listed_layers(layer):
    """Whether hosts know its layers by their order: Sequential's and Functional's."""
    return isinstance(layer, keras.Sequential) or hasattr(layer, "operations")


def unfrozen(variables):
    """Those whose layers are not frozen now."""
    return [v for v in variables if v.trainable]


def split_accumulators(optimizer):
    """Gives each replica a part of a built optimizer's sums; the first is the sum so far."""
    sums = optimizer._storage.accumulators
    for i, old in enumerate(sums):
        variable = optimizer._trainable_variables[i]
        if is_overwritten(variable):  # what is largest of all replicas is one value
            continue
        new = optimizer.add_variable_from_reference(variable, "gradient_accumulator")
        rest = ops.zeros((new.shape[0] - 1, *old.shape), old.dtype)
        new.assign(ops.concatenate([ops.convert_to_tensor(old)[None], rest]))
        sums[i] = new
        every = optimizer._variables
        every[next(at for at, v in enumerate(every) if v is old)] = every.pop()


def in_strategy(build):
    """Has `build` run inside the strategy that the optimizer was made under, from anywhere."""
    if keras.backend.backend() != "tensorflow":
        return build

    @functools.wraps(build)
    def method(optimizer, variables):
        from tf_lamb.tensorflow import replicas

        strategy = optimizer._distribution_strategy
        if not optimizer.built:
            replicas.check_made_under(strategy, map(native, variables), optimizer.name)
        with replicas.scope_of(strategy):
            build(optimizer, variables)

    return method


def put(variable, value):
    """Gives a variable the value of another, in an array of its own: JAX would donate one twice."""
    variable.assign(ops.copy(ops.cast(value, variable.dtype)))


def is_deleted(variable):
    """Whether a failed JAX step has donated this variable's buffer."""
    value = variable._value
    return value is None or (hasattr(value, "is_deleted") and value.is_deleted())


def check_model(optimizer):
    """Raises where `fit` trains another model than the optimizer was built for.

    Keras hands over values alone. It has taken the arrays of the model and of the optimizer by
    then, but those of another model are still there.
    """
    if not is_deleted(optimizer._iterations):
        return
    for variable in optimizer._trainable_variables:
        if not is_deleted(variable):
            raise ValueError(
                f"{optimizer.name} was built for {path_of(variable)!r}, which is no trainable "
                "variable of the model that fit trains: its slots and its plan belong to the "
                "variables that it was built for. Make a new optimizer for a new model, for "
                f"instance {type(optimizer).__name__}.from_config(optimizer.get_config()); and the "
                "model, whose weights Keras drops with any error in a fit on JAX."
            )


def has_accelerator():
    """Whether steps run on something else than a CPU."""
    if keras.backend.backend() == "tensorflow":
        from tf_lamb.tensorflow import namespace

        return namespace.has_accelerator()
    if sharding.is_distributed():
        return not sharding.is_on_cpus()
    if keras.backend.backend() == "jax":
        import jax

        return jax.default_backend() != "cpu"
    return ops.convert_to_tensor(0.0).device.type != "cpu"


def refuse(skipped, finite, refusal, paths):
    """Raises where a step runs, if it was skipped, with the paths of what is not finite."""

    def check(skipped, finite):
        if skipped:
            nonfinite = (path for path, each in zip(paths, finite, strict=True) if not each)
            raise FloatingPointError(f"{refusal}{', '.join(nonfinite)}.")

    if arrays.concrete_bool(skipped) is None:
        import jax

        jax.debug.callback(check, skipped, finite)
    else:
        check(*map(arrays.to_numpy, (skipped, finite)))


# -- what every frontend's `host` has, besides `put` -----------------------------------------------


def which_are_finite(variables):
    """By variable, whether every element is finite; waits for the device."""
    return arrays.to_numpy(ops.stack([ops.all(ops.isfinite(v)) for v in variables]))


def array_of(variable):
    """What a variable holds here, in NumPy; None where no one can say."""
    if keras.backend.backend() == "tensorflow":
        from tf_lamb.tensorflow.update import array_of

        return array_of(arrays.native(variable))
    value = variable.value
    if hasattr(value, "addressable_data"):  # a part, where other processes have the rest
        value = value.addressable_data(0)
    return arrays.to_numpy(value)


def fetch(vectors):
    """The vectors as lists, in one transfer."""
    return arrays.to_numpy(ops.stack(list(map(ops.convert_to_tensor, vectors)))).tolist()


def initial(variable, initializer):
    """The value that a variable begins with."""
    return keras.initializers.get(initializer)(variable.shape, variable.dtype)


fit = sharding.fitting  # a variable, its `Part`, a value of another shape -> the value, or None
