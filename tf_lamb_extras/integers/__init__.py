"""Computes batch normalization and its activation in integer arithmetic, in both Kerases.

`QuantizedReLU` is the layer for the Keras that `tf.keras` is. Those for Keras 3 and for tf_keras
are also in `tf_lamb_extras.integers.keras` and `tf_lamb_extras.integers.tf_keras`.
"""

from typing import TYPE_CHECKING

from tf_lamb_extras import OF_BOTH, lazily
from tf_lamb_extras.integers.model import fixed_point

__all__ = ["QuantizedReLU", "fixed_point"]

if TYPE_CHECKING:
    from tf_lamb_extras.integers.keras import QuantizedReLU
else:
    __getattr__ = lazily(__name__, QuantizedReLU=OF_BOTH)
