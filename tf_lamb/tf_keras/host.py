"""Functions that use tf_keras's private API, or that tf_keras's base class of optimizers lacks.

A seam is a use of private API. Besides those in this file, `tf_lamb.tf_keras` has these seams into
tf_keras 2.20.1:
    `aggregate_gradients`: a public method; `LossScaleOptimizer` calls it, too.
    `_clip_gradients`: this package's method does nothing, because gradients are clipped after they
        are summed over replicas and micro-batches.
    `_apply_weight_decay`: this package's method does nothing, because the update rule applies
        weight decay.
    `_build_learning_rate`: this package's method also takes a callable.
    `_get_hyper`: Model Garden's averaging wrapper (tf-models-official 2.20.0) calls it.
    `_internal_apply_gradients`, `_var_key`, `_index_dict`, `_built`, `_learning_rate`,
    `_variables`, `_distribution_strategy`, `_model_variables_moving_average`,
    `_serialize_hyperparameter`, and `_variable` of mixed precision's wrapper: this package uses
        them as tf_keras's own code does.

Seams into how tf_keras saves and loads:
    An HDF5 model is loaded by `class_name`, although only the `registered_name` identifies a class
        of a package.
    A bfloat16 array is loaded as pairs of bytes without a type.
    `_trackable_children`, `_lookup_dependency`, `_sharded_variable_builders`: a
        `tf.train.Checkpoint` calls or reads these members of an optimizer.

Seams into its `LossScaleOptimizer`, besides those in `tf_keras/seams.py`:
    `_track_trackable`: the wrapper calls this method of the inner optimizer, so that its dynamic
        loss scale is saved as "loss_scale". In this call the inner optimizer takes control of the
        scale.
    `_is_wrapped_by_loss_scale_optimizer`: the wrapper sets it on the inner optimizer, also if the
        scale is fixed.
"""

import functools

import tensorflow as tf
import tf_keras

from tf_lamb.api.optimizers import named
from tf_lamb.tensorflow import replicas, summaries, tracking
from tf_lamb.tensorflow.namespace import has_accelerator as has_accelerator
from tf_lamb.tensorflow.summaries import fetch as fetch
from tf_lamb.tensorflow.update import array_of as array_of_native
from tf_lamb.tensorflow.update import dense, which_variables_are_finite


def is_in_loss_scale(optimizer) -> bool:
    """Returns whether a `LossScaleOptimizer` wraps the optimizer, and passes gradients to it."""
    return getattr(optimizer, "_is_wrapped_by_loss_scale_optimizer", False)


def with_missing_gradients(optimizer, pairs):
    """Restores the pairs (None, variable) that a `LossScaleOptimizer` left out of a step.

    They are those of the variables without a gradient. The wrapper has called `build` with all
    variables. Without the wrapper, the pairs stay as they are.

    Args:
        optimizer: The optimizer.
        pairs: Pairs of a gradient and its variable.
    """
    built_for = optimizer._built_for if is_in_loss_scale(optimizer) else ()
    keys = {optimizer._var_key(variable) for _, variable in pairs}
    return [*pairs, *((None, v) for v in built_for if optimizer._var_key(v) not in keys)]


def with_registered_class_name(config):
    """Returns a serialized object whose `class_name` is replaced by its `registered_name`."""
    if not isinstance(config, dict):
        return config
    return {**config, "class_name": config.get("registered_name") or config.get("class_name")}


def loaded_array(entry):
    """Returns a saved value as an array; restores the type bfloat16, which files do not keep."""
    array = entry[()]
    return array.view(tf.bfloat16.as_numpy_dtype) if array.dtype == "V2" else array


Layer = tf_keras.layers.Layer


def key_of(variable):
    """Returns a key of a model's variable, the same with and without mixed precision's wrapper."""
    return id(native(variable))


def is_variable(item):
    """Returns whether an attribute of a layer is a variable."""
    return isinstance(item, tf.Variable)


def has_listed_layers(layer):
    """Returns whether a layer is a Sequential or functional model, whose layers have an order."""
    is_functional = getattr(layer, "_is_graph_network", False)
    return is_functional or isinstance(layer, tf_keras.Sequential)


HALF_PRECISION = (tf.float16, tf.bfloat16)
Schedule = tf_keras.optimizers.schedules.LearningRateSchedule


class CallableSchedule(Schedule):  # type: ignore[valid-type, misc]
    """A schedule that calls a function without arguments at every step.

    Args:
        function: The function, which returns a learning rate.
    """

    def __init__(self, function):
        super().__init__()
        self._function = function

    def __call__(self, step):
        """Returns the present result of the function; ignores the step."""
        return tf.cast(self._function(), tf_keras.backend.floatx())

    def get_config(self):
        """Returns the constructor's arguments."""
        return {"function": self._function}


def in_strategy(build):
    """Wraps `build`, to run it in the scope of the strategy under which the optimizer was made.

    The first build also checks the variables; it raises ValueError if they were made under another
    strategy.
    """

    @functools.wraps(build)
    def method(optimizer, var_list):
        strategy = optimizer._distribution_strategy
        if not getattr(optimizer, "_built", False):
            replicas.check_strategy_of_variables(strategy, map(native, var_list), optimizer.name)
        with replicas.scope_of(strategy):
            build(optimizer, var_list)

    return method


def native(variable):
    """Returns the variable inside mixed precision's wrapper, which `tf.function` does not take."""
    return getattr(variable, "_variable", variable)


def at_least_float32(gradient):
    """Casts a half-precision gradient to float32; returns any other one unchanged."""
    return tf.cast(gradient, tf.float32) if gradient.dtype in HALF_PRECISION else gradient


def map_gradients(pairs, change):
    """Applies a function to the gradient of each pair; a gradient of None stays.

    Args:
        pairs: Pairs of a gradient and its variable.
        change: A function of a gradient. It gets the gradient as a dense tensor, in float32 or
            wider.
    """
    return [(g if g is None else change(at_least_float32(dense(g, v))), v) for g, v in pairs]


# -- methods of `LayerwiseOptimizer` and `MeasuringOptimizer`: variables are saved by name ---------


def save_own_variables(self, store):
    """Saves the optimizer's variables by name; tf_keras saves them by position.

    Args:
        self: The optimizer.
        store: The mapping to write to.
    """

    def to_array(variable):
        return variable.numpy()

    named.save(self._named_state(), store, to_array)


def load_own_variables(self, store):
    """Loads the optimizer's variables by name; tf_keras loads them by position.

    Args:
        self: The optimizer.
        store: The mapping to read from.

    Raises:
        ValueError: If the saved state belongs to another update rule, or to other layers, slots or
            shapes.
    """

    def assign(variable, value):
        variable.assign(tf.cast(value, variable.dtype))

    named.load(self, store, loaded_array, assign)


def set_weights(self, weights):
    """Sets the optimizer's variables as tf_keras does, by position.

    Args:
        self: The optimizer.
        weights: The arrays.

    Raises:
        ValueError: If there are more or fewer arrays than variables.
    """
    named.check_weight_count(self.name, weights, self._variables, self.variables)
    tf_keras.optimizers.Optimizer.set_weights(self, [loaded_array(weight) for weight in weights])
    named.record_load(self)


def track_trackable(self, trackable, name, overwrite=False):
    """Adds an object to checkpoints, as tf_keras does; takes control of a dynamic loss scale.

    Args:
        self: The optimizer.
        trackable: The object.
        name: The name of the object in a checkpoint.
        overwrite: Passed on to tf_keras.
    """
    if name == "loss_scale" and is_in_loss_scale(self):
        self._take_loss_scale(trackable)
    return tf_keras.optimizers.Optimizer._track_trackable(self, trackable, name, overwrite)


def trackable_children(self, save_type="checkpoint", **kwargs):
    """Returns the objects that TensorFlow saves for the optimizer in a checkpoint, by name.

    When it restores a checkpoint, TensorFlow calls this before `lookup_dependency`.

    Args:
        self: The optimizer.
        save_type: "checkpoint" or "savedmodel".
        **kwargs: Passed on to tf_keras.
    """
    children = tf_keras.optimizers.Optimizer._trackable_children(self, save_type, **kwargs)
    if self._sharded_variable_builders:  # with parameter servers, as tf_keras saves
        by_name = children
    else:
        by_name = tracking.checkpoint_children(self, children)
    if save_type == "checkpoint":
        return by_name
    # A SavedModel is loaded as tf_keras's own class, which has `_iterations`, and for which names
    # of its properties cannot be set. By the other names, `model.load_weights` restores the slots.
    settable = {name: child for name, child in by_name.items() if not _has_property(name)}
    return {**settable, **children, "_iterations": self.iterations}


def _has_property(name):
    """Returns whether tf_keras's class of optimizers has a property of a name."""
    return isinstance(getattr(tf_keras.optimizers.Optimizer, name, None), property)


def lookup_dependency(self, name, cached_dependencies=None):
    """Returns the object that gets the value of a name in a checkpoint when it is restored.

    If the checkpoint contains the place of each variable in its model, a saved variable is restored
    to the variable at the same place (`tf_lamb/tensorflow/tracking.py`).

    Args:
        self: The optimizer.
        name: The name in the checkpoint.
        cached_dependencies: Passed on to tf_keras.
    """

    def look_up_as_keras():
        look_up = tf_keras.optimizers.Optimizer._lookup_dependency
        child = look_up(self, name, cached_dependencies)
        # A SavedModel has `_iterations` and `_learning_rate`; a checkpoint has no underscore.
        return look_up(self, name.lstrip("_"), cached_dependencies) if child is None else child

    return tracking.look_up(self, name, look_up_as_keras)


# -- functions that `tf_lamb/keras/host.py` has, too -----------------------------------------------


def put(variable, value):
    """Gives a variable a value.

    Args:
        variable: The variable to assign to.
        value: Another variable, or an array.
    """
    native_variable = native(variable)
    native_variable.assign(tf.cast(value, native_variable.dtype))


def which_are_finite(variables):
    """Returns, for each variable, whether every element is finite; waits for the device."""
    return which_variables_are_finite(list(map(native, variables)))


def array_of(variable):
    """Returns a variable's value as a NumPy array; None if TensorFlow 1 graph code is running."""
    return array_of_native(native(variable))


def initial_value(variable, initializer):
    """Returns the value that a variable begins with.

    Args:
        variable: The variable, for its shape and dtype.
        initializer: The name of an initializer of Keras, such as "zeros".
    """
    return tf_keras.initializers.get(initializer)(variable.shape, native(variable).dtype)


def accumulators(optimizer, variables):
    """Makes the variables that add up the gradients of micro-batches, with a copy per replica.

    Args:
        optimizer: The optimizer.
        variables: The variables that it trains.
    """
    with replicas.per_replica_variables():
        return [
            optimizer.add_variable_from_reference(variable, "gradient_accumulator")
            for variable in variables
        ]


def observation_vector(optimizer, variable, name):
    """Makes the variable that records the trust ratio of another variable, on its device.

    It is a vector of four numbers: the norm of the weight, the norm of the update, the trust ratio,
    and the number of ratios that a bound has changed. Before the first step they are `UNSEEN`.

    Args:
        optimizer: The optimizer, whose strategy places the new variable.
        variable: The other variable.
        name: The name of the new variable.
    """
    return summaries.observation_vector(variable, optimizer._distribution_strategy, name)


def fit_to_shape(variable, part, value):
    """Returns None, because no saved array of another shape can be converted.

    In Keras 3 on JAX, one array may hold the gradient sums of all replicas, and can be converted to
    another number of replicas. In tf_keras each replica has its own copy of the variable.

    Args:
        variable: The variable of this optimizer.
        part: The `named.Part` that it belongs to.
        value: The saved array.
    """
