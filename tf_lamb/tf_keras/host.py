"""Functions that depend on tf_keras's private API (its seams), or that its base class lacks.

Seams into tf_keras (2.20.1). `tf_lamb.tf_keras` uses those of this file, and these:
    `aggregate_gradients`: public; `LossScaleOptimizer` calls it, too.
    `_clip_gradients`: ours does nothing, because gradients are clipped after replicas and
        micro-batches are aggregated.
    `_apply_weight_decay`: ours does nothing, because the rule decays inside the trust ratio.
    `_build_learning_rate`: ours takes a callable, too.
    `_get_hyper`: called by the averaging wrapper of Model Garden (tf-models-official 2.20.0).
    `_internal_apply_gradients`, `_var_key`, `_index_dict`, `_built`, `_learning_rate`,
    `_variables`, `_distribution_strategy`, `_model_variables_moving_average`,
    `_serialize_hyperparameter`, and `_variable` of mixed precision's wrapper: used as tf_keras's
        own code uses them.

Seams into how tf_keras saves and loads: HDF5 models are loaded by `class_name`, although only the
`registered_name` identifies a class of a package; bfloat16 comes back as two bytes without a type;
`_trackable_children`, `_lookup_dependency` and `_sharded_variable_builders` are what a
`tf.train.Checkpoint` asks of an optimizer.

Seams into its `LossScaleOptimizer`, besides those in `tf_keras/seams.py`:
    `_track_trackable`: the wrapper calls it on the optimizer inside, to have its dynamic loss scale
        saved as "loss_scale"; there the optimizer takes control of the scale.
    `_is_wrapped_by_loss_scale_optimizer`: the wrapper sets it on the optimizer inside, for a fixed
        scale, too.
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
    """Returns whether `LossScaleOptimizer` wraps the optimizer and gets the gradients first."""
    return getattr(optimizer, "_is_wrapped_by_loss_scale_optimizer", False)


def with_missing_gradients(optimizer, pairs):
    """Returns the pairs of a step, and a pair with None for each variable without a gradient.

    `LossScaleOptimizer` leaves such pairs out, but has called `build` with all variables.

    Args:
        optimizer: The optimizer.
        pairs: Pairs of a gradient and its variable.
    """
    built_for = optimizer._built_for if is_in_loss_scale(optimizer) else ()
    keys = {optimizer._var_key(variable) for _, variable in pairs}
    return [*pairs, *((None, v) for v in built_for if optimizer._var_key(v) not in keys)]


def with_registered_class_name(config):
    """Returns a serialized object with its registered name in the place of its class name."""
    if not isinstance(config, dict):
        return config
    return {**config, "class_name": config.get("registered_name") or config.get("class_name")}


def loaded_array(entry):
    """Returns the saved value of a variable as an array, in bfloat16 where that was saved."""
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
    """Returns whether the layers of a model have an order: Sequential and functional models."""
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
        """Returns what the function returns now, whatever the step."""
        return tf.cast(self._function(), tf_keras.backend.floatx())

    def get_config(self):
        """Returns the constructor's arguments."""
        return {"function": self._function}


def in_strategy(build):
    """Wraps `build`, to run it in the scope of the strategy that the optimizer was made under."""

    @functools.wraps(build)
    def method(optimizer, var_list):
        strategy = optimizer._distribution_strategy
        if not getattr(optimizer, "_built", False):
            replicas.check_strategy_of_variables(strategy, map(native, var_list), optimizer.name)
        with replicas.scope_of(strategy):
            build(optimizer, var_list)

    return method


def native(variable):
    """Returns a variable without mixed precision's wrapper, which no `tf.function` takes."""
    return getattr(variable, "_variable", variable)


def at_least_float32(gradient):
    """Returns a gradient in float32 where it is in half precision."""
    return tf.cast(gradient, tf.float32) if gradient.dtype in HALF_PRECISION else gradient


def map_gradients(pairs, change):
    """Returns the pairs with each gradient replaced by a function of it; None stays.

    Args:
        pairs: Pairs of a gradient and its variable.
        change: A function of the gradient, which is dense and at least float32.
    """
    return [(g if g is None else change(at_least_float32(dense(g, v))), v) for g, v in pairs]


# -- methods of both base classes, which save variables by name, not by position -------------------


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
        ValueError: If the saved state is of another rule, or of other layers, slots or shapes.
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
        ValueError: If their number is not that of the variables.
    """
    named.check_weight_count(self.name, weights, self._variables, self.variables)
    tf_keras.optimizers.Optimizer.set_weights(self, [loaded_array(weight) for weight in weights])
    named.record_load(self)


def track_trackable(self, trackable, name, overwrite=False):
    """Tracks an object for checkpoints, as tf_keras does; takes control of a dynamic loss scale.

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

    TensorFlow calls this before it looks a name up.

    Args:
        self: The optimizer.
        save_type: "checkpoint" or "savedmodel".
        **kwargs: Passed on to tf_keras.
    """
    children = tf_keras.optimizers.Optimizer._trackable_children(self, save_type, **kwargs)
    if save_type == "savedmodel":  # it is loaded as tf_keras's base class, which counts in this
        return {**children, "_iterations": self.iterations}
    if self._sharded_variable_builders:  # tf_keras joins the parts of variables on servers itself
        return children
    return tracking.checkpoint_children(self, children)


def lookup_dependency(self, name, cached_dependencies=None):
    """Returns the object to which a checkpoint restores what it holds under a name.

    If the checkpoint holds the places of the variables in their model, these decide which saved
    variable continues in which (`tf_lamb/tensorflow/tracking.py`).

    Args:
        self: The optimizer.
        name: The name in the checkpoint.
        cached_dependencies: Passed on to tf_keras.
    """
    look_up_as_keras = tf_keras.optimizers.Optimizer._lookup_dependency
    return tracking.look_up(self, name, lambda: look_up_as_keras(self, name, cached_dependencies))


# -- functions that `host.py` of Keras 3 has, too --------------------------------------------------


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
    """Returns a variable's value in NumPy; None in a graph outside of eager code."""
    return array_of_native(native(variable))


def initial_value(variable, initializer):
    """Returns the value that a variable begins with.

    Args:
        variable: The variable, for its shape and dtype.
        initializer: The name of an initializer, as Keras has them.
    """
    return tf_keras.initializers.get(initializer)(variable.shape, native(variable).dtype)


def accumulators(optimizer, variables):
    """Makes the variables that add up the gradients of micro-batches, one on each replica.

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
    """Makes the variable of four numbers that records the trust ratio of another variable.

    It begins as `UNSEEN`, and lies on the device of the other variable.

    Args:
        optimizer: The optimizer, whose strategy places the new variable.
        variable: The other variable.
        name: The name of the new variable.
    """
    return summaries.observation_vector(variable, optimizer._distribution_strategy, name)


def fit_to_shape(variable, part, value):
    """Returns None, because no saved array of another shape can be converted.

    In Keras 3 on JAX, gradient sums of several replicas may be one array, whose shape depends on
    their number. Here each replica has a copy of the variable.

    Args:
        variable: The variable of this optimizer.
        part: The `named.Part` that it belongs to.
        value: The saved array.
    """
