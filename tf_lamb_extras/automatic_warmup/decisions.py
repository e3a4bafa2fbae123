"""Decides when the learning rate stops rising, and from which rate it decays (AutoWU).

`Settings` computes the learning rate of a step, before and after the switch from warmup to decay.
`AutoWUState` records the losses. At the end of an epoch it decides whether to switch, by the tests
in `gaussian_process.py`.
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

# An array namespace for plain Python numbers. It has the functions that `Settings.value` uses.
FLOATS = types.SimpleNamespace(
    cos=math.cos, maximum=max, minimum=min, where=lambda condition, x, y: x if condition else y
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Holds the arguments of AutoWU. The defaults are those of the authors of the method.

    Attributes:
        total_steps: T, the steps of the whole training.
        min_learning_rate: The learning rate at which the warmup begins. Defaults to 1e-5.
        max_learning_rate: The learning rate at the end of the longest warmup. Defaults to 1.0.
        max_warmup_fraction: The longest warmup, as a fraction of T. Defaults to 0.5.
        decay: With "cosine", the default, the rate decays to 0 from the end of the warmup to T.
            With "constant_then_cosine" it decays over the last `cooldown_fraction` of T.
        cooldown_fraction: The fraction of T in which "constant_then_cosine" decays. Defaults to
            0.2.
        confidence: A test passes if the probability that the loss was lower before than it is now
            is above this threshold. Defaults to 0.95.
        patience: The decay begins after this number of epochs in a row in which most tests pass.
            Defaults to 3.
        tests: Tests per epoch, each on another sample of the losses. Defaults to 5.

    Raises:
        TypeError: If `total_steps`, `patience` or `tests` is not a whole number.
        ValueError: If a value is out of its range, or the longest warmup has no step.
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
                is_warmup = name == "max_warmup_fraction"
                why = "a warmup without an end leaves nothing to decay: " if is_warmup else ""
                raise ValueError(
                    f"{name} must be between 0 and 1, {why}it is {getattr(self, name)!r}."
                )
        if self.decay not in DECAYS:
            names = " or ".join(map(repr, DECAYS))
            raise ValueError(f"decay must be {names}, not {self.decay!r}.")
        if self.longest < 1:
            raise ValueError(
                f"max_warmup_fraction={self.max_warmup_fraction:g} of {self.total_steps} steps is "
                "no step at all: train for longer, or take a larger fraction."
            )

    @property
    def longest(self) -> int:
        """The most steps of the warmup, at whose end the rate would be `max_learning_rate`."""
        return int(self.max_warmup_fraction * self.total_steps)

    @property
    def cooldown(self) -> float:
        """The step at which "constant_then_cosine" begins to decay."""
        return (1 - self.cooldown_fraction) * self.total_steps

    def warmup(self, step):
        """Returns the learning rate of the warmup at a step: min (max/min)^(step/longest).

        min and max are `min_learning_rate` and `max_learning_rate`.
        """
        ratio = self.max_learning_rate / self.min_learning_rate
        return self.min_learning_rate * ratio ** (step / self.longest)

    def unfound(self) -> tuple[float, float]:
        """Returns the pair (begin, peak) of the decay after the longest warmup.

        It applies if the tests do not find a minimum of the loss. `begin` is a step, and `peak` the
        learning rate at that step.
        """
        begin = float(self.longest)
        if self.decay == "constant_then_cosine":
            begin = min(begin, self.cooldown)
        return begin, self.warmup(begin)

    def value(self, xp: Any, step, begin, peak):
        """Returns the learning rate after a number of steps.

            warmup(step)                                           step < begin
            peak (1 + cos(pi min(s/S, 1)))/2                       step >= begin

        with s = max(step - d, 0) and S = T - d. T is `total_steps`. d is begin, but with
        "constant_then_cosine" it is the later of begin and `cooldown`.

        Args:
            xp: A namespace of array functions, such as `FLOATS`.
            step: The number of steps, a float.
            begin: The step at which the decay begins, a float.
            peak: The learning rate at which the decay begins.
        """
        decay_begin = begin
        if self.decay == "constant_then_cosine":
            decay_begin = xp.maximum(begin, 0.0 * begin + self.cooldown)
        fraction = xp.maximum(step - decay_begin, 0.0 * step) / (self.total_steps - decay_begin)
        fall = 0.5 * (1.0 + xp.cos(math.pi * xp.minimum(fraction, 1.0 + 0.0 * fraction)))
        # `where` computes both branches. The step is limited, because the exponential growth of the
        # warmup could overflow at late steps.
        rise = self.warmup(xp.minimum(step, 0.0 * step + self.longest))
        return xp.where(step < begin, rise, peak * fall)


# A function that makes the tests at the end of an epoch. Its arguments are the steps of the losses,
# scaled to [0, 1], the losses, and the number of tests. It returns the outcome of each test.
Judge = Callable[[Sequence[float], Sequence[float], int], Sequence[Any]]


class AutoWUState:
    """Decides, from the losses, when the warmup ends, and from which learning rate to decay.

    The learning rate rises until the switch, and decays afterwards. At the end of each epoch of the
    warmup, the steps of all losses so far are scaled to [0, 1], and several tests are made on these
    losses (`gaussian_process.py`). A test gives P, the probability that the loss was lower before
    than it is now, and x, the point in [0, 1] at which the loss was lowest.

        passed      an epoch in which more than half of the tests have P > confidence
        switch      after `patience` such epochs in a row: decay from the mean over the tests of
                    min (now/min)^x, or from the learning rate at the end of the lowest epoch if
                    that is smaller

    Here min and now are the first and the present learning rate of the warmup. The lowest epoch is
    the epoch of the warmup with the smallest mean loss over the last quarter of its steps.

    There is also a switch at the end of the longest warmup, and after an epoch without a finite
    loss. The decay then begins with half of the learning rate at the end of the lowest epoch. If
    the last epoch of the longest warmup is the lowest, there is no switch, and the decay begins
    with the last rate of the warmup.

        watch       after `patience` epochs in a row of the decay in which each loss is above
                    (F + L)/2: halve the peak of the decay

    F is the mean loss of the first epoch, and L that of the last quarter of the lowest epoch. A
    loss above (F + L)/2 means that half of what the warmup has gained is lost. At a switch, and
    when the peak is halved, the caller should restore the weights of the lowest epoch.

    The authors' code differs in two points: the longest warmup always ends without a switch, and
    the peak is never halved.

    Attributes:
        points: Pairs (step, loss), one for every finite loss of the warmup; steps count from 0.
        verdicts: Pairs (step at its end, whether it passed), one for every epoch of the warmup.
        begin: The step at which the decay begins.
        peak: The learning rate at which the decay begins.
        found: Whether there was a switch. False if the decay begins at the last rate of the longest
            warmup, and before the decay.
        watched: Pairs (step at its end, whether each loss was above (F + L)/2), one for every epoch
            of the decay.
        cuts: Pairs (step, new peak), one for every time that the peak was halved.

    Args:
        settings: The arguments of AutoWU.
        judge: A function that makes the tests. Its arguments are the steps of the losses, scaled to
            [0, 1], the losses, and the number of tests. Defaults to `gaussian_process.tests`.
    """

    def __init__(self, settings: Settings, judge: Judge = gaussian_process.tests):
        self.settings, self._judge = settings, judge
        self.points: list[tuple[float, float]] = []
        self.verdicts: list[tuple[int, bool]] = []
        self.begin, self.peak = settings.unfound()
        self.found = False
        self.watched: list[tuple[int, bool]] = []
        self.cuts: list[tuple[int, float]] = []
        self._losses: list[float] = []  # the losses of the present epoch, if in the decay

    def rate(self, step: float) -> float:
        """Returns the learning rate after a number of steps."""
        return self.settings.value(FLOATS, float(step), self.begin, self.peak_at(step))

    def peak_at(self, step: float = math.inf) -> float:
        """Returns the peak of the decay, after it was halved as often as it was up to a step."""
        cuts = (peak for cut_step, peak in reversed(self.cuts) if cut_step <= step)
        return next(cuts, self.peak)

    def is_rising(self, step: float) -> bool:
        """Returns whether a step is part of the warmup."""
        return step < self.begin

    def record(self, step: float, loss: float) -> None:
        """Records the loss of a step, but not a loss of the warmup that is not finite.

        Args:
            step: The step, from 0. If `loss` is the mean loss of several steps, it is their mean,
                which may be a fraction.
            loss: The loss of the step.
        """
        if not self.is_rising(step):
            self._losses.append(loss)
        elif math.isfinite(loss):
            self.points.append((step, loss))

    def end_epoch(self, step: int, is_kept: bool = True) -> bool:
        """Ends an epoch, and decides whether to switch or to lower the peak.

        Args:
            step: The number of steps so far.
            is_kept: Whether the caller has a copy of the weights of the lowest epoch. Defaults to
                True.

        Returns:
            Whether the caller should restore the weights of step `lowest`.

        Raises:
            FloatingPointError: If an epoch of the warmup had no finite loss, and there are no
                earlier weights to restore.
        """
        last_epoch_end = self.verdicts[-1][0] if self.verdicts else 0
        if self.found or last_epoch_end >= self.begin or self.watched:
            return self._watch(step)
        if not self.points or self.points[-1][0] < last_epoch_end:
            if self.verdicts and is_kept:
                return self._switch(step, self.settings.warmup(self.lowest) / 2)
            raise FloatingPointError(
                f"No loss of the steps {last_epoch_end:,} to {step:,} is finite: the minimum that "
                f"AutoWarmup waits for cannot be found. At step {step:,} the learning rate has "
                f"come to {self.rate(step):.3g}. Go on from the last backup with a smaller "
                "max_learning_rate, or with on_nonfinite='skip'; nothing was saved after it."
            )
        x, y = zip(*((point_step / step, loss) for point_step, loss in self.points), strict=True)
        tests = self._judge(x, y, self.settings.tests)
        votes = sum(test.probability > self.settings.confidence for test in tests)
        self.verdicts.append((step, 2 * votes > len(tests)))
        self._losses = []
        rate_at_lowest = self.settings.warmup(self.lowest)
        if self._lately([passed for _, passed in self.verdicts]):
            rate, min_rate = self.settings.warmup(step), self.settings.min_learning_rate
            rates = [min_rate * (rate / min_rate) ** test.lowest for test in tests]
            return self._switch(step, min(sum(rates) / len(rates), rate_at_lowest))
        if self.is_rising(step) or self.lowest == step:
            return False
        return self._switch(step, rate_at_lowest / 2)

    def _switch(self, step, peak):
        """Begins the decay at this step, from the rate `peak`.

        Returns True, which tells the caller of `end_epoch` to restore the weights of step `lowest`.
        """
        self.begin, self.peak, self.found, self._losses = float(step), peak, True, []
        return True

    def _watch(self, step):
        """Ends an epoch of the decay, and halves the peak if losses were too high for too long.

        Returns:
            Whether the peak was halved.
        """
        losses, self._losses = self._losses, []
        # The limit `halfway` can be compared only if the epoch had a step of the decay, and if an
        # epoch of the warmup has ended before.
        if not losses or not self.verdicts:
            return False
        # NaN is not <= anything, so that a loss of NaN counts as above the limit.
        self.watched.append((step, not any(loss <= self.halfway for loss in losses)))
        since = self.cuts[-1][0] if self.cuts else 0
        if not self.is_lost(since):
            return False
        self.cuts.append((step, self.peak_at(step) / 2))
        return True

    def is_lost(self, since: int = 0) -> bool:
        """Returns whether all losses of the last `patience` epochs of the decay were too high.

        A loss is too high if it is above `halfway`. Only epochs that end after step `since` count.
        The result is False if these are fewer than `patience`.
        """
        return self._lately([lost for epoch_end, lost in self.watched if epoch_end > since])

    def _lately(self, flags):
        """Returns whether the last `patience` values of `flags` are all true.

        Each flag is the result of one epoch. With fewer flags than `patience` the result is False.
        """
        recent = flags[-self.settings.patience :]
        return len(recent) == self.settings.patience and all(recent)

    @property
    def halfway(self) -> float:
        """The loss (F + L)/2, the limit for losses of the decay.

        F is the mean loss of the first epoch, and L that of the last quarter of the lowest epoch of
        the warmup. An epoch of the warmup must have ended.
        """
        first_epoch = [loss for step, loss in self.points if step < self.verdicts[0][0]]
        return (sum(first_epoch) / len(first_epoch) + min(self._tails().values())) / 2

    @property
    def lowest(self) -> int:
        """The step at the end of the lowest epoch of the warmup; -1 if no epoch has ended.

        The lowest epoch has the smallest mean loss over the last quarter of its steps.
        """
        tails = self._tails()
        return min(tails, key=tails.__getitem__, default=-1)

    def _tails(self):
        """Returns a dict from the last step of each warmup epoch to the mean loss of its end.

        The mean is over the losses of the last quarter of the epoch.
        """
        ends = [step for step, _ in self.verdicts]
        return {end: self._tail(begin, end) for begin, end in zip([0, *ends], ends, strict=False)}

    def _tail(self, begin, end):
        """Returns the mean loss over the last quarter of the steps from `begin` to `end`."""
        begin_index, end_index = (bisect.bisect_left(self.points, (step,)) for step in (begin, end))
        losses = [loss for _, loss in self.points[begin_index:end_index]]
        losses = losses[-max(len(losses) // 4, 1) :]
        # The list is not empty, because every epoch in `verdicts` has a finite loss.
        return sum(losses) / len(losses)

    def state(self) -> dict:
        """Returns the losses and decisions so far, as a dict that can be written as JSON."""
        switch = [self.begin, self.peak] if self.found else None
        return {
            "total_steps": self.settings.total_steps, "points": self.points,
            "verdicts": self.verdicts, "switch": switch, "watched": self.watched,
            "cuts": self.cuts,
        }  # fmt: skip

    def restore(self, state: dict, step: int) -> None:
        """Restores the losses and decisions up to a step.

        Args:
            state: A dict that `state()` returned. What it has of later steps is ignored.
            step: The number of steps.
        """
        self.points = [(recorded, loss) for recorded, loss in state["points"] if recorded < step]
        self.verdicts = [
            (recorded, passed) for recorded, passed in state["verdicts"] if recorded <= step
        ]
        switch = state["switch"]
        self.found = switch is not None and switch[0] <= step
        self.begin, self.peak = switch if self.found else self.settings.unfound()
        # A state that an earlier version saved has neither "watched" nor "cuts".
        self.watched = [
            (recorded, lost) for recorded, lost in state.get("watched", ()) if recorded <= step
        ]
        self.cuts = [
            (recorded, peak) for recorded, peak in state.get("cuts", ()) if recorded <= step
        ]

    def __str__(self):
        if self.cuts:
            step, peak = self.cuts[-1]
            return (
                f"AutoWarmup: half of what the warmup gained is lost again; after {step:,} of "
                f"{self.settings.total_steps:,} steps the learning rate goes from "
                f"{self.rate(step - 1):.3g} to {self.rate(step):.3g}."
            )
        if self.found:
            if self._lately([passed for _, passed in self.verdicts]):
                reason = "the loss has passed its minimum"
            elif self.verdicts[-1][0] < self.begin:  # the last epoch had no finite loss
                reason = "no loss of an epoch was finite"
            else:
                reason = "the warmup has come to its end, and the loss is above its lowest"
            return (
                f"AutoWarmup: {reason}; after {self.begin:,.0f} of "
                f"{self.settings.total_steps:,} steps the learning rate goes from "
                f"{self.settings.warmup(self.begin):.3g} back to {self.peak:.3g} and decays."
            )
        return (
            f"AutoWarmup: the loss has not passed a minimum; the warmup ends after "
            f"{self.begin:,.0f} of {self.settings.total_steps:,} steps, at {self.peak:.3g}. If the "
            "loss does not fall from here, train for more epochs, or in a narrower range."
        )
