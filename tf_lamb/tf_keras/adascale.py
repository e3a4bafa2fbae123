"""AdaScale in door 2: what it can stand around.

Seams into tf_keras (2.20.1):
    `_learning_rate` and `_build_learning_rate` of the inner optimizer: a number or a schedule; here
        a schedule that reads it.
    `_velocities` of Adam and AdamW: their second moments.
"""

import tf_keras

from tf_lamb.api.noise.adascale import Rate
from tf_lamb.tf_keras.measured import MeasuringOptimizer
from tf_lamb.tf_keras.optimizer import LayerwiseOptimizer

_ADAPTIVE = (tf_keras.optimizers.Adam, tf_keras.optimizers.AdamW)


class _Rate(Rate, tf_keras.optimizers.schedules.LearningRateSchedule):
    __doc__ = Rate.__doc__


class ScalingOptimizer(MeasuringOptimizer):
    """Owns what the inner optimizer reads instead of its learning rate."""

    _stands_around = (tf_keras.optimizers.SGD, *_ADAPTIVE, LayerwiseOptimizer)
    _adaptive = _ADAPTIVE
    _schedules = tf_keras.optimizers.schedules.LearningRateSchedule

    def _wrap(self, inner, name):
        super()._wrap(inner, name)
        self._base_learning_rate = inner._learning_rate  # its name in checkpoints
        inner._learning_rate = inner._build_learning_rate(_Rate(self, inner._learning_rate))
