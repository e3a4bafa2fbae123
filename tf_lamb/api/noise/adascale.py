"""Defines AdaScale, an optimizer whose learning rate follows the noise of its gradients."""

import math
from collections.abc import Callable
from typing import Any

from tf_lamb.api.noise.measured import MeasureNoise
from tf_lamb.api.optimizers import arguments
from tf_lamb.api.optimizers.configured import with_base_rate
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.api.schedules import factor
from tf_lamb.api.variables import value_of
from tf_lamb.core import checks, noise
from tf_lamb.core.rules.shared import debias


class Rate:
    """The learning rate that the inner optimizer reads: the base batch's rate times the gain.

    It reads the base batch's rate at the base batch's own steps.

    Attributes:
        outer: The AdaScale, which has the steps and the gain.
        base: The rate of the base batch: a schedule, a function or a variable.
    """

    def __init__(self, outer, base):
        super().__init__()
        self.outer, self.base = outer, base

    def __call__(self, step):
        xp, state = self.outer._xp, self.outer._state
        if state is None:
            return factor(xp, self.at(0))
        rate = factor(xp, self.at(xp.convert_to_tensor(state["step"])))
        gain = xp.convert_to_tensor(state["gain"])
        return rate * xp.cast(gain**self.outer.power, rate.dtype)

    def at(self, step):
        """Returns the learning rate of the base batch at one of its steps."""
        if isinstance(self.base, self.outer._schedules):
            return self.base(step)
        return self.base() if callable(self.base) else self.base


# The first steps, in which second moments say too little to measure with; adaptdl's number.
UNMEASURED_STEPS = 5


class AdaScale(MeasureNoise):
    """AdaScale: the learning rate and schedule of a small batch, at a large one.

    With S times the batch, a step is worth between 1 and S steps of the base batch: 1 if all parts
    of the batch have the same gradient, S if the gradients are noise. AdaScale measures which:

        r   = (sigma^2 + mu^2) / (sigma^2/S + mu^2)        the gain, 1 in the first step
        lr  = r schedule(floor(tau))                       the inner optimizer's own schedule
        tau <- tau + r                                     steps of the base batch, from 0

    sigma^2 is the variance of the gradient of a base batch and mu^2 the squared norm of the true
    gradient. Both come from the replicas or micro-batches of a step, and are averaged over steps:
    a plain mean of the first ones, then an exponential one with theta = 1 - S/1000. Keep momentum,
    weight decay and the schedule as they were tuned at the base batch; warmup is not needed. A
    schedule of weight decay is read at the steps of the large batch, not at tau. Training is over
    when tau has reached the number of steps that the base batch took: add `StopAtBaseSteps(steps)`
    to the callbacks of `fit`, or give Model Garden's experiment `base_steps`.

    For Adam, AdamW, LAMB and AdamP the squares are those of g/(sqrt(v_hat) + epsilon), and the
    learning rate is multiplied by the root of r. In their first 5 steps, when v_hat says little,
    nothing is measured. Later, elements whose v_hat is still 0 are not measured.

    `optimizer.learning_rate` remains the base batch's, for callbacks that read and set it. The
    state behind `optimizer.gain`, `optimizer.base_steps` and `optimizer.scaled_learning_rate` is
    saved with checkpoints. In Keras's own SGD the gain enters the velocity, as the learning rate
    does.

    Args:
        inner: SGD, Adam or AdamW of this Keras, or an optimizer of this package except LANS,
            Muon and SOAP, for which the length of a gradient means nothing.
        scale: S, the batch over the base batch, at least 1.
        preconditioned: Whether to measure preconditioned gradients, as above. Defaults to None:
            yes for optimizers that have second moments.
        smoothing: theta of the averages of `MeasureNoise`, whose noise scale is measured, too. The
            gain has its own theta. Defaults to 0.99.
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
    # A frontend defines these.
    _stands_around: tuple  # the classes that it can wrap
    _take_rate: Callable  # has the inner optimizer read a `Rate` instead of its own
    _adaptive: tuple  # the Keras classes among them that keep second moments

    @arguments.answered
    def __init__(
        self, inner: Any, scale: float, *, preconditioned: bool | None = None,
        smoothing: float = 0.99, name: str = "adascale",
    ):  # fmt: skip
        super().__init__(inner, smoothing=smoothing, name=name)
        self.scale = scale
        adaptive = self._second_moment_of() is not None
        self._preconditioned = adaptive
        if preconditioned is not None:
            self._preconditioned = checks.flag("preconditioned", preconditioned)
        if self._preconditioned and not adaptive:
            raise ValueError(
                f"preconditioned=True needs second moments, and {self.inner_optimizer.name} keeps "
                "none. Leave the argument out."
            )

    def _check_inner(self, inner):
        """See base class; also raises ValueError for an optimizer whose gain has no known place."""
        super()._check_inner(inner)
        rule = getattr(inner, "rule", None)
        if not isinstance(inner, self._stands_around) or (rule and not rule.takes_gain):
            raise ValueError(
                "AdaScale wraps SGD, Adam, AdamW and the optimizers of tf_lamb but LANS, "
                f"Muon and SOAP, not {type(inner).__name__}: how its gain would enter is not known."
            )

    def _wrap(self, inner, name):
        """See base class; also has the inner optimizer read a `Rate`."""
        super()._wrap(inner, name)
        self._take_rate(inner)

    # seam: Keras 3.15.1 and tf_keras 2.20.1, here and in `_learning_rate`, `_velocities` below.
    @property
    def _rate(self) -> Rate:
        """The `Rate` that the inner optimizer reads."""
        return self.inner_optimizer._learning_rate

    @property
    def learning_rate(self) -> Any:
        """The base batch's learning rate at its next step, without the gain."""
        return self._rate.at(self._xp.convert_to_tensor(self._state["step"]) if self._state else 0)

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
        """See base class; the config of the inner optimizer has the base batch's learning rate."""
        with with_base_rate(self.inner_optimizer):
            config = super().get_config()
        return {**config, "scale": self.scale, "preconditioned": self._preconditioned}

    @property
    def scale(self) -> float:
        """S, the ratio of the batch to the base batch.

        A new value holds from the next time that the step is traced, which
        `model.make_train_function(force=True)` asks for. The averages stay, because they are those
        of a base batch.
        """
        return self._scale

    @scale.setter
    def scale(self, value):
        self._scale = checks.number("scale", value)

    @property
    def power(self) -> float:
        """The power of the gain in the learning rate: 0.5 for preconditioned gradients, else 1."""
        return 0.5 if self._preconditioned else 1.0

    def _initial_state(self):
        """See base class; adds the averages for the gain, the gain, and tau = step + fraction."""
        floats = ("base_variance", "base_signal", "base_count", "fraction")
        return {
            **super()._initial_state(),
            **dict.fromkeys(floats, ((), "float32", "zeros")),
            "gain": ((), "float32", "ones"),
            "step": ((), "int32", "zeros"),
        }

    def _averaged(self, xp, state, moments, when):
        """See base class; adds the averages for the gain, and the gain."""
        averages = noise.Averages(*(state[f"base_{name}"] for name in noise.Averages._fields))
        sums = (xp.sum(moment) for moment in moments)
        new_averages, gain = noise.measured(xp, averages, *sums, scale=self.scale, when=when)
        own_values = {f"base_{name}": value for name, value in new_averages._asdict().items()}
        return {**super()._averaged(xp, state, moments, when), **own_values, "gain": gain}

    def _second_moment_of(self):
        """Returns a function from a position to its second moment; None if there are none."""
        inner = self.inner_optimizer
        if isinstance(inner, self._adaptive):
            return lambda i: self.inner_optimizer._velocities[i]
        if isinstance(inner, Layerwise) and "m" in inner.rule.slots:
            return lambda i: self.inner_optimizer.state_of(i)["v"]
        return None

    def _preconditioner(self, positions):
        """See base class; divides gradients by the root of their second moments."""
        if not self._preconditioned:
            return super()._preconditioner(positions)
        xp, inner, second_moment = self._xp, self.inner_optimizer, self._second_moment_of()
        # The moments are those after `iterations` steps; before the first step all are zeros.
        step = xp.maximum(xp.cast(inner.iterations, "float32"), 1.0)
        correction = debias(xp, inner.beta_2, step)

        def denominator(moment):
            moment = xp.cast(moment, "float32")
            # A row of an embedding may not have been in any batch: its quotient would be g/epsilon.
            return xp.where(moment > 0, xp.sqrt(moment / correction) + inner.epsilon, math.inf)

        denominators = {i: denominator(second_moment(i)) for i in positions}
        return lambda gradient, i: xp.cast(gradient, "float32") / denominators[i]

    def _is_measured(self):
        """See base class; if gradients are preconditioned, the first steps are not measured."""
        return not self._preconditioned or self.inner_optimizer.iterations >= UNMEASURED_STEPS

    def _stepped(self, counts):
        """See base class; adds the gain to tau if an update was taken."""
        step, fraction, gain = (
            self._xp.convert_to_tensor(self._state[name]) for name in ("step", "fraction", "gain")
        )
        spent = noise.spent(self._xp, step, fraction, gain, counts)
        self._assign([self._state["step"], self._state["fraction"]], spent)

    @property
    def gain(self) -> float:
        """r of the last step, in [1, scale]; 1 before the build."""
        return float(value_of(self._state["gain"])) if self._state else 1.0

    @property
    def base_steps(self) -> float:
        """tau, the steps of the base batch that training so far is worth; 0 before the build."""
        if not self._state:
            return 0.0
        return float(sum(float(value_of(self._state[name])) for name in ("step", "fraction")))
