"""The base class of `LayerwiseOptimizer` and `MeasuringOptimizer`, which saves and loads them.

Keras's files and TensorFlow's checkpoints hold each variable of an optimizer under a name. A list
of weights, and an HDF5 file with such a list, hold it at a position.

This module relies on private API and undocumented behaviour of Keras 3 (3.12.0 to 3.15.1):
    `save_own_variables`, `load_own_variables`: an error that they raise reaches the user with its
        message.
    `build` with no variables, then `set_weights`: Keras's HDF5 loader makes these two calls. They
        leave Keras's own optimizers built without variables, so that the slots are lost.
    `_trackable_children`, `_lookup_dependency` of TensorFlow (2.20), which Keras's optimizers have
        on that backend.
"""

import keras
from keras import ops

from tf_lamb.api.optimizers import named
from tf_lamb.keras import arrays, host, processes


class BaseOptimizer(keras.optimizers.Optimizer):
    """Saves and loads the variables of an optimizer by name.

    It also raises an error if `fit` on JAX trains another model than the optimizer was built for.
    """

    # Weights that `set_weights` got before the build. The build assigns them at its end.
    _deferred_weights: tuple = ()

    def save_own_variables(self, store):
        """Saves the optimizer's variables by name; recorded trust ratios are not saved.

        A variable that is split over several processes is gathered first.

        Args:
            store: The mapping to write to.
        """
        with processes.gathered_variables(self.variables):
            named.save(self._named_state(), store, arrays.to_numpy)

    def load_own_variables(self, store):
        """Loads the optimizer's variables by name.

        Args:
            store: The mapping to read from.

        Raises:
            ValueError: If the state was saved by another rule, or for other layers, slots or
                shapes.
        """
        named.load(self, store, _read_entry, lambda variable, value: variable.assign(value))

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        """Returns the objects that TensorFlow saves for the optimizer in a checkpoint, by name."""
        from tf_lamb.tensorflow import tracking

        return tracking.checkpoint_children(self, super()._trackable_children(save_type, **kwargs))

    def _lookup_dependency(self, name, cached_dependencies=None):
        """Returns the object that TensorFlow restores from the checkpoint's entry of a given name.

        If the checkpoint has the places of the saved variables in their model, a variable is
        restored from the entry of the same place (`tf_lamb/tensorflow/tracking.py`).
        """
        from tf_lamb.tensorflow import tracking

        look_up_as_keras = super()._lookup_dependency
        return tracking.look_up(self, name, lambda: look_up_as_keras(name, cached_dependencies))

    def set_weights(self, weights):
        """Sets the optimizer's variables by position, as Keras does.

        Before the build the weights are only stored, and the build sets the variables at its end.

        Args:
            weights: The arrays, or the variables of another optimizer, which are copied.

        Raises:
            ValueError: If there are not as many weights as variables.
        """
        if not self.built:
            # HDF5 has no bfloat16. It returns such a number as two bytes without a type, "V2".
            values = [weight[()] for weight in weights]
            self._deferred_weights = tuple(
                value.view("bfloat16") if value.dtype == "V2" else value for value in values
            )
            return
        named.check_weight_count(self.name, weights, self._variables, self.variables)
        super().set_weights([ops.copy(ops.convert_to_tensor(weight)) for weight in weights])
        named.record_load(self)

    def _apply_deferred_weights(self):
        """Sets the variables, at the end of the build, to values that were loaded before it."""
        if weights := self._deferred_weights:
            with host.outside_of_any_graph():
                self.set_weights(weights)
            self._deferred_weights = ()
        if keras.backend.backend() == "tensorflow":
            from tf_lamb.tensorflow import tracking

            with host.outside_of_any_graph():
                tracking.restore_deferred(self)

    def stateless_apply(self, optimizer_variables, grads, trainable_variables):
        """Takes a step as in Keras, after a check of the model that `fit` trains.

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
        if not (self.built or trainable_variables):  # the whole model is frozen: nothing to train
            return trainable_variables, optimizer_variables
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)


def _read_entry(entry):
    """Returns an entry of a saved file as an array; in HDF5 files the entry is a dataset."""
    return entry[()]
