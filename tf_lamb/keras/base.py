"""The base class of both kinds of optimizers for Keras 3, which saves and loads their state.

The state is known by name in Keras's files and in TensorFlow's checkpoints. Lists of weights, and
HDF5 files with them, know it by position.

Seams into Keras 3 (3.12.0 to 3.15.1):
    `save_own_variables`, `load_own_variables`: what an error in them says reaches the user.
    `build` on no variables, then `set_weights`: what Keras's HDF5 loader calls. Keras's own
        optimizers are then built on nothing, and lose their slots.
    `_trackable_children`, `_lookup_dependency` of TensorFlow (2.20), which Keras's optimizers have
        there.
"""

import keras
from keras import ops

from tf_lamb.api.optimizers import named
from tf_lamb.keras import arrays, host, processes


class BaseOptimizer(keras.optimizers.Optimizer):
    """Corrects how Keras's base class saves, loads and hands over the state of an optimizer."""

    _early_weights: tuple = ()  # what `set_weights` was given before the build

    def save_own_variables(self, store):
        """Saves the state by name, without observed trust ratios.

        It gathers variables of which other processes have parts.

        Args:
            store: The mapping to write to.
        """
        with processes.gathered(self.variables):
            named.save(self._named_state(), store, arrays.to_numpy)

    def load_own_variables(self, store):
        """Loads the state by name.

        Args:
            store: The mapping to read from.

        Raises:
            ValueError: If the saved state is that of something else.
        """
        named.load(self, store, _array, lambda variable, value: variable.assign(value))

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        """Returns the edges of the optimizer in TensorFlow's checkpoints, by name."""
        from tf_lamb.tensorflow import tracking

        return tracking.children(self, super()._trackable_children(save_type, **kwargs))

    def _lookup_dependency(self, name, cached_dependencies=None):
        """Returns the object at an edge of a checkpoint.

        It goes by the layout of the model where one is saved.
        """
        from tf_lamb.tensorflow import tracking

        lookup = super()._lookup_dependency
        return tracking.lookup(self, name, lambda: lookup(name, cached_dependencies))

    def set_weights(self, weights):
        """Sets the weights as Keras does, and before the build, too, which then takes them.

        Args:
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
        super().set_weights([ops.copy(ops.convert_to_tensor(w)) for w in weights])
        named.note_load(self)

    def _set_weights_of_files(self):
        """Sets, at the end of a build, what files have held for the new variables."""
        if weights := self._early_weights:
            with host.outside_of_any_graph():
                self.set_weights(weights)
            self._early_weights = ()
        if keras.backend.backend() == "tensorflow":
            from tf_lamb.tensorflow import tracking

            with host.outside_of_any_graph():
                tracking.restore_deferred(self)

    def stateless_apply(self, optimizer_variables, grads, trainable_variables):
        """Steps as in Keras, but refuses a second model, of which it sees values alone.

        Args:
            optimizer_variables: The values of the optimizer's variables.
            grads: The gradients.
            trainable_variables: The values of the weights.

        Returns:
            The new values of the weights, and of the optimizer's variables.

        Raises:
            ValueError: If `fit` trains another model than the optimizer was built for.
        """
        host.check_model(self)
        if not (self.built or trainable_variables):  # all is frozen, so there is nothing to build
            return trainable_variables, optimizer_variables
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)


def _array(entry):
    """Returns the array of an entry, which may be one of HDF5."""
    return entry[()]
