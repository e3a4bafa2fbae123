"""The callback that shows trust ratios: its face, before tf_keras."""

import tf_keras

from tf_lamb.core import trust_ratios
from tf_lamb.tensorflow.summaries import Writer


class TrustRatios(trust_ratios.TrustRatios, tf_keras.callbacks.Callback):
    __doc__ = trust_ratios.TrustRatios.__doc__

    def _check_directory(self):
        pass

    def _open_writer(self, optimizer):
        return open_writer(self._directory, optimizer)

    def _batches_a_call(self):
        # seam: tf_keras 2.20.1. A model does not tell it otherwise.
        return int(self.model._steps_per_execution.numpy())


def open_writer(directory, optimizer):
    """Writes under the strategy of the optimizer."""
    return Writer(directory, optimizer._distribution_strategy)
