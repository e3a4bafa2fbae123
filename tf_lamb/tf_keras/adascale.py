"""AdaScale in door 2: the inner optimizer's learning rate, read at the steps of the base batch.

Seams into tf_keras (2.20.1):
    `_learning_rate` and `_build_learning_rate` of the inner optimizer: a number or a schedule; here
        a schedule that reads it.
    `_velocities` of Adam and AdamW: their second moments.
"""

import tensorflow as tf
import tf_keras

from tf_lamb.tf_keras.measured import MeasuringOptimizer
from tf_lamb.tf_keras.optimizer import LayerwiseOptimizer

_Schedule = tf_keras.optimizers.schedules.LearningRateSchedule
_ADAPTIVE = (tf_keras.optimizers.Adam, tf_keras.optimizers.AdamW)


class _Scaled(_Schedule):
    """The schedule of the base batch at its own steps, times the gain."""

    def __init__(self, outer, base):
        super().__init__()
        self.outer, self.base = outer, base

    def __call__(self, step):
        if not getattr(self.outer, "_built", False):
            return tf.convert_to_tensor(self.at(0))
        state = self.outer._state
        rate = tf.convert_to_tensor(self.at(tf.convert_to_tensor(state["step"])))
        return rate * tf.cast(tf.convert_to_tensor(state["gain"]) ** self.outer.power, rate.dtype)

    def at(self, step):
        """The learning rate of the base batch."""
        return self.base(step) if isinstance(self.base, _Schedule) else self.base


class ScalingOptimizer(MeasuringOptimizer):
    """Owns the gain, and what the inner optimizer reads instead of its learning rate."""

    def _wrap(self, inner, name):
        known = (tf_keras.optimizers.SGD, *_ADAPTIVE, LayerwiseOptimizer)
        if isinstance(inner, tf_keras.optimizers.Optimizer) and not isinstance(
            getattr(inner, "inner_optimizer", inner), known
        ):
            raise ValueError(
                f"AdaScale stands around SGD, Adam and AdamW and the optimizers of tf_lamb, not "
                f"{type(inner).__name__}: how its gain would enter is not known."
            )
        super()._wrap(inner, name)
        self._base_learning_rate = inner._learning_rate
        inner._learning_rate = inner._build_learning_rate(_Scaled(self, inner._learning_rate))

    @property
    def learning_rate(self):
        """The base batch's, at the next of its steps; without the gain."""
        built = getattr(self, "_built", False)
        return self._scaled.at(tf.convert_to_tensor(self._state["step"]) if built else 0)

    @learning_rate.setter
    def learning_rate(self, value):
        if isinstance(self._base_learning_rate, _Schedule):
            if not isinstance(value, _Schedule):
                raise TypeError(
                    "The learning rate of this AdaScale is a schedule; a number cannot be put in "
                    "its place. Give the inner optimizer a number at first."
                )
            self._base_learning_rate = self._scaled.base = value
        else:
            self._base_learning_rate.assign(value)

    lr = learning_rate

    @property
    def _scaled(self):
        return self.inner_optimizer._learning_rate

    @property
    def scaled_learning_rate(self):
        """The learning rate that the inner optimizer reads."""
        return self._scaled(self.iterations)

    def _second_moment_of(self):
        """A function from a position to its second moment; None where there is none."""
        inner = self.inner_optimizer
        if isinstance(inner, _ADAPTIVE):
            return lambda i: inner._velocities[i]
        if isinstance(inner, LayerwiseOptimizer) and "m" in inner.slot_names:
            place = inner.slot_names.index("v")
            return lambda i: inner._slots[i][place]
        return None

    def get_config(self):
        """See base class; the inner optimizer has the base batch's learning rate."""
        scaled, self.inner_optimizer._learning_rate = self._scaled, self._base_learning_rate
        try:
            return super().get_config()
        finally:
            self.inner_optimizer._learning_rate = scaled
