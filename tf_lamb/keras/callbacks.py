"""The callbacks of this door: the face of each, before Keras 3."""

import keras

from tf_lamb.core import faces


class NoiseScale(faces.NoiseScale, keras.callbacks.Callback):
    __doc__ = faces.NoiseScale.__doc__


class StopAtScaleInvariantStep(faces.StopAtScaleInvariantStep, keras.callbacks.Callback):
    __doc__ = faces.StopAtScaleInvariantStep.__doc__
