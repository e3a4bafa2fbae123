"""Functions that depend on Keras 3's private API, its version or its backend.

A use of private API is called a seam. `tf_lamb.keras` uses these members of Keras 3 (3.12.0 to
3.15.1), besides those that are named further down in this file and in other modules:
    `_backend_apply_gradients`: the override clips after the sum over replicas, and averages the
        weights once per optimizer step. Keras clips before the sum, and averages at every
        micro-batch.
    `variables`, of an optimizer and of a wrapper: Keras passes them to a step on JAX, and saves
        them.
    `_model_variables_moving_average`: Keras's `build` makes it; `SwapEMAWeights` reads it.
    `_overwrite_variables_directly_with_gradients`: Keras calls it before it applies constraints.
        By then `apply` has taken out the variables that Keras would overwrite in it.
    `Variable._value`: None while `fit` on JAX holds the array, because a step donates its buffer.
    `_all_reduce_sum_gradients`, `_get_variable_index`, `_var_key`, `_iterations`,
    `_distribution_strategy`, `_accumulated_gradients`, `_variables`, `_trainable_variables`: used
        as Keras's own optimizers use them.
"""

import contextlib
import functools

import keras
from keras import ops

from tf_lamb.api.optimizers.observation import UNSEEN
from tf_lamb.api.variables import is_overwritten, path_of
from tf_lamb.keras import arrays, sharding
from tf_lamb.keras.arrays import native as native

Layer = keras.layers.Layer
key_of = id  # a function: variable of a model -> a key that identifies it


def is_variable(item):
    """Returns whether an attribute of a layer is a variable."""
    return isinstance(item, keras.Variable)


def has_listed_layers(layer):
    """Returns whether a layer is a Sequential or Functional model, whose layers have an order."""
    return isinstance(layer, keras.Sequential) or hasattr(layer, "operations")


def select_trainable(variables):
    """Returns the variables that are trainable now, as their layers may be frozen at any time."""
    return [variable for variable in variables if variable.trainable]


def split_accumulators(optimizer):
    """Replaces the gradient accumulators of a built optimizer by ones with a sum for each replica.

    The replicas are on a new first axis. The first replica gets the sum so far, the others zeros.
    """
    accumulators = optimizer._storage.accumulators
    for i, accumulator in enumerate(accumulators):
        variable = optimizer._trainable_variables[i]
        # The accumulator of an overwritten variable has the maximum over replicas, and no sum.
        if is_overwritten(variable):
            continue
        parts = optimizer.add_variable_from_reference(variable, "gradient_accumulator")
        zeros = ops.zeros((parts.shape[0] - 1, *accumulator.shape), accumulator.dtype)
        parts.assign(ops.concatenate([ops.convert_to_tensor(accumulator)[None], zeros]))
        accumulators[i] = parts
        variables = optimizer._variables
        variables[next(j for j, v in enumerate(variables) if v is accumulator)] = variables.pop()


def in_strategy(build):
    """Wraps `build`, to run it in the scope of the optimizer's distribution strategy.

    That is the TensorFlow strategy under which the optimizer was made. On other backends `build` is
    returned as it is.
    """
    if keras.backend.backend() != "tensorflow":
        return build

    @functools.wraps(build)
    def method(optimizer, variables):
        from tf_lamb.tensorflow import replicas

        strategy = optimizer._distribution_strategy
        if not optimizer.built:
            replicas.check_strategy_of_variables(strategy, map(native, variables), optimizer.name)
        with replicas.scope_of(strategy):
            build(optimizer, variables)

    return method


def outside_of_any_graph():
    """Returns a context in which TensorFlow runs code eagerly, outside of a graph being traced.

    It is needed because `fit` may build the optimizer while TensorFlow traces the step. On other
    backends the context does nothing.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.init_scope()
    return contextlib.nullcontext()


def put(variable, value):
    """Assigns a copy of a value to a variable.

    Without the copy two variables could have the same array, whose buffer JAX would donate twice.

    Args:
        variable: The variable to assign to.
        value: Another variable, or an array.
    """
    variable.assign(ops.copy(ops.cast(value, variable.dtype)))


def is_deleted(variable):
    """Returns whether a variable on JAX has lost its array.

    That is so while `fit` holds the arrays, and after a failed step of `fit`, which has donated
    their buffers.
    """
    value = variable._value
    return value is None or (hasattr(value, "is_deleted") and value.is_deleted())


def check_model(optimizer):
    """Raises if `fit` on JAX trains another model than the optimizer was built for.

    Keras passes the values of variables to a training step on JAX. Before, it takes the arrays out
    of the variables of the optimizer and of the model that it trains. So a variable that still has
    its array during a step belongs to another model.

    Raises:
        ValueError: If a variable that the optimizer was built for still has its array.
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
    """Returns whether training steps run on a GPU or TPU, and not on a CPU."""
    if keras.backend.backend() == "tensorflow":
        from tf_lamb.tensorflow import namespace

        return namespace.has_accelerator()
    if sharding.is_distributed():
        return not sharding.is_on_cpus()
    if keras.backend.backend() == "jax":
        import jax

        return jax.default_backend() != "cpu"
    return ops.convert_to_tensor(0.0).device.type != "cpu"


def raise_if_skipped(is_skipped, is_finite, refusal, paths):
    """Raises FloatingPointError if a step was skipped because gradients were not finite.

    The error is raised when the step runs, and not while it is traced.

    Args:
        is_skipped: Whether the step was skipped, a boolean scalar.
        is_finite: Whether each gradient is finite, a boolean vector.
        refusal: The beginning of the message, to which the paths that are not finite are added.
        paths: The paths of the variables, in the order of `is_finite`.
    """

    def check(is_skipped, is_finite):
        if is_skipped:
            nonfinite = (path for path, finite in zip(paths, is_finite, strict=True) if not finite)
            raise FloatingPointError(f"{refusal}{', '.join(nonfinite)}.")

    if arrays.concrete_bool(is_skipped) is None:
        import jax

        jax.debug.callback(check, is_skipped, is_finite)
    else:
        check(*map(arrays.to_numpy, (is_skipped, is_finite)))


# -- functions that `tf_keras/host.py` also defines; `put` above is another one --------------------


def which_are_finite(variables):
    """Returns, for each variable, whether every element is finite; waits for the device."""
    return arrays.to_numpy(ops.stack([ops.all(ops.isfinite(variable)) for variable in variables]))


def array_of(variable):
    """Returns the value of a variable as a NumPy array.

    If JAX has split the variable, it is the part on the first device of this process. It is None if
    TensorFlow builds a graph that is not called from eager code.
    """
    if keras.backend.backend() == "tensorflow":
        from tf_lamb.tensorflow.update import array_of

        return array_of(arrays.native(variable))
    value = variable.value
    if hasattr(value, "addressable_data"):  # other processes have the other parts
        value = value.addressable_data(0)
    return arrays.to_numpy(value)


def fetch(vectors):
    """Returns the values of variables of one shape as lists of floats, read in one transfer."""
    return arrays.to_numpy(ops.stack(list(map(ops.convert_to_tensor, vectors)))).tolist()


def initial_value(variable, initializer):
    """Returns the initial value of a variable, in its shape and dtype.

    Args:
        variable: The variable.
        initializer: The name of a Keras initializer, such as "zeros".
    """
    return keras.initializers.get(initializer)(variable.shape, variable.dtype)


def accumulators(optimizer, variables):
    """Returns the variables that add up the gradients of micro-batches, which Keras has made."""
    return optimizer._accumulated_gradients


def observation_vector(optimizer, variable, name):
    """Makes the variable in which steps record the trust ratio of another variable.

    It has four numbers, at first `UNSEEN`.

    Args:
        optimizer: The optimizer. On TensorFlow its distribution strategy places the new variable.
        variable: The other variable. On TensorFlow the new one is on the same device.
        name: The name of the new variable.
    """
    if keras.backend.backend() == "tensorflow":
        from tf_lamb.tensorflow import summaries

        with outside_of_any_graph():
            return summaries.observation_vector(
                native(variable), optimizer._distribution_strategy, name
            )
    return keras.Variable(UNSEEN, dtype="float32", trainable=False, name=name)


# The only saved arrays whose shape can be converted to that of a variable are sums of gradients.
fit_to_shape = sharding.convert_gradient_sums
