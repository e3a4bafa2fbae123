"""The layers for Keras 3: the framework-independent half of each, then Keras's own class."""

import keras
from keras import ops

from tf_lamb.api import batch_norm


class _BatchNormalization(keras.layers.BatchNormalization):
    _xp = ops
    _named = staticmethod(keras.name_scope)

    def _trains(self, training):
        return bool(training) and self.trainable

    def _wide(self, inputs):
        return ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))

    def _assign(self, variable, value):
        variable.assign(value)

    def _add_like(self, main, name):
        return self.add_weight(
            shape=main.shape,
            name=name,
            # A copy: JAX takes no buffer twice.
            initializer=lambda shape, dtype=None: ops.copy(ops.cast(main, dtype)),
            regularizer=main.regularizer,
            constraint=main.constraint,
            trainable=main.trainable,
            autocast=False,
        )

    def _add_late(self):
        # seam: Keras 3.15.1. A built layer is locked; `Dense.enable_lora` opens it the same way.
        self._tracker.unlock()
        with self._open_name_scope():
            self._add_auxiliary()
        self._tracker.lock()


@keras.saving.register_keras_serializable(package="tf_lamb")
class GhostBatchNormalization(batch_norm.GhostBatchNormalization, _BatchNormalization): ...


@keras.saving.register_keras_serializable(package="tf_lamb")
class SplitBatchNormalization(batch_norm.SplitBatchNormalization, _BatchNormalization): ...
