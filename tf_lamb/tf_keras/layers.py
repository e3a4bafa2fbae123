"""The layers for tf_keras.

Each joins the framework-independent half with tf_keras's own class.
"""

import tensorflow as tf
import tf_keras

from tf_lamb.api import batch_norm
from tf_lamb.tensorflow import namespace


class Normalization(tf_keras.layers.BatchNormalization):
    """Batch normalization of tf_keras, with what the framework-independent half calls."""

    _xp = namespace
    _named = staticmethod(tf.name_scope)

    def _trains(self, training):
        """Returns whether a call normalizes by the statistics of its batch."""
        return training

    def _wide(self, inputs):
        """Returns the inputs in float32; float64 stays."""
        return inputs if inputs.dtype == tf.float64 else tf.cast(inputs, tf.float32)

    def _assign(self, variable, value):
        """Gives a variable its new value, as an update of the layer."""
        # As tf_keras does it: inside a replica, not where replicas are seen from outside.
        self.add_update(lambda: variable.assign(tf.cast(value, variable.dtype)))


def known(half):
    """Makes a `call` that takes a tensor as `training`, too, from one that takes a bool.

    Args:
        half: The class, whose own `call` takes a bool.
    """

    def call(self, inputs, training=None, mask=None):
        # seam: tf_keras 2.20.1. The learning phase and whether the layer is frozen.
        training = self._get_training_value(training)
        known = tf.get_static_value(training)
        if known is not None:
            return half.call(self, inputs, bool(known), mask)
        return tf.cond(
            tf.cast(training, tf.bool),
            lambda: half.call(self, inputs, True, mask),
            lambda: half.call(self, inputs, False, mask),
        )

    return call


@tf_keras.saving.register_keras_serializable(package="tf_lamb")
class GhostBatchNormalization(batch_norm.GhostBatchNormalization, Normalization):
    call = known(batch_norm.GhostBatchNormalization)
