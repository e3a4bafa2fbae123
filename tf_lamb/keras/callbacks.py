"""The callbacks of this door: the face of each, before Keras 3."""

import keras

from tf_lamb.core import faces


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


class AutoWarmup(faces.AutoWarmup, BetweenBatches):
    __doc__ = faces.AutoWarmup.__doc__


class DivergenceReport(faces.DivergenceReport, BetweenBatches):
    __doc__ = faces.DivergenceReport.__doc__


class NoiseScale(faces.NoiseScale, BetweenBatches):
    __doc__ = faces.NoiseScale.__doc__


class StopAtScaleInvariantStep(faces.StopAtScaleInvariantStep, BetweenBatches):
    __doc__ = faces.StopAtScaleInvariantStep.__doc__
