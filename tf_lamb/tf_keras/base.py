"""The base class of `LayerwiseOptimizer`: variables in another dtype, and a callable as the rate.

`host.py` lists what this module uses of tf_keras's private API.
"""

import tensorflow as tf
import tf_keras

from tf_lamb.tensorflow import replicas
from tf_lamb.tf_keras import host


class BaseOptimizer(tf_keras.optimizers.Optimizer):
    """Adds variables in any dtype, and takes a callable as its learning rate.

    tf_keras's own class adds variables in the dtype of the model's, and takes a number or a
    schedule.
    """

    def add_variable_from_reference(
        self, model_variable, variable_name, shape=None, initial_value=None
    ):
        """Adds a variable with the shape, dtype and devices of another one, and returns it.

        Unlike tf_keras's, the new variable is float32 if the other one is in half precision.

        Args:
            model_variable: The other variable.
            variable_name: The name of the new variable.
            shape: The shape; None takes the shape of `model_variable`.
            initial_value: The initial value; None is zeros.

        Returns:
            The new variable.
        """
        dtype = host.native(model_variable).dtype
        dtype = tf.float32 if dtype in host.HALF_PRECISION else dtype
        if initial_value is None:
            initial_value = tf.zeros(model_variable.shape if shape is None else shape, dtype)
        return self._add_with_value(model_variable, variable_name, tf.cast(initial_value, dtype))

    def _add_with_value(self, variable, name, value):
        """Adds and returns a variable with the value and dtype of an array.

        It is on the devices of `variable`, another one.
        """
        if host.native(variable).dtype == value.dtype:
            return super().add_variable_from_reference(variable, name, initial_value=value)
        with replicas.colocated_with(tf.distribute.get_strategy(), variable, value.dtype):
            new_variable = tf.Variable(
                value, name=f"{name}/{variable._shared_name}", trainable=False
            )
        self._variables.append(new_variable)
        return new_variable

    @property
    def learning_rate(self):
        """The learning rate of the next step; a schedule is read at the present `iterations`."""
        if isinstance(self._learning_rate, host.Schedule):
            return self._learning_rate(self.iterations)
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        tf_keras.optimizers.Optimizer.learning_rate.fset(self, learning_rate)

    def _build_learning_rate(self, learning_rate):
        """Returns the learning rate in tf_keras's form; a callable becomes a schedule."""
        if callable(learning_rate) and not isinstance(learning_rate, host.Schedule):
            learning_rate = host.CallableSchedule(learning_rate)
        return super()._build_learning_rate(learning_rate)

    def _get_hyper(self, name, dtype=None):
        """Returns an attribute, such as the learning rate, cast to `dtype` if that is given.

        Model Garden's optimizer wrapper that averages weights calls this method.
        """
        value = getattr(self, name)
        return value if dtype is None else tf.cast(value, dtype)
