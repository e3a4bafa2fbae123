"""The callbacks of this door: the face of each, before tf_keras."""

import tf_keras

from tf_lamb.api import callbacks
from tf_lamb.tensorflow import summaries


class BetweenBatches(tf_keras.callbacks.Callback):
    """Tells how many steps lie between two calls, and waits for the loss of none."""

    def __init__(self):
        super().__init__()
        self._supports_tf_logs = True  # else tf_keras reads each loss; seam: tf_keras 2.20.1

    def _batches_a_call(self):
        # seam: tf_keras 2.20.1. A model does not tell it otherwise.
        return int(self.model._steps_per_execution.numpy())


class AutoWarmup(callbacks.AutoWarmup, BetweenBatches):
    __doc__ = callbacks.AutoWarmup.__doc__


class DivergenceReport(callbacks.DivergenceReport, BetweenBatches):
    __doc__ = callbacks.DivergenceReport.__doc__


class NoiseScale(callbacks.NoiseScale, BetweenBatches):
    __doc__ = callbacks.NoiseScale.__doc__


class StopAtScaleInvariantStep(callbacks.StopAtScaleInvariantStep, BetweenBatches):
    __doc__ = callbacks.StopAtScaleInvariantStep.__doc__


class TrustRatios(callbacks.TrustRatios, BetweenBatches):
    __doc__ = callbacks.TrustRatios.__doc__
    _writer = summaries.Writer
