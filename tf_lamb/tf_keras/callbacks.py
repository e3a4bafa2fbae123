"""The callbacks of this door: the face of each, before tf_keras."""

import tf_keras

from tf_lamb.core import faces


class NoiseScale(faces.NoiseScale, tf_keras.callbacks.Callback):
    __doc__ = faces.NoiseScale.__doc__


class StopAtScaleInvariantStep(faces.StopAtScaleInvariantStep, tf_keras.callbacks.Callback):
    __doc__ = faces.StopAtScaleInvariantStep.__doc__
