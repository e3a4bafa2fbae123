"""The learning rate of AutoWU as a function of the step, before and after its switch."""

import dataclasses
import math
import types
from typing import Any

from tf_lamb.core import checks

DECAYS = ("cosine", "constant_then_cosine")


# The functions that `Settings.value` uses, over Python's own numbers.
FLOATS = types.SimpleNamespace(
    cos=math.cos, maximum=max, minimum=min, where=lambda holds, x, other: x if holds else other
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What AutoWU is told; the defaults are its authors'.

    Attributes:
        total_steps: T, of the whole training.
        min_learning_rate, max_learning_rate: where the warmup begins, and where it would end after
            its longest.
        max_warmup_fraction: of T, the longest that the warmup may last.
        decay: "cosine" to 0 from the switch to T; or "constant_then_cosine", to 0 over the last
            `cooldown_fraction` of T.
        cooldown_fraction: see decay.
        confidence: how probable it must be that the loss was lower before.
        patience: epochs in a row of which a majority of tests says so.
        tests: tests an epoch, each on another sample of the losses.
    """

    total_steps: int
    min_learning_rate: float = 1e-5
    max_learning_rate: float = 1.0
    max_warmup_fraction: float = 0.5
    decay: str = "cosine"
    cooldown_fraction: float = 0.2
    confidence: float = 0.95
    patience: int = 3
    tests: int = 5

    def __post_init__(self):
        for name in ("total_steps", "patience", "tests"):
            object.__setattr__(self, name, checks.whole(name, getattr(self, name)))
        low, high = self.min_learning_rate, self.max_learning_rate
        if not 0 < low < high < math.inf:
            raise ValueError(
                "AutoWarmup raises the learning rate from min_learning_rate to max_learning_rate, "
                f"so it needs 0 < min < max, but they are {low!r} and {high!r}. Try 1e-5 and 1.0."
            )
        for name in ("max_warmup_fraction", "cooldown_fraction", "confidence"):
            if not 0 < getattr(self, name) < 1:
                why = "a warmup without an end leaves nothing to decay: " * (name[0] == "m")
                raise ValueError(
                    f"{name} must be between 0 and 1, {why}it is {getattr(self, name)!r}."
                )
        if self.decay not in DECAYS:
            known = " or ".join(map(repr, DECAYS))
            raise ValueError(f"decay must be {known}, not {self.decay!r}.")
        if self.longest < 1:
            raise ValueError(
                f"max_warmup_fraction={self.max_warmup_fraction:g} of {self.total_steps} steps is "
                "no step at all: train for longer, or take a larger fraction."
            )

    @property
    def longest(self) -> int:
        """Steps of the longest warmup, which ends where nothing is found."""
        return int(self.max_warmup_fraction * self.total_steps)

    @property
    def cooldown(self) -> float:
        """The step at which "constant_then_cosine" begins to fall."""
        return (1 - self.cooldown_fraction) * self.total_steps

    def warmup(self, step):
        """min (max/min)^(step/longest)."""
        ratio = self.max_learning_rate / self.min_learning_rate
        return self.min_learning_rate * ratio ** (step / self.longest)

    def unfound(self) -> tuple[float, float]:
        """The switch, as `value` takes it, where no minimum is found."""
        begin = float(self.longest)
        if self.decay == "constant_then_cosine":
            begin = min(begin, self.cooldown)
        return begin, self.warmup(begin)

    def value(self, xp: Any, step, begin, peak):
        """The learning rate after this many steps.

            warmup(step)                                           step < begin
            peak (1 + cos(pi min(s/S, 1)))/2, s = step - first     after

        where first is begin, or with "constant_then_cosine" the cooldown's; S = T - first.
        """
        first = begin
        if self.decay == "constant_then_cosine":
            first = xp.maximum(begin, 0.0 * begin + self.cooldown)
        part = xp.maximum(step - first, 0.0 * step) / (self.total_steps - first)
        fall = 0.5 * (1.0 + xp.cos(math.pi * xp.minimum(part, 1.0 + 0.0 * part)))
        # Past the switch the warmup may leave the floats.
        rise = self.warmup(xp.minimum(step, 0.0 * step + self.longest))
        return xp.where(step < begin, rise, peak * fall)
