"""Defines a batch normalization for tf_keras with statistics for clean and adversarial images."""

import tensorflow as tf
import tf_keras

from tf_lamb.tf_keras.layers import BatchNormalizationAdapter, with_static_training
from tf_lamb_extras.adversarial import normalization


@tf_keras.saving.register_keras_serializable(package="tf_lamb")
class SplitBatchNormalization(normalization.SplitBatchNormalization, BatchNormalizationAdapter):
    call = with_static_training(normalization.SplitBatchNormalization)

    def _add_weight_like(self, main, name):
        """Adds a weight with the value and the settings of an existing one.

        Args:
            main: The existing weight.
            name: The name of the new weight.
        """
        return self.add_weight(
            name=name,
            shape=main.shape,
            dtype=main.dtype,
            initializer=lambda shape, dtype=None, **_: tf.cast(main, dtype),
            regularizer=getattr(self, f"{name.removeprefix('auxiliary_')}_regularizer", None),
            constraint=getattr(self, f"{name.removeprefix('auxiliary_')}_constraint", None),
            trainable=name.endswith(("gamma", "beta")),
            synchronization=main.synchronization,
            aggregation=main.aggregation,
            experimental_autocast=False,
        )

    def _add_late(self):
        """Adds the weights for adversarial images to a layer that is built already."""
        # A user excludes variables from weight decay, for example, by patterns of their names. In
        # this scope the names of the new weights begin with those of the enclosing layers, as the
        # names of the layer's other weights do.
        with tf.name_scope(self.moving_mean.name.rpartition("/")[0] + "/"):
            self._add_auxiliary()
