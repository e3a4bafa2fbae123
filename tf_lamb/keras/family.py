"""The optimizers for Keras 3: the framework-independent half of each, then Keras's class."""

import keras

from tf_lamb.api import noise, optimizers
from tf_lamb.keras.measured import MeasuringOptimizer, ScalingOptimizer
from tf_lamb.keras.optimizer import LayerwiseOptimizer

_registered = keras.saving.register_keras_serializable(package="tf_lamb")


@_registered
class LAMB(optimizers.LAMB, LayerwiseOptimizer):
    __doc__ = optimizers.LAMB.__doc__


@_registered
class LANS(optimizers.LANS, LayerwiseOptimizer):
    __doc__ = optimizers.LANS.__doc__


@_registered
class LARS(optimizers.LARS, LayerwiseOptimizer):
    __doc__ = optimizers.LARS.__doc__


@_registered
class Muon(optimizers.Muon, LayerwiseOptimizer):
    __doc__ = optimizers.Muon.__doc__


@_registered
class SGDP(optimizers.SGDP, LayerwiseOptimizer):
    __doc__ = optimizers.SGDP.__doc__


@_registered
class AdamP(optimizers.AdamP, LayerwiseOptimizer):
    __doc__ = optimizers.AdamP.__doc__


# Saved files call it "Measured".
@keras.saving.register_keras_serializable(package="tf_lamb", name="Measured")
class MeasureNoise(noise.MeasureNoise, MeasuringOptimizer):
    __doc__ = noise.MeasureNoise.__doc__


@_registered
class AdaScale(noise.AdaScale, ScalingOptimizer):
    __doc__ = noise.AdaScale.__doc__
