"""Defines the activation `QuantizedReLU`, which has n-bit output, for Keras 3."""

import keras
from keras import ops

from tf_lamb_extras.integers import activation


@keras.saving.register_keras_serializable(package="tf_lamb")
class QuantizedReLU(activation.QuantizedReLU, keras.layers.Layer):
    __doc__ = activation.QuantizedReLU.__doc__  # `help` does not read that of a base class
    _xp = ops
