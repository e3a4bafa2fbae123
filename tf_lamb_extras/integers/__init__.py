"""Computes batch normalization and the activation after it in integer arithmetic.

`fixed_point` converts a trained model of Keras 3 or tf_keras. `QuantizedReLU` is the activation
layer for Keras 3 or for tf_keras, whichever `tf.keras` is. To choose one of the two, import it from
`tf_lamb_extras.integers.keras` or from `tf_lamb_extras.integers.tf_keras`.
"""

from typing import TYPE_CHECKING

from tf_lamb_extras import OF_BOTH, lazily
from tf_lamb_extras.integers.model import fixed_point

__all__ = ["QuantizedReLU", "fixed_point"]

if TYPE_CHECKING:
    from tf_lamb_extras.integers.keras import QuantizedReLU
else:
    __getattr__ = lazily(__name__, QuantizedReLU=OF_BOTH)
