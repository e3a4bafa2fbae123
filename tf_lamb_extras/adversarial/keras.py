"""Defines a batch normalization for Keras 3 with statistics for clean and adversarial images."""

import keras
from keras import ops

from tf_lamb.keras.layers import BatchNormalizationAdapter
from tf_lamb_extras.adversarial import normalization


@keras.saving.register_keras_serializable(package="tf_lamb")
class SplitBatchNormalization(normalization.SplitBatchNormalization, BatchNormalizationAdapter):
    def _add_weight_like(self, main, name):
        """Adds a weight with the value and the settings of an existing one.

        Args:
            main: The existing weight.
            name: The name of the new weight.
        """
        return self.add_weight(
            shape=main.shape,
            name=name,
            # Without the copy, both weights could share a buffer. A training step would donate it
            # twice, which JAX refuses.
            initializer=lambda shape, dtype=None: ops.copy(ops.cast(main, dtype)),
            regularizer=main.regularizer,
            constraint=main.constraint,
            trainable=main.trainable,
            autocast=False,
        )

    def _add_late(self):
        """Adds the weights for adversarial images to a layer that is built already."""
        # seam: private API of Keras 3.15.1. Keras locks a built layer against new weights.
        # `Dense.enable_lora` of Keras unlocks it in the same way.
        self._tracker.unlock()
        with self._open_name_scope():
            self._add_auxiliary()
        self._tracker.lock()
