"""The callbacks of this door: the face of each, before tf_keras."""

import tf_keras

from tf_lamb.core import faces


class BetweenBatches(tf_keras.callbacks.Callback):
    """Tells how many steps lie between two calls."""

    def _batches_a_call(self):
        # seam: tf_keras 2.20.1. A model does not tell it otherwise.
        return int(self.model._steps_per_execution.numpy())


class AutoWarmup(faces.AutoWarmup, BetweenBatches):
    __doc__ = faces.AutoWarmup.__doc__


class DivergenceReport(faces.DivergenceReport, BetweenBatches):
    __doc__ = faces.DivergenceReport.__doc__


class NoiseScale(faces.NoiseScale, tf_keras.callbacks.Callback):
    __doc__ = faces.NoiseScale.__doc__


class StopAtScaleInvariantStep(faces.StopAtScaleInvariantStep, tf_keras.callbacks.Callback):
    __doc__ = faces.StopAtScaleInvariantStep.__doc__
