"""The optimizers of this door: the face of each, before tf_keras."""

import tf_keras

from tf_lamb.core import faces
from tf_lamb.tf_keras.adascale import ScalingOptimizer
from tf_lamb.tf_keras.measured import MeasuringOptimizer
from tf_lamb.tf_keras.optimizer import LayerwiseOptimizer

_registered = tf_keras.saving.register_keras_serializable(package="tf_lamb")


@_registered
class LAMB(faces.LAMB, LayerwiseOptimizer):
    __doc__ = faces.LAMB.__doc__


@_registered
class LARS(faces.LARS, LayerwiseOptimizer):
    __doc__ = faces.LARS.__doc__


@_registered
class SGDP(faces.SGDP, LayerwiseOptimizer):
    __doc__ = faces.SGDP.__doc__


@_registered
class AdamP(faces.AdamP, LayerwiseOptimizer):
    __doc__ = faces.AdamP.__doc__


@_registered
class Measured(faces.Measured, MeasuringOptimizer):
    __doc__ = faces.Measured.__doc__


@_registered
class AdaScale(faces.AdaScale, ScalingOptimizer):
    __doc__ = faces.AdaScale.__doc__
