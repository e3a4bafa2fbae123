"""What tf_keras's loaders hand over, as it was when it was saved.

Seams into tf_keras (2.20.1): HDF5 models are loaded by `class_name`, where a class of a package is
known by its `registered_name` alone; bfloat16, which HDF5 has not, comes back as two bytes of
nothing; `_trackable_children`, `_handle_deferred_dependencies` and `_sharded_variable_builders` are
what a `tf.train.Checkpoint` asks of an optimizer; by `_track_trackable` a dynamic loss scale has
itself saved beside one, which takes it over.
"""

import tensorflow as tf

from tf_lamb.api.optimizers import named
from tf_lamb.tf_keras import loss_scale


def by_registered_name(config):
    """The config of an object, so that every loader finds its class."""
    if not isinstance(config, dict):
        return config
    return {**config, "class_name": config.get("registered_name") or config.get("class_name")}


def value(array):
    """What stood in a variable."""
    array = array[()]
    return array.view(tf.bfloat16.as_numpy_dtype) if array.dtype == "V2" else array


def _fit(own, part, value):
    """Nothing: replicas have variables of their own."""


class Saved:
    """Between an optimizer and tf_keras's base class: state is known by name, not by position."""

    def _named_state(self):
        return named.of(self)

    def save_own_variables(self, store):
        """By name, unlike tf_keras."""
        named.save(self._named_state(), store, lambda variable: variable.numpy())

    def load_own_variables(self, store):
        """By name, unlike tf_keras; raises where what was saved is the state of something else."""
        for variable, saved in named.load(self.name, self._named_state(), store, value, _fit):
            new = tf.zeros(variable.shape) if saved is None else saved
            variable.assign(tf.cast(new, variable.dtype))

    def set_weights(self, weights):
        """As in tf_keras, but not with those of other options."""
        named.check_count(self.name, weights, self._variables, self.variables)
        super().set_weights([value(weight) for weight in weights])

    def _track_trackable(self, trackable, name, overwrite=False):
        if name == "loss_scale" and loss_scale.is_around(self):
            self.take_loss_scale(trackable)
        return super()._track_trackable(trackable, name, overwrite)

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        children = super()._trackable_children(save_type, **kwargs)
        if self._sharded_variable_builders:  # tf_keras puts parts of variables together
            return children
        return named.children(self._named_state(), children)

    def _restore_deferred(self):
        """At the end of a build: what a checkpoint has held for what is there now."""
        for name, variable in self._named_state().variables().items():
            self._handle_deferred_dependencies(name, variable)
