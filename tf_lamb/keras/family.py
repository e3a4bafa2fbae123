"""The optimizers for Keras 3: the framework-independent half of each, then Keras's class."""

import keras

from tf_lamb.api import noise, optimizers
from tf_lamb.api.optimizers import user_rule
from tf_lamb.keras.measured import MeasuringOptimizer
from tf_lamb.keras.optimizer import LayerwiseOptimizer

_registered = keras.saving.register_keras_serializable(package="tf_lamb")


@_registered
class LAMB(optimizers.LAMB, LayerwiseOptimizer): ...


@_registered
class LANS(optimizers.LANS, LayerwiseOptimizer): ...


@_registered
class LARS(optimizers.LARS, LayerwiseOptimizer): ...


@_registered
class Muon(optimizers.Muon, LayerwiseOptimizer): ...


@_registered
class SGDP(optimizers.SGDP, LayerwiseOptimizer): ...


@_registered
class SOAP(optimizers.SOAP, LayerwiseOptimizer): ...


@_registered
class AdamP(optimizers.AdamP, LayerwiseOptimizer): ...


# Saved files call it "Measured".
@keras.saving.register_keras_serializable(package="tf_lamb", name="Measured")
class MeasureNoise(noise.MeasureNoise, MeasuringOptimizer): ...


@_registered
class AdaScale(noise.AdaScale, MeasuringOptimizer): ...


def _register_user_class(cls):
    """Registers a class of a user's rule; a cell of a notebook may run again."""
    keras.saving.get_custom_objects().pop(f"user>{cls.__name__}", None)
    return keras.saving.register_keras_serializable(package="user")(cls)


optimizer_of = user_rule.maker(LayerwiseOptimizer, _register_user_class)
