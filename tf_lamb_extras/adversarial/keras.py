"""Defines the batch normalization with two sets of statistics for Keras 3."""

import keras
from keras import ops

from tf_lamb.keras.layers import Normalization
from tf_lamb_extras.adversarial import normalization


@keras.saving.register_keras_serializable(package="tf_lamb")
class SplitBatchNormalization(normalization.SplitBatchNormalization, Normalization):
    def _add_weight_like(self, main, name):
        """Adds a weight with the value and the settings of another weight, `main`."""
        return self.add_weight(
            shape=main.shape,
            name=name,
            # The value is copied because JAX refuses to donate one buffer twice.
            initializer=lambda shape, dtype=None: ops.copy(ops.cast(main, dtype)),
            regularizer=main.regularizer,
            constraint=main.constraint,
            trainable=main.trainable,
            autocast=False,
        )

    def _add_late(self):
        """Adds the auxiliary weights to a layer that is built already."""
        # seam: Keras 3.15.1. A built layer is locked. `Dense.enable_lora` unlocks it the same way.
        self._tracker.unlock()
        with self._open_name_scope():
            self._add_auxiliary()
        self._tracker.lock()
