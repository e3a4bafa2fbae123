"""The callbacks of this door: the face of each, before Keras 3."""

import keras

from tf_lamb.core import faces


class BetweenBatches(keras.callbacks.Callback):
    """Tells how many steps lie between two calls."""

    def _batches_a_call(self):
        return self.model.steps_per_execution


class AutoWarmup(faces.AutoWarmup, BetweenBatches):
    __doc__ = faces.AutoWarmup.__doc__


class DivergenceReport(faces.DivergenceReport, BetweenBatches):
    __doc__ = faces.DivergenceReport.__doc__


class NoiseScale(faces.NoiseScale, keras.callbacks.Callback):
    __doc__ = faces.NoiseScale.__doc__


class StopAtScaleInvariantStep(faces.StopAtScaleInvariantStep, keras.callbacks.Callback):
    __doc__ = faces.StopAtScaleInvariantStep.__doc__
