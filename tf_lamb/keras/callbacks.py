"""The callbacks of this door: the face of each, before Keras 3."""

import keras

from tf_lamb.api import callbacks


class BetweenBatches(keras.callbacks.Callback):
    """Tells how many steps lie between two calls, and keeps what is trained."""

    def _batches_a_call(self):
        return self.model.steps_per_execution

    def _trained(self):
        return [*self.model.weights, *self.model.optimizer.variables]

    def _copies(self):
        return [keras.ops.convert_to_numpy(v).copy() for v in self._trained()]

    def _put_back(self, arrays):
        for variable, array in zip(self._trained(), arrays, strict=True):
            variable.assign(array)


class AutoWarmup(callbacks.AutoWarmup, BetweenBatches):
    __doc__ = callbacks.AutoWarmup.__doc__


class DivergenceReport(callbacks.DivergenceReport, BetweenBatches):
    __doc__ = callbacks.DivergenceReport.__doc__


class NoiseScale(callbacks.NoiseScale, BetweenBatches):
    __doc__ = callbacks.NoiseScale.__doc__


class StopAtScaleInvariantStep(callbacks.StopAtScaleInvariantStep, BetweenBatches):
    __doc__ = callbacks.StopAtScaleInvariantStep.__doc__
