"""Step to learning rate: frozen dataclasses whose fields are their config, and whose value is pure.

    schedule.value(xp, step)        xp: as for the rules; step: a float scalar, from 0

A schedule counts optimizer steps. `steps_per_epoch` turns what is said in epochs into steps:
`Polynomial(1.0, steps=90 * steps_per_epoch)`. Past its end a schedule keeps its last value.
"""

import dataclasses
import math
import numbers
from typing import Any

from tf_lamb.core import checks
from tf_lamb.core.checks.schedules import inside, rates, several, whole

_KINDS = ("linear", "polynomial", "exponential", "constant")
_HANDOVERS = ("continuous", "drop")


def _at(schedule, xp, step):
    """The value of a schedule of ours, or of the host's own, which is a function of the step."""
    return schedule.value(xp, step) if hasattr(schedule, "value") else schedule(step)


@dataclasses.dataclass(frozen=True)
class Constant:
    """The same learning rate throughout."""

    learning_rate: float

    def __post_init__(self):
        rates(learning_rate=self.learning_rate)

    def value(self, xp, step):
        """The learning rate, as an array like step."""
        return 0.0 * step + self.learning_rate


@dataclasses.dataclass(frozen=True)
class Polynomial:
    """(initial - end) (1 - step/steps)^power + end."""

    initial_learning_rate: float
    steps: int
    end_learning_rate: float = 0.0
    power: float = 1.0

    def __post_init__(self):
        rates(initial_learning_rate=self.initial_learning_rate, power=self.power,
              end_learning_rate=self.end_learning_rate)  # fmt: skip
        whole(steps=self.steps)

    def value(self, xp, step):
        """The learning rate after this many steps."""
        left = 1.0 - xp.minimum(step, float(self.steps)) / self.steps
        fall = left if self.power == 1 else left**self.power
        return (self.initial_learning_rate - self.end_learning_rate) * fall + self.end_learning_rate


@dataclasses.dataclass(frozen=True)
class Cosine:
    """(initial - end) (1 + cos(pi step/steps))/2 + end."""

    initial_learning_rate: float
    steps: int
    end_learning_rate: float = 0.0

    def __post_init__(self):
        rates(initial_learning_rate=self.initial_learning_rate,
              end_learning_rate=self.end_learning_rate)  # fmt: skip
        whole(steps=self.steps)

    def value(self, xp, step):
        """The learning rate after this many steps."""
        turn = xp.cos(math.pi * (xp.minimum(step, float(self.steps)) / self.steps))
        span = self.initial_learning_rate - self.end_learning_rate
        return span * (0.5 * (1.0 + turn)) + self.end_learning_rate


@dataclasses.dataclass(frozen=True)
class Exponential:
    """initial rate^(step/steps); with `staircase` the exponent is a whole number."""

    initial_learning_rate: float
    steps: int
    rate: float
    staircase: bool = False

    def __post_init__(self):
        rates(initial_learning_rate=self.initial_learning_rate, rate=self.rate)
        whole(steps=self.steps)
        checks.flag("staircase", self.staircase)

    def value(self, xp, step):
        """The learning rate after this many steps."""
        exponent = step / self.steps
        exponent = xp.floor(exponent) if self.staircase else exponent
        return self.initial_learning_rate * self.rate**exponent


@dataclasses.dataclass(frozen=True)
class MultiStep:
    """learning_rates[i] from boundaries[i - 1] on; there is one rate more than boundaries."""

    boundaries: tuple[int, ...]
    learning_rates: tuple[float, ...]

    def __post_init__(self):
        several(self, "boundaries", "learning_rates")
        if len(self.learning_rates) != len(self.boundaries) + 1:
            raise ValueError(
                f"{len(self.boundaries)} boundaries need {len(self.boundaries) + 1} "
                f"learning_rates, not {len(self.learning_rates)}: {self.learning_rates}."
            )
        for boundary in self.boundaries:
            if isinstance(boundary, bool) or not isinstance(boundary, numbers.Real):
                raise TypeError(f"boundaries must be steps, but they hold {boundary!r}.")
        if list(self.boundaries) != sorted(set(self.boundaries)):
            raise ValueError(f"boundaries must rise, but they are {self.boundaries}.")
        rates(**{f"learning_rates[{i}]": rate for i, rate in enumerate(self.learning_rates)})

    def value(self, xp, step):
        """The learning rate after this many steps."""
        rate = 0.0 * step + self.learning_rates[0]
        for boundary, after in zip(self.boundaries, self.learning_rates[1:], strict=True):
            rate = xp.where(step >= boundary, 0.0 * step + after, rate)
        return rate


@dataclasses.dataclass(frozen=True)
class Warmup:
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
        whole(steps=self.steps)
        rates(start=self.start, power=self.power)
        for name, known in (("kind", _KINDS), ("handover", _HANDOVERS)):
            if getattr(self, name) not in known:
                choices = ", ".join(map(repr, known))
                raise ValueError(f"{name} must be one of {choices}, not {getattr(self, name)!r}.")
        if self.kind == "exponential" and self.start == 0:
            raise ValueError("kind='exponential' needs a start above 0, such as start=1e-5.")
        inside(self, "after", self.after)
        ends = isinstance(self.after, (Polynomial, Cosine))  # others go on, whatever they count
        if self.handover == "drop" and ends and self.steps > self.after.steps:
            raise ValueError(
                f"A warmup of {self.steps} steps is longer than the {self.after.steps} steps of "
                "the schedule that it stands in front of, and with handover='drop' they begin "
                "together."
            )

    def value(self, xp, step):
        """The learning rate after this many steps."""
        peak = _at(self.after, xp, 0.0 * step)
        part = xp.minimum(step, float(self.steps)) / self.steps
        if self.kind == "exponential":
            rise = self.start * (peak / self.start) ** part
        elif self.kind == "constant":
            rise = 0.0 * step + self.start
        else:
            fraction = part**self.power if self.kind == "polynomial" else part
            rise = self.start + (peak - self.start) * fraction
        begun = step if self.handover == "drop" else xp.maximum(step - self.steps, 0.0 * step)
        return xp.where(step < self.steps, rise, _at(self.after, xp, begun))


@dataclasses.dataclass(frozen=True)
class Stages:
    """One schedule after another, each counted from its own step 0: re-warmup between stages.

    Attributes:
        lengths: how many steps each stage lasts; the last one goes on.
        schedules: of each stage.
    """

    lengths: tuple[int, ...]
    schedules: tuple[Any, ...]

    def __post_init__(self):
        several(self, "lengths", "schedules")
        if len(self.lengths) != len(self.schedules) or not self.lengths:
            raise ValueError(
                f"Stages need one length each, but there are {len(self.lengths)} lengths and "
                f"{len(self.schedules)} schedules."
            )
        whole(**{f"lengths[{i}]": length for i, length in enumerate(self.lengths)})
        for i, schedule in enumerate(self.schedules):
            inside(self, f"schedules[{i}]", schedule)

    def value(self, xp, step):
        """The learning rate after this many steps."""
        rate, begin = _at(self.schedules[0], xp, step), 0
        for length, schedule in zip(self.lengths, self.schedules[1:], strict=False):
            begin += length
            own = xp.maximum(step - begin, 0.0 * step)
            rate = xp.where(step >= begin, _at(schedule, xp, own), rate)
        return rate
