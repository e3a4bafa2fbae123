"""The layers for tf_keras.

Each class joins a framework-independent class from `tf_lamb.api` with tf_keras's layer.
"""

import tensorflow as tf
import tf_keras

from tf_lamb.api import batch_norm
from tf_lamb.api.docstrings import shows_docstring
from tf_lamb.tensorflow import namespace


class BatchNormalizationAdapter(tf_keras.layers.BatchNormalization):
    """Adds to tf_keras's layer the methods that `tf_lamb.api.batch_norm` calls on a layer."""

    _xp = namespace
    _op_scope = staticmethod(tf.name_scope)

    def _is_training(self, training):
        """Returns whether a call with this `training` normalizes by statistics of the batch."""
        return training

    def _to_wide_float(self, inputs):
        """Casts the inputs to float32; returns float64 inputs unchanged."""
        return inputs if inputs.dtype == tf.float64 else tf.cast(inputs, tf.float32)

    def _assign(self, variable, value):
        """Assigns a value to a variable, unless the layer is frozen or a model is being made."""
        # tf_keras's own layer also calls `add_update`, which decides whether to assign.
        self.add_update(lambda: variable.assign(tf.cast(value, variable.dtype)))


def with_static_training(layer_class):
    """Returns a method `call` whose argument `training` may be a tensor, a bool or None.

    Args:
        layer_class: The framework-independent class. The method calls its `call`, whose `training`
            must be a bool.
    """

    def call(self, inputs, training=None, mask=None):
        # seam: tf_keras 2.20.1. The result of this private method depends on `training`, on the
        # learning phase, and on whether the layer is frozen. It may be a tensor.
        training = self._get_training_value(training)
        static_value = tf.get_static_value(training)
        if static_value is not None:
            return layer_class.call(self, inputs, bool(static_value), mask)
        return tf.cond(
            tf.cast(training, tf.bool),
            lambda: layer_class.call(self, inputs, True, mask),
            lambda: layer_class.call(self, inputs, False, mask),
        )

    return call


@tf_keras.saving.register_keras_serializable(package="tf_lamb")
@shows_docstring
class GhostBatchNormalization(batch_norm.GhostBatchNormalization, BatchNormalizationAdapter):
    call = with_static_training(batch_norm.GhostBatchNormalization)
