"""AdaScale in door 1: the inner optimizer's learning rate, read at the steps of the base batch.

Seams into Keras 3 (3.3.0 to 3.15.1):
    `_learning_rate` of the inner optimizer: a number, a schedule or a callable; here a schedule
        that reads it.
    `_velocities` of Adam and AdamW: their second moments.
"""

import keras
from keras import ops

from tf_lamb.keras.measured import MeasuringOptimizer
from tf_lamb.keras.optimizer import LayerwiseOptimizer

_Schedule = keras.optimizers.schedules.LearningRateSchedule
_ADAPTIVE = (keras.optimizers.Adam,)  # AdamW is one


class _Scaled(_Schedule):
    """The schedule of the base batch at its own steps, times the gain."""

    def __init__(self, outer, base):
        super().__init__()
        self.outer, self.base = outer, base

    def __call__(self, step):
        if not self.outer.built:
            return self.at(0)
        state = self.outer._state
        return self.at(state["step"]) * ops.power(state["gain"], self.outer.power)

    def at(self, step):
        """The learning rate of the base batch."""
        if isinstance(self.base, _Schedule):
            return self.base(step)
        return self.base() if callable(self.base) else ops.convert_to_tensor(self.base)


class ScalingOptimizer(MeasuringOptimizer):
    """Owns the gain, and what the inner optimizer reads instead of its learning rate."""

    def _wrap(self, inner, name):
        known = (keras.optimizers.SGD, *_ADAPTIVE, LayerwiseOptimizer)
        if isinstance(inner, keras.optimizers.Optimizer) and not isinstance(
            getattr(inner, "inner_optimizer", inner), known
        ):
            raise ValueError(
                f"AdaScale stands around SGD, Adam and AdamW and the optimizers of tf_lamb, not "
                f"{type(inner).__name__}: how its gain would enter is not known."
            )
        super()._wrap(inner, name)
        inner._learning_rate = _Scaled(self, inner._learning_rate)

    @property
    def learning_rate(self):
        """The base batch's, at the next of its steps; without the gain."""
        return self._scaled.at(self._state["step"] if self.built else 0)

    @learning_rate.setter
    def learning_rate(self, value):
        if callable(value):
            self._scaled.base = value
        elif callable(self._scaled.base):
            raise TypeError(
                "The learning rate of this AdaScale is a schedule; a number cannot be put in its "
                "place. Give the inner optimizer a number at first."
            )
        else:
            self._scaled.base.assign(value)

    @property
    def _scaled(self):
        return self.inner_optimizer._learning_rate

    @property
    def scaled_learning_rate(self):
        """The learning rate that the inner optimizer reads."""
        return self.inner_optimizer.learning_rate

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
        scaled = self._scaled
        self.inner_optimizer._learning_rate = scaled.base
        try:
            return super().get_config()
        finally:
            self.inner_optimizer._learning_rate = scaled
