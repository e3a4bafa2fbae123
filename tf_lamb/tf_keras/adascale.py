"""AdaScale in door 2: the inner optimizer's learning rate, read at the steps of the base batch.

Seams into tf_keras (2.20.1):
    `_learning_rate` and `_build_learning_rate` of the inner optimizer: a number or a schedule; here
        a schedule that reads it.
    `_velocities` of Adam and AdamW: their second moments.
"""

import tensorflow as tf
import tf_keras

from tf_lamb.core.rules.moments import debias
from tf_lamb.tensorflow import namespace
from tf_lamb.tf_keras.measured import MeasuringOptimizer
from tf_lamb.tf_keras.optimizer import LayerwiseOptimizer

_Schedule = tf_keras.optimizers.schedules.LearningRateSchedule
_ADAPTIVE = (tf_keras.optimizers.Adam, tf_keras.optimizers.AdamW)
_UNMEASURED_STEPS = 5  # adaptdl's: before, the second moments say little


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
    def gain(self):
        """r of the last step, in [1, scale]."""
        return float(self._read("gain")) if getattr(self, "_built", False) else 1.0

    @property
    def scale_invariant_steps(self):
        """tau: the steps of the base batch that training is worth so far."""
        if not getattr(self, "_built", False):
            return 0.0
        return float(self._read("step") + self._read("fraction"))

    @property
    def scaled_learning_rate(self):
        """The learning rate that the inner optimizer reads."""
        return self._scaled(self.iterations)

    def _stepped(self, counts):
        names = ("step", "fraction", "gain")
        state = {name: tf.convert_to_tensor(self._state[name]) for name in names}
        spent = self._spent(namespace, state, counts)
        self._assign([self._state[name] for name in spent], spent.values())

    def _second_moment_of(self):
        """A function from a position to its second moment; None where there is none."""
        inner = self.inner_optimizer
        if isinstance(inner, _ADAPTIVE):
            return lambda i: inner._velocities[i]
        if isinstance(inner, LayerwiseOptimizer) and "m" in inner.slot_names:
            place = inner.slot_names.index("v")
            return lambda i: inner._slots[i][place]
        return None

    def _preconditioner(self, positions):
        if not self._preconditioned:
            return super()._preconditioner(positions)
        inner, moment = self.inner_optimizer, self._second_moment_of()
        t = tf.maximum(tf.cast(inner.iterations, tf.float32), 1.0)
        correction = debias(namespace, inner.beta_2, t)
        denominators = {
            i: tf.sqrt(tf.cast(moment(i), tf.float32) / correction) + inner.epsilon
            for i in positions
        }
        return lambda gradient, i: tf.cast(gradient, tf.float32) / denominators[i]

    def _is_measured(self):
        if not self._preconditioned:
            return True
        return self.inner_optimizer.iterations >= _UNMEASURED_STEPS

    def get_config(self):
        """See base class; the inner optimizer has the base batch's learning rate."""
        scaled, self.inner_optimizer._learning_rate = self._scaled, self._base_learning_rate
        try:
            return super().get_config()
        finally:
            self.inner_optimizer._learning_rate = scaled
