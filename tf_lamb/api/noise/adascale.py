"""Defines AdaScale, a wrapper that scales an optimizer's learning rate by a measured gain.

The base batch is the small batch for which the learning rate was tuned; the training now uses a
batch that is S times as large. The gain says how many steps of the base batch one step is worth. It
is computed from the noise of the gradients.
"""

from collections.abc import Callable
from typing import Any

from tf_lamb.api.keras_schedules import to_float_scalar
from tf_lamb.api.noise.gain import GainMeter, second_moments_of
from tf_lamb.api.noise.measured import MeasureNoise
from tf_lamb.api.optimizers import arguments
from tf_lamb.api.optimizers.configured import with_base_rate
from tf_lamb.core import checks, rules
from tf_lamb.core.messages import join_words


class Rate:
    """Computes the inner optimizer's learning rate: that of the base batch times gain ** power.

    The inner optimizer counts steps of large batches. A schedule for the base batch is therefore
    not read at that count but at the number of base batch steps that they are worth. The subclasses
    in `tf_lamb.keras` and `tf_lamb.tf_keras` are also a `LearningRateSchedule` of their Keras.

    Attributes:
        outer: The `AdaScale` around the inner optimizer. It holds the number of base batch steps
            and the gain.
        base: The learning rate of the base batch: a schedule, a function or a variable.
    """

    def __init__(self, outer, base):
        super().__init__()
        self.outer, self.base = outer, base

    def __call__(self, step):
        xp, state = self.outer._xp, self.outer._meter.state
        if not state:
            return to_float_scalar(xp, self.base_rate_at(0))
        rate = to_float_scalar(xp, self.base_rate_at(xp.convert_to_tensor(state["step"])))
        gain = xp.convert_to_tensor(state["gain"])
        return rate * xp.cast(gain**self.outer.power, rate.dtype)

    def base_rate_at(self, step):
        """Returns the learning rate of the base batch at `step`, a number of base batch steps."""
        if isinstance(self.base, self.outer._base_schedule):
            return self.base(step)
        return self.base() if callable(self.base) else self.base


class AdaScale(MeasureNoise):
    """Adapts the learning rate and schedule of a small batch to a large one (AdaScale).

    The learning rate was tuned at the base batch, and a batch now has S times as many examples. A
    step is then worth between 1 and S steps of the base batch: 1 if all parts of the batch have the
    same gradient, S if the gradients are noise. AdaScale measures which:

        r   = (sigma^2 + mu^2) / (sigma^2/S + mu^2)        the gain, 1 in the first step
        lr  = r schedule(floor(tau))                       the inner optimizer's own schedule
        tau <- tau + r                                     steps of the base batch, from 0

    sigma^2 is the variance of the gradient of a base batch and mu^2 the squared norm of the true
    gradient. Both are estimated from the gradients of the parts of a step, its replicas or
    micro-batches, and averaged over steps: first by a plain mean, then by an exponential average
    with the decay factor theta = 1 - S/1000 per step. Keep momentum, weight decay and the
    schedule as they were tuned at the base batch; warmup is not needed. A schedule of weight decay
    is read at the steps of the large batch, not at tau. Training is over when tau has reached the
    number of steps that the base batch took: add `StopAtBaseSteps(steps)` to the callbacks of
    `fit`, or give Model Garden's experiment `base_steps`.

    For Adam, AdamW, LAMB and AdamP, sigma^2 and mu^2 are those of g/(sqrt(v_hat) + epsilon) instead
    of the gradient g, where v_hat is the bias-corrected second moment, and the learning rate is
    multiplied by the square root of r. In the first 5 steps, when v_hat is not reliable, nothing is
    measured. Later, elements whose v_hat is still 0 are left out.

    `optimizer.learning_rate` remains the learning rate of the base batch, so that callbacks can
    read and set it as usual. The state behind `optimizer.gain`, `optimizer.base_steps` and
    `optimizer.scaled_learning_rate` is saved with checkpoints. In Keras's own SGD the gain enters
    the velocity, as the learning rate does.

    Args:
        inner: SGD, Adam or AdamW of the same Keras, or an optimizer of this package except LANS,
            Muon and SOAP, to which the gain does not apply.
        scale: S, the batch over the base batch, at least 1.
        preconditioned: Whether to measure g/(sqrt(v_hat) + epsilon) instead of g, as above.
            Defaults to None: yes for optimizers that have second moments.
        smoothing: theta of the averages for `noise_scale`, as in `MeasureNoise`. The averages for
            the gain have the theta above. Defaults to 0.99.
        name: The name of the optimizer. Defaults to "adascale".

    Raises:
        ValueError, TypeError: at construction, for an optimizer that cannot be wrapped or an
            argument out of its range; at the build, if a step has only one part.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    >>> optimizer = tf_lamb.AdaScale(
    ...     tf_lamb.LARS(0.1, gradient_accumulation_steps=8), scale=8)
    >>> model.compile(optimizer=optimizer, loss="mse")

    References:
        - Johnson et al., AdaScale SGD: A User-Friendly Algorithm for Distributed Training,
          https://arxiv.org/abs/2007.05105; the preconditioned form is adaptdl's AdamScale.
    """

    saved_kind = "adascale"
    _meter: GainMeter
    # The subclasses in `tf_lamb.keras` and `tf_lamb.tf_keras` define these.
    _xp: Any  # the array functions of the framework, with NumPy's names
    _classes_taking_gain: tuple  # the classes of optimizers that AdaScale can wrap
    _set_inner_rate: (
        Callable  # makes the inner optimizer read a `Rate` instead of its learning rate
    )
    _classes_with_second_moments: tuple  # those of Keras with second moments

    @arguments.answer_unknown_arguments
    def __init__(
        self, inner: Any, scale: float, *, preconditioned: bool | None = None,
        smoothing: float = 0.99, name: str = "adascale",
    ):  # fmt: skip
        super().__init__(inner, smoothing=smoothing, name=name)
        scale = checks.number("scale", scale)
        second_moments = second_moments_of(
            inner, isinstance(inner, self._classes_with_second_moments)
        )
        if preconditioned is None:
            preconditioned = second_moments is not None
        if not checks.flag("preconditioned", preconditioned):
            second_moments = None
        elif second_moments is None:
            raise ValueError(
                f"preconditioned=True needs second moments, and {self.inner_optimizer.name} keeps "
                "none. Leave the argument out."
            )
        self._meter = GainMeter(self.smoothing, scale, second_moments)
        self._set_inner_rate(inner)

    def _check_inner(self, inner):
        """Raises ValueError or TypeError for an optimizer that AdaScale cannot wrap.

        AdaScale wraps what `MeasureNoise` can wrap, except optimizers to which the gain cannot
        apply, such as Muon.
        """
        super()._check_inner(inner)
        rule = getattr(inner, "rule", None)
        if not isinstance(inner, self._classes_taking_gain) or (rule and not rule.takes_gain):
            refused = [name for name, our_rule in rules.OURS.items() if not our_rule.takes_gain]
            raise ValueError(
                "AdaScale wraps SGD, Adam, AdamW and the optimizers of tf_lamb but "
                f"{join_words(refused)}, not {type(inner).__name__}: how its gain would enter is "
                "not known."
            )

    # seam: the private `_learning_rate` of optimizers of Keras 3.15.1 and tf_keras 2.20.1
    @property
    def _rate(self) -> Rate:
        """The learning rate of the inner optimizer, as a `Rate`: the user's rate times the gain."""
        return self.inner_optimizer._learning_rate

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the base batch at its next step, without the gain."""
        state = self._meter.state
        return self._rate.base_rate_at(self._xp.convert_to_tensor(state["step"]) if state else 0)

    @learning_rate.setter
    def learning_rate(self, value):
        if callable(value):
            self._rate.base = value
        elif callable(self._rate.base):
            raise TypeError(
                "The learning rate of this AdaScale is a schedule; a number cannot be put in its "
                "place. Give the inner optimizer a number at first."
            )
        else:
            self._rate.base.assign(value)

    @property
    def scaled_learning_rate(self) -> Any:
        """The learning rate that the inner optimizer reads, with the gain."""
        return self._rate(self.inner_optimizer.iterations)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments; `inner` has the rate of the base batch."""
        with with_base_rate(self.inner_optimizer):
            config = super().get_config()
        is_preconditioned = self._meter.second_moments is not None
        return {**config, "scale": self.scale, "preconditioned": is_preconditioned}

    @property
    def scale(self) -> float:
        """S, the ratio of the batch to the base batch.

        A new value takes effect when the training step is traced again, for which you call
        `model.make_train_function(force=True)`. The measured averages stay valid, because they
        describe the gradient of a base batch, which is the same.
        """
        return self._meter.scale

    @scale.setter
    def scale(self, value):
        self._meter.scale = checks.number("scale", value)

    @property
    def power(self) -> float:
        """The exponent of the gain in the rate: 0.5 for preconditioned gradients, else 1."""
        return self._meter.power

    @property
    def gain(self) -> float:
        """r, the gain of the last step, in [1, scale]; 1 before the optimizer is built."""
        return self._meter.gain()

    @property
    def base_steps(self) -> float:
        """tau, the number of base batch steps that training so far is worth; at first 0."""
        return self._meter.base_steps()
