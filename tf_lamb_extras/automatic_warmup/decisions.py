"""AutoWU: the learning rate rises until the loss has passed its minimum, goes back, and decays.

`Settings` has the learning rate as a function of the step, before and after the switch.
`AutoWUState` is the state machine: losses in, one decision at the end of an epoch, which
`gaussian_process.py` makes.
"""

import bisect
import dataclasses
import math
import types
from collections.abc import Callable, Sequence
from typing import Any

from tf_lamb.core import checks
from tf_lamb_extras.automatic_warmup import gaussian_process

DECAYS = ("cosine", "constant_then_cosine")


# The functions that `Settings.value` uses, over Python's own numbers.
FLOATS = types.SimpleNamespace(
    cos=math.cos, maximum=max, minimum=min, where=lambda holds, x, other: x if holds else other
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The arguments of AutoWU; the defaults are its authors'.

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
            object.__setattr__(self, name, checks.integer(name, getattr(self, name)))
        low, high = self.min_learning_rate, self.max_learning_rate
        if not 0 < low < high < math.inf:
            raise ValueError(
                "AutoWarmup raises the learning rate from min_learning_rate to max_learning_rate, "
                f"so it needs 0 < min < max, but they are {low!r} and {high!r}. Try 1e-5 and 1.0."
            )
        for name in ("max_warmup_fraction", "cooldown_fraction", "confidence"):
            if not 0 < getattr(self, name) < 1:
                endless = name == "max_warmup_fraction"
                why = "a warmup without an end leaves nothing to decay: " if endless else ""
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


Judge = Callable[[Sequence[float], Sequence[float], int], Sequence[Any]]


class AutoWUState:
    """Rises, switches and decays, and goes back further where the decay loses what was gained.

    At the end of an epoch of the warmup, all losses so far stand at x_i = i/n:

        the verdict    most tests say P > confidence
        the switch     when the last `patience` verdicts all say so: back to the learning rate at
                       the loss's minimum, mean of min (now/min)^argmin over the tests, and at
                       most that at the end of the lowest epoch

    The longest warmup ends with a switch, too, and so does an epoch without a finite loss: back to
    half of the learning rate at the end of the lowest epoch. Where the longest warmup's last epoch
    is the lowest, it goes on from its last rate, as in the authors' code it always does. There,
    nothing watches the decay. With F the mean loss of the first epoch, and L that of the lowest:

        the watch      when each loss of the last `patience` epochs is above (F + L)/2, half of the
                       gain is lost: the rest decays from half of the peak

    Attributes:
        points: (step, loss) of every finite loss of the warmup, step from 0.
        verdicts: (step, whether the loss has passed its minimum) of every epoch of the warmup.
        begin, peak: where the decay begins, and its first learning rate.
        found: whether that is a switch, rather than the end of the longest warmup.
        watched: (step, whether each loss was above) of every epoch of the decay.
        cuts: (step, peak) of every time that the watch has lowered the peak.

    Args:
        settings: the arguments.
        judge: (x, y, tests) -> the tests.
    """

    def __init__(self, settings: Settings, judge: Judge = gaussian_process.tests):
        self.settings, self._judge = settings, judge
        self.points: list[tuple[float, float]] = []
        self.verdicts: list[tuple[int, bool]] = []
        self.begin, self.peak = settings.unfound()
        self.found = False
        self.watched: list[tuple[int, bool]] = []
        self.cuts: list[tuple[int, float]] = []
        self._losses: list[float] = []  # of this epoch of the decay

    def rate(self, step: float) -> float:
        """The learning rate after this many steps."""
        return self.settings.value(FLOATS, float(step), self.begin, self.peak_at(step))

    def peak_at(self, step: float = math.inf) -> float:
        """The rate that the decay begins from, as it is known after this many steps."""
        cuts = (peak for at, peak in reversed(self.cuts) if at <= step)
        return next(cuts, self.peak)

    def is_rising(self, step: float) -> bool:
        """Whether the loss of this step matters."""
        return step < self.begin

    def record(self, step: float, loss: float) -> None:
        """Takes the loss of a step; of the warmup, one that is not finite is left out."""
        if not self.is_rising(step):
            self._losses.append(loss)
        elif math.isfinite(loss):
            self.points.append((step, loss))

    def end_epoch(self, step: int, is_kept: bool = True) -> bool:
        """Decides, after this many steps.

        Args:
            step: that many.
            is_kept: whether the weights of the lowest epoch are there to go back to.

        Returns:
            Whether training goes back to `lowest`.

        Raises:
            FloatingPointError: where an epoch of the warmup had no finite loss, and there is
                nothing to go back to.
        """
        last = self.verdicts[-1][0] if self.verdicts else 0
        if self.found or last >= self.begin or self.watched:
            return self._watch(step)
        if not self.points or self.points[-1][0] < last:
            if self.verdicts and is_kept:
                return self._switch(step, self.settings.warmup(self.lowest) / 2)
            raise FloatingPointError(
                f"No loss of the steps {last:,} to {step:,} is finite: the minimum that AutoWarmup "
                f"waits for cannot be found. At step {step:,} the learning rate has come to "
                f"{self.rate(step):.3g}. Go on from the last backup with a smaller "
                "max_learning_rate, or with on_nonfinite='skip'; nothing was saved after it."
            )
        x, y = zip(*((at / step, loss) for at, loss in self.points), strict=True)
        tests = self._judge(x, y, self.settings.tests)
        votes = sum(test.probability > self.settings.confidence for test in tests)
        self.verdicts.append((step, 2 * votes > len(tests)))
        self._losses = []
        ended = self.settings.warmup(self.lowest)
        if self._lately([passed for _, passed in self.verdicts]):
            now, low = self.settings.warmup(step), self.settings.min_learning_rate
            rates = [low * (now / low) ** test.lowest for test in tests]
            return self._switch(step, min(sum(rates) / len(rates), ended))
        if self.is_rising(step) or self.lowest == step:
            return False
        return self._switch(step, ended / 2)

    def _switch(self, step, peak):
        self.begin, self.peak, self.found, self._losses = float(step), peak, True, []
        return True

    def _watch(self, step):
        losses, self._losses = self._losses, []
        if not losses or not self.verdicts:  # no epoch of the decay, or of the warmup
            return False
        # A loss that is not a number is above, too.
        self.watched.append((step, not any(loss <= self.halfway for loss in losses)))
        since = self.cuts[-1][0] if self.cuts else 0
        if not self.is_lost(since):
            return False
        self.cuts.append((step, self.peak_at(step) / 2))
        return True

    def is_lost(self, since: int = 0) -> bool:
        """Whether each loss of the last `patience` epochs of the decay was above `halfway`."""
        return self._lately([lost for at, lost in self.watched if at > since])

    def _lately(self, flags):
        """Whether there are `patience` of them, and the last so many are true."""
        recent = flags[-self.settings.patience :]
        return len(recent) == self.settings.patience and all(recent)

    @property
    def halfway(self) -> float:
        """(F + L)/2, once an epoch of the warmup has ended."""
        first = [loss for at, loss in self.points if at < self.verdicts[0][0]]
        return (sum(first) / len(first) + min(self._tails().values())) / 2

    @property
    def lowest(self) -> int:
        """The step to return to: the end of the epoch with the lowest last quarter; -1 for none."""
        tails = self._tails()
        return min(tails, key=tails.__getitem__, default=-1)

    def _tails(self):
        ends = [step for step, _ in self.verdicts]
        return {end: self._tail(begin, end) for begin, end in zip([0, *ends], ends, strict=False)}

    def _tail(self, begin, end):
        first, last = (bisect.bisect_left(self.points, (at,)) for at in (begin, end))
        losses = [loss for _, loss in self.points[first:last]]
        losses = losses[-max(len(losses) // 4, 1) :]
        return sum(losses) / len(losses)  # no verdict is without one

    def state(self) -> dict:
        """All that it has seen and decided, for JSON."""
        switch = [self.begin, self.peak] if self.found else None
        return {
            "total_steps": self.settings.total_steps, "points": self.points,
            "verdicts": self.verdicts, "switch": switch, "watched": self.watched,
            "cuts": self.cuts,
        }  # fmt: skip

    def restore(self, state: dict, step: int) -> None:
        """Goes back to what it was after this many steps, or as near as the state comes."""
        self.points = [(at, loss) for at, loss in state["points"] if at < step]
        self.verdicts = [(at, passed) for at, passed in state["verdicts"] if at <= step]
        switch = state["switch"]
        self.found = switch is not None and switch[0] <= step
        self.begin, self.peak = switch if self.found else self.settings.unfound()
        # A state of an earlier version has neither.
        self.watched = [(at, lost) for at, lost in state.get("watched", ()) if at <= step]
        self.cuts = [(at, peak) for at, peak in state.get("cuts", ()) if at <= step]

    def __str__(self):
        if self.cuts:
            at, peak = self.cuts[-1]
            return (
                f"AutoWarmup: half of what the warmup gained is lost again; after {at:,} of "
                f"{self.settings.total_steps:,} steps the learning rate goes from "
                f"{self.rate(at - 1):.3g} to {self.rate(at):.3g}."
            )
        if self.found:
            return (
                f"AutoWarmup: the loss has passed its minimum; after {self.begin:,.0f} of "
                f"{self.settings.total_steps:,} steps the learning rate goes from "
                f"{self.settings.warmup(self.begin):.3g} back to {self.peak:.3g} and decays."
            )
        return (
            f"AutoWarmup: the loss has not passed a minimum; the warmup ends after "
            f"{self.begin:,.0f} of {self.settings.total_steps:,} steps, at {self.peak:.3g}. If the "
            "loss does not fall from here, train for more epochs, or in a narrower range."
        )
