"""The layers for Keras 3: the framework-independent half of each, then Keras's own class."""

import keras
from keras import ops

from tf_lamb.api import batch_norm


class Normalization(keras.layers.BatchNormalization):
    _xp = ops
    _named = staticmethod(keras.name_scope)

    def _trains(self, training):
        return bool(training) and self.trainable

    def _wide(self, inputs):
        return ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))

    def _assign(self, variable, value):
        variable.assign(value)


@keras.saving.register_keras_serializable(package="tf_lamb")
class GhostBatchNormalization(batch_norm.GhostBatchNormalization, Normalization): ...
