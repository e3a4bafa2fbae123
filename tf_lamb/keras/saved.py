"""Saves and loads optimizers of Keras 3: in Keras's files, in HDF5, in TensorFlow's checkpoints.

Seams into Keras 3 (3.12.0 to 3.15.1):
    `save_own_variables`, `load_own_variables`: what an error in them says reaches the user.
    `build` on no variables, then `set_weights`: what Keras's HDF5 loader calls. Keras's own
        optimizers are then built on nothing, and lose their slots.
    `_trackable_children`, `_lookup_dependency` of TensorFlow (2.20), which Keras's optimizers have
        there.
"""

import contextlib

import keras
from keras import ops

from tf_lamb.api.optimizers import named
from tf_lamb.keras import arrays, host, processes


def outside_of_any_graph():
    """Returns a context outside of the graph that is being traced.

    `fit` may build the optimizer while TensorFlow traces the step.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.init_scope()
    return contextlib.nullcontext()


def _read(entry):
    """Returns the array of an entry, which may be one of HDF5."""
    return entry[()]


# -- methods of both base classes: state is known by name, not by its position ---------------------


def save_own_variables(self, store):
    """Saves the state by name, without observed trust ratios; gathers variables that lie in parts.

    Args:
        self: The optimizer.
        store: The mapping to write to.
    """
    with processes.gathered(self.variables):
        named.save(self._named_state(), store, arrays.to_numpy)


def load_own_variables(self, store):
    """Loads the state by name.

    Args:
        self: The optimizer.
        store: The mapping to read from.

    Raises:
        ValueError: If the saved state is that of something else.
    """
    state = self._named_state()
    for variable, value in named.load(self.name, state, store, _read, host.fit, host.initial):
        variable.assign(value)
    named.note_load(self)


def trackable_children(self, save_type="checkpoint", **kwargs):
    """Returns the edges of the optimizer in TensorFlow's checkpoints, by name.

    Args:
        self: The optimizer.
        save_type: "checkpoint" or "savedmodel".
        **kwargs: Passed on to Keras.
    """
    from tf_lamb.tensorflow import tracking

    children = keras.optimizers.Optimizer._trackable_children(self, save_type, **kwargs)
    return tracking.children(self, children)


def lookup_dependency(self, name, cached_dependencies=None):
    """Returns the object at an edge of a checkpoint, by the layout of the model where one is saved.

    Args:
        self: The optimizer.
        name: The name of the edge.
        cached_dependencies: Passed on to Keras.
    """
    from tf_lamb.tensorflow import tracking

    lookup = keras.optimizers.Optimizer._lookup_dependency
    return tracking.lookup(self, name, lambda: lookup(self, name, cached_dependencies))


def set_weights(self, weights):
    """Sets the weights as Keras does, and before the build, too, which then takes them.

    Args:
        self: The optimizer.
        weights: The arrays, or the variables of another optimizer, which are copied.

    Raises:
        ValueError: If their number is not that of the variables.
    """
    if not self.built:
        # HDF5 has no bfloat16, and returns its bits as two bytes without a type.
        values = [weight[()] for weight in weights]
        self._early_weights = tuple(
            value.view("bfloat16") if value.dtype == "V2" else value for value in values
        )
        return
    named.check_count(self.name, weights, self._variables, self.variables)
    values = [ops.copy(ops.convert_to_tensor(w)) for w in weights]
    keras.optimizers.Optimizer.set_weights(self, values)
    named.note_load(self)


def set_weights_of_files(optimizer):
    """Sets, at the end of a build, what files have held for the new variables."""
    if weights := getattr(optimizer, "_early_weights", ()):
        with outside_of_any_graph():
            optimizer.set_weights(weights)
        optimizer._early_weights = ()
    if keras.backend.backend() == "tensorflow":
        from tf_lamb.tensorflow import tracking

        with outside_of_any_graph():
            tracking.restore_deferred(optimizer)
