"""Step to learning rate: frozen dataclasses whose fields are their config, and whose value is pure.

    schedule.value(xp, step)        xp: as for the rules; step: a scalar, from 0

A schedule counts optimizer steps. `steps_per_epoch` turns what is said in epochs into steps:
`Polynomial(1.0, steps=90 * steps_per_epoch)`. Past its end a schedule keeps its last value. Steps
that are whole numbers are compared and subtracted as such, and only a part of a length becomes a
real number: float32 tells no step from the next beyond 2^24.
"""

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable, Iterable
from typing import Any

from tf_lamb.core import checks

_RATES = "[0, inf)"
_CHECKS: dict[Any, Callable] = {
    float: functools.partial(checks.number, interval=_RATES),
    int: checks.integer,
    bool: checks.flag,
    str: checks.choice,
}


class Schedule:
    """Base class of schedules: fields that are checked by their types, and a value.

    Lists become tuples. What stands inside a schedule is one, too: of ours, or a function of the
    step, as the host's own are.
    """

    def __post_init__(self):
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.type in _CHECKS:
                object.__setattr__(self, field.name, _CHECKS[field.type](field.name, value))
            elif field.type is Any:
                self.check_inside(field.name, value)
            elif isinstance(value, str) or not isinstance(value, Iterable):
                raise TypeError(f"{field.name} must be a list, not {value!r}.")
            else:
                object.__setattr__(self, field.name, tuple(value))

    def check_inside(self, name: str, value: Any) -> None:
        """Refuses what is no schedule; a host's base class adds those that it cannot call."""
        if not callable(value) and not hasattr(value, "value"):
            raise TypeError(
                f"{name} must be a schedule, such as Constant({value!r}), not {value!r}."
            )


def _at(schedule, xp, step):
    """The value of a schedule of ours, or of the host's own, which is a function of the step."""
    ours = hasattr(schedule, "value")
    return schedule.value(xp, step) if ours else schedule(xp.true_divide(step, 1))


def _flat(xp, step, rate):
    """The rate as an array like step."""
    return xp.true_divide(0 * step, 1) + rate


@dataclasses.dataclass(frozen=True)
class Constant(Schedule):
    """The same learning rate throughout."""

    learning_rate: float

    def value(self, xp: Any, step: Any) -> Any:
        """The learning rate, as an array like step."""
        return _flat(xp, step, self.learning_rate)


@dataclasses.dataclass(frozen=True)
class Polynomial(Schedule):
    """(initial - end) (1 - step/steps)^power + end."""

    initial_learning_rate: float
    steps: int
    end_learning_rate: float = 0.0
    power: float = 1.0

    def value(self, xp: Any, step: Any) -> Any:
        """The learning rate after this many steps."""
        left = xp.true_divide(self.steps - xp.minimum(step, self.steps), self.steps)
        fall = left if self.power == 1 else left**self.power
        return (self.initial_learning_rate - self.end_learning_rate) * fall + self.end_learning_rate


@dataclasses.dataclass(frozen=True)
class Cosine(Schedule):
    """(initial - end) (1 + cos(pi step/steps))/2 + end."""

    initial_learning_rate: float
    steps: int
    end_learning_rate: float = 0.0

    def value(self, xp: Any, step: Any) -> Any:
        """The learning rate after this many steps."""
        turn = xp.cos(math.pi * xp.true_divide(xp.minimum(step, self.steps), self.steps))
        span = self.initial_learning_rate - self.end_learning_rate
        return span * (0.5 * (1.0 + turn)) + self.end_learning_rate


@dataclasses.dataclass(frozen=True)
class Exponential(Schedule):
    """initial rate^(step/steps); with `staircase` the exponent is a whole number."""

    initial_learning_rate: float
    steps: int
    rate: float
    staircase: bool = False

    def value(self, xp: Any, step: Any) -> Any:
        """The learning rate after this many steps."""
        count, length = (step // self.steps, 1) if self.staircase else (step, self.steps)
        return self.initial_learning_rate * self.rate ** xp.true_divide(count, length)


@dataclasses.dataclass(frozen=True)
class MultiStep(Schedule):
    """learning_rates[i] from boundaries[i - 1] on; there is one rate more than boundaries."""

    boundaries: tuple[int, ...]
    learning_rates: tuple[float, ...]

    def __post_init__(self):
        super().__post_init__()
        if len(self.learning_rates) != len(self.boundaries) + 1:
            raise ValueError(
                f"{len(self.boundaries)} boundaries need {len(self.boundaries) + 1} "
                f"learning_rates, not {len(self.learning_rates)}: {self.learning_rates}."
            )
        object.__setattr__(self, "boundaries", tuple(map(_boundary, self.boundaries)))
        if list(self.boundaries) != sorted(set(self.boundaries)):
            raise ValueError(f"boundaries must rise, but they are {self.boundaries}.")
        named = ((f"learning_rates[{i}]", rate) for i, rate in enumerate(self.learning_rates))
        rates = (checks.number(name, rate, _RATES) for name, rate in named)
        object.__setattr__(self, "learning_rates", tuple(rates))

    def value(self, xp: Any, step: Any) -> Any:
        """The learning rate after this many steps."""
        rate = _flat(xp, step, self.learning_rates[0])
        for boundary, after in zip(self.boundaries, self.learning_rates[1:], strict=True):
            rate = xp.where(step >= math.ceil(boundary), _flat(xp, step, after), rate)
        return rate


def _boundary(value):
    """A step, which may be a fraction as `steps_per_epoch` may be one."""
    most, is_number = checks.MOST_STEPS, isinstance(value, numbers.Real)
    if isinstance(value, bool) or not is_number or not abs(value) <= most:
        raise ValueError(f"boundaries must be steps up to {most:,}, but they hold {value!r}.")
    return int(value) if isinstance(value, numbers.Integral) else float(value)


@dataclasses.dataclass(frozen=True)
class Warmup(Schedule):
    """A rise to the first value of another schedule, in front of it.

        kind          at step s of the warmup's S, to the peak p = after(0)
        linear        start + (p - start) s/S
        polynomial    start + (p - start) (s/S)^power
        exponential   start (p/start)^(s/S)
        constant      start

    Attributes:
        steps: S, the length of the warmup.
        after: the schedule that follows, of ours or of the host.
        start: the rate at step 0.
        handover: "continuous" lets `after` begin when the warmup ends, from its peak; "drop" reads
            it at the absolute step, as BERT's code and MLPerf's do, so that the rate falls at once
            by what `after` would have lost by then.
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
        ends = isinstance(self.after, (Polynomial, Cosine))  # others go on, whatever they count
        if self.handover == "drop" and ends and self.steps > self.after.steps:
            raise ValueError(
                f"A warmup of {self.steps} steps is longer than the {self.after.steps} steps of "
                "the schedule that it stands in front of, and with handover='drop' they begin "
                "together."
            )

    def value(self, xp: Any, step: Any) -> Any:
        """The learning rate after this many steps."""
        peak = _at(self.after, xp, 0 * step)
        part = xp.true_divide(xp.minimum(step, self.steps), self.steps)
        if self.kind == "exponential":
            rise = self.start * (peak / self.start) ** part
        elif self.kind == "constant":
            rise = _flat(xp, step, self.start)
        else:
            fraction = part**self.power if self.kind == "polynomial" else part
            rise = self.start + (peak - self.start) * fraction
        begun = step if self.handover == "drop" else xp.maximum(step - self.steps, 0)
        return xp.where(step < self.steps, rise, _at(self.after, xp, begun))


@dataclasses.dataclass(frozen=True)
class Stages(Schedule):
    """One schedule after another, each counted from its own step 0: re-warmup between stages.

    Attributes:
        lengths: how many steps each stage lasts; the last one goes on.
        schedules: of each stage.
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
        lengths = tuple(checks.integer(f"lengths[{i}]", n) for i, n in enumerate(self.lengths))
        object.__setattr__(self, "lengths", lengths)
        checks.integer("The sum of lengths", sum(lengths))
        for i, schedule in enumerate(self.schedules):
            self.check_inside(f"schedules[{i}]", schedule)

    def value(self, xp: Any, step: Any) -> Any:
        """The learning rate after this many steps."""
        rate, begin = _at(self.schedules[0], xp, step), 0
        for length, schedule in zip(self.lengths, self.schedules[1:], strict=False):
            begin += length
            own = xp.maximum(step - begin, 0)
            rate = xp.where(step >= begin, _at(schedule, xp, own), rate)
        return rate
