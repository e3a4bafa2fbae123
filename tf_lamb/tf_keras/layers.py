"""The layers for tf_keras.

Each class joins the framework-independent class in `tf_lamb.api` with tf_keras's class.
"""

import tensorflow as tf
import tf_keras

from tf_lamb.api import batch_norm
from tf_lamb.tensorflow import namespace


class Normalization(tf_keras.layers.BatchNormalization):
    """Adds to tf_keras's layer what the base class in `tf_lamb.api.batch_norm` calls."""

    _xp = namespace
    _op_scope = staticmethod(tf.name_scope)

    def _is_training(self, training):
        """Returns whether a call of the layer normalizes by the statistics of its batch."""
        return training

    def _to_wide_float(self, inputs):
        """Returns the inputs in float32; float64 stays."""
        return inputs if inputs.dtype == tf.float64 else tf.cast(inputs, tf.float32)

    def _assign(self, variable, value):
        """Gives a variable its new value, as an update of the layer."""
        # As in tf_keras's own layer: `add_update` assigns nothing while a functional model is made,
        # or if the layer is frozen.
        self.add_update(lambda: variable.assign(tf.cast(value, variable.dtype)))


def with_static_training(layer_class):
    """Makes a `call` that takes a tensor as `training`, too, from one that takes a bool.

    Args:
        layer_class: The framework-independent class, whose `call` takes a bool.
    """

    def call(self, inputs, training=None, mask=None):
        # seam: tf_keras 2.20.1. The result depends on the learning phase, and on whether the layer
        # is frozen.
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
class GhostBatchNormalization(batch_norm.GhostBatchNormalization, Normalization):
    call = with_static_training(batch_norm.GhostBatchNormalization)
