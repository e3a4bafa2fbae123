"""The optimizers for tf_keras.

Each class joins a framework-independent class from `tf_lamb.api` with this package's base class of
optimizers for tf_keras.
"""

import tf_keras

from tf_lamb.api import noise
from tf_lamb.api.docstrings import shows_docstring
from tf_lamb.api.optimizers import adamp, lamb, lans, lars, muon, sgdp, soap, user_rule
from tf_lamb.tf_keras.measured import MeasuringOptimizer
from tf_lamb.tf_keras.optimizer import LayerwiseOptimizer

__all__ = [
    "LAMB", "LANS", "LARS", "SGDP", "SOAP", "AdaScale", "AdamP", "MeasureNoise", "Muon",
    "optimizer_of",
]  # fmt: skip

_register = tf_keras.saving.register_keras_serializable(package="tf_lamb")


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


# The name "Measured" remains, because saved files contain it.
@tf_keras.saving.register_keras_serializable(package="tf_lamb", name="Measured")
@shows_docstring
class MeasureNoise(noise.MeasureNoise, MeasuringOptimizer): ...


@_registered
class AdaScale(noise.AdaScale, MeasuringOptimizer): ...


def _register_user_class(cls):
    """Registers the class of a user's rule for saving; replaces an earlier class of that name.

    The earlier class is there if a notebook cell that makes the class runs a second time.
    """
    tf_keras.saving.get_custom_objects().pop(f"user>{cls.__name__}", None)
    return tf_keras.saving.register_keras_serializable(package="user")(cls)


optimizer_of = user_rule.make_optimizer_of(LayerwiseOptimizer, _register_user_class)
