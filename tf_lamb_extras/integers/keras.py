"""Defines the activation `QuantizedReLU`, which has n-bit output, for Keras 3."""

import keras
from keras import ops

from tf_lamb_extras.integers import activation


@keras.saving.register_keras_serializable(package="tf_lamb")
class QuantizedReLU(activation.QuantizedReLU, keras.layers.Layer):
    _xp = ops
