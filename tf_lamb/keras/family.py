"""The optimizers for Keras 3.

Each class joins the framework-independent class in `tf_lamb.api` with the base class for Keras 3.
"""

import keras

from tf_lamb.api import noise
from tf_lamb.api.docstrings import shows_docstring
from tf_lamb.api.optimizers import adamp, lamb, lans, lars, muon, sgdp, soap, user_rule
from tf_lamb.keras.measured import MeasuringOptimizer
from tf_lamb.keras.optimizer import LayerwiseOptimizer

__all__ = [
    "LAMB", "LANS", "LARS", "SGDP", "SOAP", "AdaScale", "AdamP", "MeasureNoise", "Muon",
    "optimizer_of",
]  # fmt: skip

_register = keras.saving.register_keras_serializable(package="tf_lamb")


def _registered(cls):
    """Registers a class for saving, gives it its docstring, and returns it."""
    return _register(shows_docstring(cls))


@_registered
class LAMB(lamb.LAMB, LayerwiseOptimizer): ...


@_registered
class LANS(lans.LANS, LayerwiseOptimizer): ...


@_registered
class LARS(lars.LARS, LayerwiseOptimizer): ...


@_registered
class Muon(muon.Muon, LayerwiseOptimizer): ...


@_registered
class SGDP(sgdp.SGDP, LayerwiseOptimizer): ...


@_registered
class SOAP(soap.SOAP, LayerwiseOptimizer): ...


@_registered
class AdamP(adamp.AdamP, LayerwiseOptimizer): ...


# Saved files refer to this class by the name "Measured".
@keras.saving.register_keras_serializable(package="tf_lamb", name="Measured")
@shows_docstring
class MeasureNoise(noise.MeasureNoise, MeasuringOptimizer): ...


@_registered
class AdaScale(noise.AdaScale, MeasuringOptimizer): ...


def _register_user_class(cls):
    """Registers an optimizer class that `optimizer_of` has made, and returns it.

    A class of the same name is replaced, because a notebook's cell may run again.
    """
    keras.saving.get_custom_objects().pop(f"user>{cls.__name__}", None)
    return keras.saving.register_keras_serializable(package="user")(cls)


optimizer_of = user_rule.make_optimizer_of(LayerwiseOptimizer, _register_user_class)
