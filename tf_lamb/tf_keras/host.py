"""tf_keras as this room finds it: its seams, and what its base class lacks.

Seams into tf_keras (2.20.1); the rest of the room uses what is here, and these:
    `aggregate_gradients`: public; a loss scale calls it, too.
    `_clip_gradients`: waits until replicas and micro-batches are aggregated.
    `_apply_weight_decay`: silent; the rule decays inside the trust ratio.
    `_build_learning_rate`: takes a callable, too.
    `_get_hyper`: asked for by the averaging wrapper of Model Garden (tf-models-official 2.20.0).
    `_internal_apply_gradients`, `_var_key`, `_index_dict`, `_built`, `_learning_rate`,
    `_variables`, `_distribution_strategy`, `_model_variables_moving_average`,
    `_serialize_hyperparameter`, and `_variable` of mixed precision's wrapper: used as tf_keras's
        own code uses them.

Of how it saves and loads: HDF5 models are loaded by `class_name`, where a class of a package is
known by its `registered_name` alone; bfloat16 comes back as two bytes of nothing;
`_trackable_children`, `_lookup_dependency` and `_sharded_variable_builders` are what a
`tf.train.Checkpoint` asks of an optimizer.

Of its `LossScaleOptimizer`, besides those in `tf_keras/seams.py`:
    `_track_trackable`: has the dynamic scale saved as "loss_scale"; the optimizer takes it over.
    `_is_wrapped_by_loss_scale_optimizer`: what the wrapper sets, of a fixed scale, too.
"""

import functools

import tensorflow as tf
import tf_keras

from tf_lamb.api.optimizers import named
from tf_lamb.tensorflow import replicas, tracking
from tf_lamb.tensorflow.namespace import has_accelerator as has_accelerator
from tf_lamb.tensorflow.summaries import fetch as fetch
from tf_lamb.tensorflow.update import array_of as array_of_native
from tf_lamb.tensorflow.update import dense, finite_variables


def is_in_loss_scale(optimizer) -> bool:
    """Whether a loss scale wraps the optimizer, which then sees its gradients first."""
    return getattr(optimizer, "_is_wrapped_by_loss_scale_optimizer", False)


def with_all(optimizer, pairs):
    """The pairs that a step was given, of which one that is frozen is none.

    A loss scale leaves out those of which the gradient is None; its `build` has told of them.
    """
    built_for = optimizer._built_for if is_in_loss_scale(optimizer) else ()
    given = {optimizer._var_key(variable) for _, variable in pairs}
    return [*pairs, *((None, v) for v in built_for if optimizer._var_key(v) not in given)]


def by_registered_name(config):
    """The config of an object, so that every loader finds its class."""
    if not isinstance(config, dict):
        return config
    return {**config, "class_name": config.get("registered_name") or config.get("class_name")}


def loaded(array):
    """The saved value of a variable."""
    array = array[()]
    return array.view(tf.bfloat16.as_numpy_dtype) if array.dtype == "V2" else array


Layer = tf_keras.layers.Layer


def key_of(variable):
    """By which a variable of a model is known, with mixed precision's wrapper and without."""
    return id(native(variable))


def is_variable(item):
    """Whether it is a variable, which a layer may have."""
    return isinstance(item, tf.Variable)


def has_listed_layers(layer):
    """Whether hosts know its layers by their order: Sequential's and a functional model's."""
    is_functional = getattr(layer, "_is_graph_network", False)
    return is_functional or isinstance(layer, tf_keras.Sequential)


HALF = (tf.float16, tf.bfloat16)
Schedule = tf_keras.optimizers.schedules.LearningRateSchedule


class AsSchedule(Schedule):  # type: ignore[valid-type]
    """A callable without arguments as a schedule, so that every step calls it."""

    def __init__(self, function):
        super().__init__()
        self._function = function

    def __call__(self, step):
        return tf.cast(self._function(), tf_keras.backend.floatx())

    def get_config(self):
        return {"function": self._function}


def in_strategy(build):
    """Has `build` run inside the strategy that the optimizer was made under, from anywhere."""

    @functools.wraps(build)
    def method(optimizer, var_list):
        strategy = optimizer._distribution_strategy
        if not getattr(optimizer, "_built", False):
            replicas.check_made_under(strategy, map(native, var_list), optimizer.name)
        with replicas.scope_of(strategy):
            build(optimizer, var_list)

    return method


def native(variable):
    """A variable without mixed precision's wrapper, which no `tf.function` takes."""
    return getattr(variable, "_variable", variable)


def at_least_float32(gradient):
    return tf.cast(gradient, tf.float32) if gradient.dtype in HALF else gradient


def of_each(pairs, change):
    """Pairs of a gradient and its variable, with what is made of each gradient that there is."""
    wide = at_least_float32
    return [(g if g is None else change(wide(dense(g, v))), v) for g, v in pairs]


# -- methods of both bases: state is known by name, not by its position ----------------------------


def save_own_variables(self, store):
    """By name, unlike tf_keras."""
    named.save(self._named_state(), store, lambda variable: variable.numpy())


def load_own_variables(self, store):
    """By name, unlike tf_keras; raises where what was saved is the state of something else."""
    for variable, value in named.load(self.name, self._named_state(), store, loaded, fit, initial):
        variable.assign(tf.cast(value, variable.dtype))
    named.note_load(self)


def set_weights(self, weights):
    """Sets weights as in tf_keras, but refuses those of other options."""
    named.check_count(self.name, weights, self._variables, self.variables)
    tf_keras.optimizers.Optimizer.set_weights(self, [loaded(weight) for weight in weights])
    named.note_load(self)


def track_trackable(self, trackable, name, overwrite=False):
    """As in tf_keras; takes a loss scale over."""
    if name == "loss_scale" and is_in_loss_scale(self):
        self._take_loss_scale(trackable)
    return tf_keras.optimizers.Optimizer._track_trackable(self, trackable, name, overwrite)


def trackable_children(self, save_type="checkpoint", **kwargs):
    """By name, for TensorFlow's checkpoints, which ask for it before they look one up."""
    children = tf_keras.optimizers.Optimizer._trackable_children(self, save_type, **kwargs)
    if save_type == "savedmodel":  # read by an optimizer of the base class, which counts
        return {**children, "_iterations": self.iterations}
    if self._sharded_variable_builders:  # tf_keras puts parts of variables together
        return children
    return tracking.children(self, children)


def lookup_dependency(self, name, cached_dependencies=None):
    """The object at an edge of a checkpoint; by the layout of the model, where one is saved."""
    lookup = tf_keras.optimizers.Optimizer._lookup_dependency
    return tracking.lookup(self, name, lambda: lookup(self, name, cached_dependencies))


# -- what every frontend's `host` has --------------------------------------------------------------


def put(variable, value):
    """Gives a variable the value of another."""
    own = native(variable)
    own.assign(tf.cast(value, own.dtype))


def which_are_finite(variables):
    """By variable, whether every element is finite; waits for the device."""
    return finite_variables(list(map(native, variables)))


def array_of(variable):
    """What a variable holds, in NumPy; None in a graph that nothing eager surrounds."""
    return array_of_native(native(variable))


def initial(variable, initializer):
    """The value that a variable begins with."""
    return tf_keras.initializers.get(initializer)(variable.shape, native(variable).dtype)


def fit(own, part, value):
    """Nothing: replicas have variables of their own."""
