"""AdaScale in door 1: what it can stand around.

Seams into Keras 3 (3.12.0 to 3.15.1):
    `_learning_rate` of the inner optimizer: a number, a schedule or a callable; here a schedule
        that reads it.
    `_velocities` of Adam and AdamW: their second moments.
"""

import keras

from tf_lamb.api.noise.adascale import Rate
from tf_lamb.keras.measured import MeasuringOptimizer
from tf_lamb.keras.optimizer import LayerwiseOptimizer

_ADAPTIVE = (keras.optimizers.Adam,)  # AdamW is one


class _Rate(Rate, keras.optimizers.schedules.LearningRateSchedule):
    __doc__ = Rate.__doc__


class ScalingOptimizer(MeasuringOptimizer):
    """Owns what the inner optimizer reads instead of its learning rate."""

    _stands_around = (keras.optimizers.SGD, *_ADAPTIVE, LayerwiseOptimizer)
    _adaptive = _ADAPTIVE
    _schedules = keras.optimizers.schedules.LearningRateSchedule

    def _wrap(self, inner, name):
        super()._wrap(inner, name)
        inner._learning_rate = _Rate(self, inner._learning_rate)
