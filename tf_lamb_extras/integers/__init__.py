"""Batch normalization and its activation in integer arithmetic, in both Kerases.

`QuantizedReLU` is a layer of the Keras that `tf.keras` names. `tf_lamb_extras.integers.keras` and
`tf_lamb_extras.integers.tf_keras` say it outright.
"""

from typing import TYPE_CHECKING

from tf_lamb.api.frontends import keras_of_tensorflow
from tf_lamb_extras.integers.model import fixed_point

if TYPE_CHECKING:
    from tf_lamb_extras.integers.keras import QuantizedReLU

__all__ = ["QuantizedReLU", "fixed_point"]


if not TYPE_CHECKING:

    def __getattr__(name: str):
        if name != "QuantizedReLU":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if keras_of_tensorflow() == "keras":
            from tf_lamb_extras.integers import keras as frontend
        else:
            from tf_lamb_extras.integers import tf_keras as frontend
        return frontend.QuantizedReLU
