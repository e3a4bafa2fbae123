"""The optimizers for Keras 3: the framework-independent half of each, then Keras's class."""

import keras

from tf_lamb.api import noise, optimizers
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
