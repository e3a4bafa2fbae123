"""The callback that shows trust ratios: its face, before tf_keras."""

from tf_lamb.api.callbacks import trust_ratios
from tf_lamb.tensorflow.summaries import Writer
from tf_lamb.tf_keras import callbacks


class TrustRatios(trust_ratios.TrustRatios, callbacks.BetweenBatches):
    __doc__ = trust_ratios.TrustRatios.__doc__

    def _check_directory(self):
        pass

    def _open_writer(self, optimizer):
        return open_writer(self._directory, optimizer)


def open_writer(directory, optimizer):
    """Writes under the strategy of the optimizer."""
    return Writer(directory, optimizer._distribution_strategy)
