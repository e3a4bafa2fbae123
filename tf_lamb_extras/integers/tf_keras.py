"""Defines the activation `QuantizedReLU`, which has n-bit output, for tf_keras."""

import tf_keras

from tf_lamb.tensorflow import namespace
from tf_lamb_extras.integers import activation


@tf_keras.saving.register_keras_serializable(package="tf_lamb")
class QuantizedReLU(activation.QuantizedReLU, tf_keras.layers.Layer):
    __doc__ = activation.QuantizedReLU.__doc__  # `help` does not read that of a base class
    _xp = namespace
