"""Learning-rate schedules: frozen dataclasses whose fields are their config.

    schedule.value(xp, step)        xp: an array namespace, as for rules; step: a scalar, from 0

`value` is a pure function from step to learning rate. Steps are optimizer steps. After its end a
schedule keeps its last value. Integer steps are compared and subtracted as integers, because
float32 does not hold every integer above 2^24.
"""

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable, Iterable
from typing import Any

from tf_lamb.core import checks

_RATE_INTERVAL = "[0, inf)"  # the interval of learning rates
# Type of a field of a schedule -> the function that checks a value of the field, called with the
# name and the value.
_CHECK_OF_TYPE: dict[Any, Callable] = {
    float: functools.partial(checks.number, interval=_RATE_INTERVAL),
    int: checks.integer,
    bool: checks.flag,
    str: checks.choice,
}


class Schedule:
    """Base class of schedules. Its constructor checks each field by the type of the field.

    A float is at least 0, an int at least 1, and a str one of the choices for its name. A field of
    type Any is a learning rate, a schedule of this package, or a function of the step, such as a
    schedule of Keras. Every other field takes a list and stores it as a tuple.
    """

    def __post_init__(self):
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.type in _CHECK_OF_TYPE:
                value = _CHECK_OF_TYPE[field.type](field.name, value)
            elif field.type is Any:
                value = self.checked(field.name, value)
            elif isinstance(value, str) or not isinstance(value, Iterable):
                raise TypeError(f"{field.name} must be a list, not {value!r}.")
            else:
                value = tuple(value)
            object.__setattr__(self, field.name, value)

    def checked(self, name: str, value: Any) -> Any:
        """Checks a learning rate or schedule that is a field of this schedule, and returns it.

        Subclasses in `tf_lamb.api.keras_schedules` also raise an error if a schedule of Keras 3 is
        used with tf_keras, or the other way round.

        Args:
            name: The name of the field, for the message.
            value: The value of the field.

        Raises:
            TypeError: if the value is neither a learning rate nor a schedule.
            ValueError: if the learning rate is out of range.
        """
        if isinstance(value, numbers.Real):
            return checks.number(name, value, _RATE_INTERVAL)
        if not callable(value) and not hasattr(value, "value"):
            raise TypeError(f"{name} must be a learning rate or a schedule, not {value!r}.")
        return value


def _rate_at_step(schedule, xp, step):
    """Returns the learning rate at a step.

    Args:
        schedule: A constant rate, a schedule of this package, or a function of the step, such as a
            schedule of Keras.
        xp: An array namespace such as NumPy.
        step: The optimizer step, from 0.
    """
    if isinstance(schedule, float):
        return _constant_rate(xp, step, schedule)
    if hasattr(schedule, "value"):
        return schedule.value(xp, step)
    rate = schedule(float_step := xp.true_divide(step, 1))
    # A schedule of Keras may return float32 for a float64 step. For NumPy, which is the namespace
    # without `cond`, no cast is needed.
    return xp.cast(rate, float_step.dtype) if hasattr(xp, "cond") else rate


def _constant_rate(xp, step, rate):
    """Returns a constant learning rate as a floating-point array of the shape of step."""
    return xp.true_divide(0 * step, 1) + rate


def _decay_end(schedule):
    """Returns (the step at which a decay ends, its last rate), or None for any other schedule.

    The decays are the polynomial and cosine decays of this package, and `PolynomialDecay` and
    `CosineDecay` of Keras. For Keras's `CosineDecay`, the last rate is given as a share of the
    first one.
    """
    if isinstance(schedule, (_Polynomial, _Cosine)):
        return schedule.steps, schedule.end_learning_rate
    schedule_class = type(schedule)
    if not schedule_class.__module__.startswith(("keras.", "tf_keras.")):
        return None
    if schedule_class.__name__ == "PolynomialDecay" and not schedule.cycle:
        return schedule.decay_steps, schedule.end_learning_rate
    if schedule_class.__name__ == "CosineDecay":
        # Keras ignores `warmup_steps` if `warmup_target` is None.
        warmup = 0 if schedule.warmup_target is None else schedule.warmup_steps
        return schedule.decay_steps + warmup, schedule.alpha
    return None


def zero_rate_step(schedule: Any) -> int | None:
    """Returns the step from which the rate stays 0, or None if there is none or it is unknown."""
    if decay_end := _decay_end(schedule):
        is_decaying = getattr(schedule, "power", 1) > 0
        return decay_end[0] if is_decaying and decay_end[1] == 0 else None
    if isinstance(schedule, Warmup):
        zero_step = zero_rate_step(schedule.after)
        if zero_step is None or schedule.handover == "drop":
            return zero_step
        return schedule.steps + zero_step
    if isinstance(schedule, Stages):
        zero_step = zero_rate_step(schedule.schedules[-1])
        return None if zero_step is None else sum(schedule.lengths[:-1]) + zero_step
    return None


# -- decays for recipes and Model Garden's settings; users use the schedules of Keras --------------


@dataclasses.dataclass(frozen=True)
class _Constant(Schedule):
    """A constant learning rate."""

    learning_rate: float

    def value(self, xp: Any, step: Any) -> Any:
        """Returns the learning rate, as an array of the shape of step."""
        return _constant_rate(xp, step, self.learning_rate)


@dataclasses.dataclass(frozen=True)
class _Polynomial(Schedule):
    """A polynomial decay: (initial - end) (1 - step/steps)^power + end."""

    initial_learning_rate: float
    steps: int
    end_learning_rate: float = 0.0
    power: float = 1.0

    def value(self, xp: Any, step: Any) -> Any:
        """Returns the learning rate at a step."""
        remaining = xp.true_divide(self.steps - xp.minimum(step, self.steps), self.steps)
        decay_factor = remaining if self.power == 1 else remaining**self.power
        rate_range = self.initial_learning_rate - self.end_learning_rate
        return rate_range * decay_factor + self.end_learning_rate


@dataclasses.dataclass(frozen=True)
class _Cosine(Schedule):
    """A cosine decay: (initial - end) (1 + cos(pi step/steps))/2 + end."""

    initial_learning_rate: float
    steps: int
    end_learning_rate: float = 0.0

    def value(self, xp: Any, step: Any) -> Any:
        """Returns the learning rate at a step."""
        cosine = xp.cos(math.pi * xp.true_divide(xp.minimum(step, self.steps), self.steps))
        rate_range = self.initial_learning_rate - self.end_learning_rate
        return rate_range * (0.5 * (1.0 + cosine)) + self.end_learning_rate


@dataclasses.dataclass(frozen=True)
class _Exponential(Schedule):
    """An exponential decay: initial x rate^(step/steps); `staircase` rounds the exponent down."""

    initial_learning_rate: float
    steps: int
    rate: float
    staircase: bool = False

    def value(self, xp: Any, step: Any) -> Any:
        """Returns the learning rate at a step."""
        position, decay_length = (step // self.steps, 1) if self.staircase else (step, self.steps)
        return self.initial_learning_rate * self.rate ** xp.true_divide(position, decay_length)


@dataclasses.dataclass(frozen=True)
class _MultiStep(Schedule):
    """A piecewise constant rate: learning_rates[i + 1] from step boundaries[i] on.

    There is one more learning rate than boundaries: learning_rates[0] is the rate before the first
    boundary.
    """

    boundaries: tuple[int, ...]
    learning_rates: tuple[float, ...]

    def __post_init__(self):
        super().__post_init__()
        if len(self.learning_rates) != len(self.boundaries) + 1:
            raise ValueError(
                f"{len(self.boundaries)} boundaries need {len(self.boundaries) + 1} "
                f"learning_rates, not {len(self.learning_rates)}: {self.learning_rates}."
            )
        object.__setattr__(self, "boundaries", tuple(map(_check_boundary, self.boundaries)))
        if list(self.boundaries) != sorted(set(self.boundaries)):
            raise ValueError(f"boundaries must rise, but they are {self.boundaries}.")
        named_rates = ((f"learning_rates[{i}]", rate) for i, rate in enumerate(self.learning_rates))
        rates = (checks.number(name, rate, _RATE_INTERVAL) for name, rate in named_rates)
        object.__setattr__(self, "learning_rates", tuple(rates))

    def value(self, xp: Any, step: Any) -> Any:
        """Returns the learning rate at a step."""
        rate = _constant_rate(xp, step, self.learning_rates[0])
        for boundary, next_rate in zip(self.boundaries, self.learning_rates[1:], strict=True):
            rate = xp.where(step >= math.ceil(boundary), _constant_rate(xp, step, next_rate), rate)
        return rate


def _check_boundary(value):
    """Checks a step at which the rate changes, and returns it as an int or a float.

    The step may be a fraction, because it may be computed from a fractional `steps_per_epoch`.
    Raises ValueError for anything else.
    """
    max_steps, is_number = checks.MAX_STEPS, isinstance(value, numbers.Real)
    if isinstance(value, bool) or not is_number or not abs(value) <= max_steps:
        raise ValueError(f"boundaries must be steps up to {max_steps:,}, but they hold {value!r}.")
    return int(value) if isinstance(value, numbers.Integral) else float(value)


# -- schedules for users --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Warmup(Schedule):
    """A warmup to the first value of another schedule, followed by that schedule.

        kind          rate at step s of S warmup steps, which lead to the peak p = after(0)
        linear        start + (p - start) s/S
        polynomial    start + (p - start) (s/S)^power
        exponential   start (p/start)^(s/S)
        constant      start

    With handover="continuous", the rate at step S + k equals `after` at step k, bit for bit, also
    if `after` is a schedule of Keras.

    Attributes:
        steps: S, the length of the warmup in steps. With handover="continuous", `after` starts
            from its step 0 when the warmup ends.
        after: The schedule that follows: `PolynomialDecay`, `CosineDecay` or another schedule of
            Keras, or `Stages`; or a number, for a constant rate.
        kind: "linear", "polynomial", "exponential" or "constant". Defaults to "linear".
        power: Power of a polynomial warmup. Defaults to 1.0.
        start: The rate at step 0. Defaults to 0.0.
        handover: "continuous" starts `after` when the warmup ends. "drop" counts the steps of
            `after` from the start of training, as the code of BERT does, so that the rate drops
            when the warmup ends. Defaults to "continuous".

    Raises:
        TypeError: if a field has the wrong type.
        ValueError: if a field is out of range, an exponential warmup starts at 0, or, with
            handover="drop", the warmup is longer than the decay that follows.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> decay = tf.keras.optimizers.schedules.PolynomialDecay(0.1, 80, end_learning_rate=0.0)
    >>> schedule = tf_lamb.schedules.Warmup(20, decay)
    >>> [round(float(schedule(step)), 3) for step in (0, 10, 20, 60, 100)]
    [0.0, 0.05, 0.1, 0.05, 0.0]
    """

    steps: int
    after: Any
    kind: str = "linear"
    power: float = 1.0
    start: float = 0.0
    handover: str = "continuous"

    def __post_init__(self):
        super().__post_init__()
        if self.kind == "exponential" and self.start == 0:
            raise ValueError("kind='exponential' needs a start above 0, such as start=1e-5.")
        decay_end = _decay_end(self.after)
        if self.handover == "drop" and decay_end and self.steps > decay_end[0]:
            raise ValueError(
                f"A warmup of {self.steps} steps is longer than the {decay_end[0]} steps of "
                "the schedule that it stands in front of, and with handover='drop' they begin "
                "together."
            )

    def value(self, xp: Any, step: Any) -> Any:
        """Returns the learning rate at a step.

        Args:
            xp: An array namespace such as NumPy.
            step: A scalar, the optimizer step, from 0.
        """
        peak = _rate_at_step(self.after, xp, 0 * step)
        fraction = xp.true_divide(xp.minimum(step, self.steps), self.steps)
        if self.kind == "exponential":
            warmup_rate = self.start * (peak / self.start) ** fraction
        elif self.kind == "constant":
            warmup_rate = _constant_rate(xp, step, self.start)
        else:
            progress = fraction**self.power if self.kind == "polynomial" else fraction
            warmup_rate = self.start + (peak - self.start) * progress
        after_step = step if self.handover == "drop" else xp.maximum(step - self.steps, 0)
        return xp.where(step < self.steps, warmup_rate, _rate_at_step(self.after, xp, after_step))


@dataclasses.dataclass(frozen=True)
class Stages(Schedule):
    """Successive schedules, each counted from its own step 0, so that each stage may have a warmup.

    Attributes:
        lengths: The number of steps of each stage. The last stage goes on beyond its length.
        schedules: The schedule of each stage: a `Warmup`, a schedule of Keras, or a number.

    Raises:
        TypeError: if a field is not a list, or holds a value of the wrong type.
        ValueError: if there are not as many lengths as schedules, or a number is out of range.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> s, decay = tf_lamb.schedules, tf.keras.optimizers.schedules.PolynomialDecay
    >>> schedule = s.Stages((60, 40), (s.Warmup(20, 0.1), decay(0.1, 40, end_learning_rate=0.0)))
    >>> [round(float(schedule(step)), 3) for step in (10, 20, 59, 60, 80, 100)]
    [0.05, 0.1, 0.1, 0.1, 0.05, 0.0]
    """

    lengths: tuple[int, ...]
    schedules: tuple[Any, ...]

    def __post_init__(self):
        super().__post_init__()
        if len(self.lengths) != len(self.schedules) or not self.lengths:
            raise ValueError(
                f"Stages need one length each, but there are {len(self.lengths)} lengths and "
                f"{len(self.schedules)} schedules."
            )
        lengths = tuple(
            checks.integer(f"lengths[{i}]", length) for i, length in enumerate(self.lengths)
        )
        object.__setattr__(self, "lengths", lengths)
        checks.integer("The sum of lengths", sum(lengths))
        checked_schedules = (
            self.checked(f"schedules[{i}]", schedule) for i, schedule in enumerate(self.schedules)
        )
        object.__setattr__(self, "schedules", tuple(checked_schedules))

    def value(self, xp: Any, step: Any) -> Any:
        """Returns the learning rate at a step.

        Args:
            xp: An array namespace such as NumPy.
            step: A scalar, the optimizer step, from 0.
        """
        rate, stage_start = _rate_at_step(self.schedules[0], xp, step), 0
        for length, schedule in zip(self.lengths, self.schedules[1:], strict=False):
            stage_start += length
            stage_step = xp.maximum(step - stage_start, 0)
            rate = xp.where(step >= stage_start, _rate_at_step(schedule, xp, stage_step), rate)
        return rate
