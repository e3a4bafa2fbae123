"""Defines the batch normalization with two sets of statistics for tf_keras."""

import tensorflow as tf
import tf_keras

from tf_lamb.tf_keras.layers import Normalization, with_static_training
from tf_lamb_extras.adversarial import normalization


@tf_keras.saving.register_keras_serializable(package="tf_lamb")
class SplitBatchNormalization(normalization.SplitBatchNormalization, Normalization):
    call = with_static_training(normalization.SplitBatchNormalization)

    def _add_weight_like(self, main, name):
        """Adds a weight with the value and the settings of another weight, `main`."""
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
        """Adds the auxiliary weights to a layer that is built already."""
        # Users' patterns are matched against variable names. In this scope the names start with
        # those of the enclosing layers, as the names of the layer's other weights do.
        with tf.name_scope(self.moving_mean.name.rpartition("/")[0] + "/"):
            self._add_auxiliary()
