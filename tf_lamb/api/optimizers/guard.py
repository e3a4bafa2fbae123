"""The handling of steps with non-finite gradients: one decision for all variables."""

from collections.abc import Callable, Sequence
from typing import Any

from tf_lamb.api.variables import as_int, is_ours, names_of, unwrapped
from tf_lamb.core.messages import warn

ADVICE = (
    "What usually helps: a longer warmup, a lower learning rate, global_clipnorm=1.0, "
    "bounds={'trust_ratio': (0.01, 10.0)}, and biases and normalization excluded from layer "
    "adaptation."
)

FINITE = (
    "All weights are finite. What is not finite is in the batches (check inputs, targets and "
    "sample weights by np.isfinite(x).all()), or arises in the loss or its gradients."
)


class Guard:
    """Counts the steps that an optimizer skips, and tells of them."""

    def __init__(self, name: str, on_nonfinite: str, on_spike: tuple[int, float] | None):
        self._name = name
        self.window, self.deviations = on_spike or (0, 0.0)  # 0 norms if no spike is skipped
        self.norms: Any = None  # the variable of these norms, the latest last
        self.spiked: Any = None  # the variable that counts spikes
        self.move_scale: Callable | None = None  # a dynamic loss scale, by what became of an update
        self._scale: Callable = lambda: 0.0
        self.is_on = on_nonfinite != "propagate"  # a step is looked at before it is taken
        self.refusal = (  # what a step raises, before it names the variables
            f"{name}: gradients are not finite, and on_nonfinite asks to raise. The step was "
            f"not taken: weights and slots are those of the step before. {ADVICE} Not finite are "
            "the gradients of "
            if on_nonfinite == "raise"
            else None
        )
        self.counter: Any = None  # the variable that counts, once the optimizer is built
        self.weights: Sequence = ()  # what the optimizer trains, likewise
        self._reported = 0  # skipped steps that a warning has counted
        self._reported_spikes = 0
        self._steps = self._tried = 0  # before the next `fit`: taken, and with those skipped

    def scaled(self, move_scale: Callable, scale: Callable) -> None:
        """Under a dynamic loss scale, which is found by steps that overflow: all are skipped."""
        self.is_on, self.move_scale, self._scale = True, move_scale, scale

    def is_searching(self) -> Any:
        """Whether a loss scale may be what overflows: at 1 and below, the gradients do."""
        return self._scale() > 1

    @property
    def counters(self) -> list:
        """The counter that a skipped step adds to, in a list; empty if there is none."""
        return [] if self.counter is None else [self.counter]

    @property
    def spikes(self) -> list:
        """The norms and the counter of spikes; empty if none is skipped."""
        return [self.norms, self.spiked] if self.window else []

    @property
    def skipped(self) -> int:
        """The number of skipped steps; waits for the device."""
        return 0 if self.counter is None else as_int(self.counter)

    @property
    def spikes_so_far(self) -> int:
        """The number of steps skipped as spikes; waits for the device."""
        return 0 if self.spiked is None else as_int(self.spiked)

    def nonfinite(self, finite: Callable, key: Callable, variables: Sequence | None) -> list[str]:
        """The names of those that are not finite, by `finite`; `key` tells variables apart."""
        variables = self.weights if variables is None else variables
        names: dict = {}
        for known in (variables, self.weights):
            names |= zip(map(key, known), names_of(known), strict=True)
        floats = [v for v in variables if "float" in str(v.dtype)]
        pairs = zip(floats, finite(floats) if floats else [], strict=True)
        return [names[key(v)] for v, ok in pairs if not ok]

    def warn_at_end(self, steps: int, waiting: int, each: int, nonfinite: Callable[[], list]):
        """Warns, at the end of `fit`, of what was skipped, and of micro-batches that still wait."""
        tried = self._tried
        self._warn_if_skipped(steps, nonfinite)
        self._warn_if_spiked(steps)
        self.note_start(steps)
        if self._tried == tried:
            warn_if_waiting(self._name, waiting, each)

    def note_start(self, steps: int):
        """Called after a load and after each `fit`: the next has not made these steps."""
        self._steps, self._tried = steps, steps + self.skipped + self.spikes_so_far

    def _warn_if_skipped(self, steps, nonfinite):
        """Not of those by which a loss scale is found, if others were taken."""
        skipped = self.skipped
        if skipped != self._reported and not (self.is_searching() and steps > self._steps):
            cause = ADVICE if nonfinite() else f"{FINITE} {ADVICE}"
            warn(
                f"{self._name}: of {skipped + steps:,} steps, {skipped:,} have been skipped "
                "because their gradients were not finite. The loss that fit shows may hide it; "
                "the callback tf_lamb.StopOnDivergence() ends a run where they are many. "
                f"{cause}"
            )
        self._reported = skipped

    def _warn_if_spiked(self, steps):
        spiked = self.spikes_so_far
        if spiked != self._reported_spikes:
            warn(
                f"{self._name}: of {steps + self.skipped + spiked:,} steps, {spiked:,} have been "
                "skipped because their gradient was a spike: longer than the mean of "
                f"{self.window} steps by more than {self.deviations:g} deviations. If they are "
                "many, raise the deviations in on_spike, or lower the learning rate."
            )
        self._reported_spikes = spiked


def warn_if_waiting(name: str, waiting: int, each: int):
    """Warns of a `fit` without an update, if micro-batches wait for the rest of theirs."""
    if waiting:
        warn(
            f"{name}: fit has changed no weight, for it has made no update: one takes {each:,} "
            f"batches (gradient_accumulation_steps), and {waiting:,} have come. They count in the "
            "next fit. Train on more batches, or take fewer of them for an update."
        )


def guarded(optimizer):
    """The optimizer inside its wrappers; raises `TypeError` if it is not of this package."""
    inner = unwrapped(optimizer)
    if not is_ours(inner):
        raise TypeError(
            "StopOnDivergence reads the optimizers of tf_lamb, not "
            f"{type(inner).__module__}.{type(inner).__qualname__}: compile with one of them, or "
            "leave StopOnDivergence out."
        )
    return inner
