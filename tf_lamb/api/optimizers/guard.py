"""Counts and reports the steps that are skipped for non-finite gradients or for spikes.

A step is either taken for all variables or skipped for all.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tf_lamb.api.variables import as_int, names_of
from tf_lamb.core.messages import warn
from tf_lamb.core.rules import Rule

ALL_FINITE_TEXT = (
    "All weights are finite. What is not finite is in the batches (check inputs, targets and "
    "sample weights by np.isfinite(x).all()), or arises in the loss or its gradients."
)


def advice_for(rule: Rule) -> str:
    """Returns a sentence, for warnings, on what usually helps if training with this rule diverges.

    It suggests `bounds` only if the rule always has trust ratios. For Muon and SOAP, `bounds` would
    first of all add a trust ratio.
    """
    remedies = ["a longer warmup", "a lower learning rate", "global_clipnorm=1.0"]
    if rule.always_has_ratio:
        if "bounds" in rule.hyper:
            remedies.append("bounds={'trust_ratio': (0.01, 10.0)}")
        remedies.append("biases and normalization excluded from layer adaptation")
    *others, last = remedies
    return f"What usually helps: {', '.join(others)}, and {last}."


class Guard:
    """Holds the counters of the steps that an optimizer skips, and warns of these steps.

    Args:
        name: The name of the optimizer.
        advice: What usually helps a run that diverges, from `advice_for`.
        on_nonfinite: "skip", "raise" or "propagate", as in the optimizer's argument.
        on_spike: None, or the window in steps and the number of deviations above which the norm of
            a gradient is a spike.

    Attributes:
        window: How many gradient norms of past steps are kept; 0 if no spike is skipped.
        deviations: By how many standard deviations a spike is above the mean.
        norms: The variable of these norms, the latest last; None before the build.
        spike_counter: The variable that counts spikes; None before the build.
        move_scale: The function that raises or lowers a dynamic loss scale after a step, as for
            `follow_loss_scale`; None without a dynamic loss scale.
        is_on: Whether a step is checked for gradients that are not finite.
        refusal: The beginning of the error for gradients that are not finite, which ends with the
            names of their variables; None if they raise no error.
        skip_counter: The variable that counts skipped steps; None before the build.
    """

    def __init__(
        self, name: str, advice: str, on_nonfinite: str, on_spike: tuple[int, float] | None
    ):
        self._name, self.advice = name, advice
        self.window, self.deviations = on_spike or (0, 0.0)
        self.norms: Any = None
        self.spike_counter: Any = None
        self.move_scale: Callable | None = None
        self._loss_scale: Callable = lambda: 0.0  # returns the loss scale
        self.is_on = on_nonfinite != "propagate"
        self.refusal = (
            f"{name}: gradients are not finite, and on_nonfinite asks to raise. The step was "
            f"not taken: weights and slots are those of the step before. {advice} Not finite are "
            "the gradients of "
            if on_nonfinite == "raise"
            else None
        )
        self.skip_counter: Any = None
        # Counted at the last load or end of `fit`: the steps taken, the steps skipped as non-finite
        # and the steps skipped as spikes.
        self._steps_at_start = self._skips_at_start = self._spikes_at_start = 0

    def follow_loss_scale(self, move_scale: Callable, scale: Callable) -> None:
        """Turns on the check for non-finite gradients, by which a dynamic loss scale moves.

        Args:
            move_scale: A function that raises or lowers the scale. Its arguments are two boolean
                scalars: whether the micro-batch ends an update, and whether gradients were not
                finite.
            scale: A function without arguments that returns the scale.
        """
        self.is_on, self.move_scale, self._loss_scale = True, move_scale, scale

    def build(self, add_variable: Callable, dtype: Any) -> None:
        """Adds variables: the counters of skipped steps and of spikes, and the norms of past steps.

        Args:
            add_variable: A function that adds a variable of a shape to the optimizer.
            dtype: The dtype of the counters.
        """
        self.add_skip_counter(add_variable, dtype)
        if self.window:
            self.norms = add_variable((self.window,), dtype="float32", name="gradient_norms")
            self.spike_counter = add_variable((), dtype=dtype, name="spiked_steps")

    def add_skip_counter(self, add_variable: Callable, dtype: Any) -> None:
        """Adds the counter of skipped steps, if the guard is on and has none.

        Args:
            add_variable: A function that adds a variable of a shape to the optimizer.
            dtype: The dtype of the counter.
        """
        if self.is_on and self.skip_counter is None:
            self.skip_counter = add_variable((), dtype=dtype, name="skipped_steps")

    def is_searching(self) -> Any:
        """Returns whether the loss scale is above 1, so that it may be the cause of an overflow.

        At a scale of 1 or below, gradients overflow without help of the scale.
        """
        return self._loss_scale() > 1

    @property
    def skip_counters(self) -> list:
        """A list with the variable that counts skipped steps; empty if there is no counter."""
        return [] if self.skip_counter is None else [self.skip_counter]

    @property
    def spike_variables(self) -> list:
        """A list of two variables: the norms of past steps, and the counter of spikes.

        It is empty if no spike is skipped.
        """
        return [self.norms, self.spike_counter] if self.window else []

    @property
    def skip_count(self) -> int:
        """The number of steps skipped because of NaN or Inf. Reading it waits for the device."""
        return 0 if self.skip_counter is None else as_int(self.skip_counter)

    @property
    def spike_count(self) -> int:
        """The number of steps skipped as spikes. Reading it waits for the device."""
        return 0 if self.spike_counter is None else as_int(self.spike_counter)

    def warn_at_end(
        self,
        steps: int,
        waiting: int,
        micro_batches: int,
        find_nonfinite_weights: Callable[[], list],
    ):
        """Warns, at the end of `fit`, about skipped steps, and if `fit` made no update at all.

        Then it records the counts as the start of the next `fit`.

        Args:
            steps: The optimizer steps taken so far.
            waiting: The micro-batches that were added up since the last update.
            micro_batches: The micro-batches of an update.
            find_nonfinite_weights: A function that returns the names of the weights that are not
                finite.
        """
        start = self._steps_at_start, self._skips_at_start, self._spikes_at_start
        self._warn_if_skipped(steps, find_nonfinite_weights)
        self._warn_if_spiked(steps)
        self.record_start(steps)
        if start == (self._steps_at_start, self._skips_at_start, self._spikes_at_start):
            warn_if_waiting(self._name, waiting, micro_batches)

    def record_start(self, steps: int):
        """Records the steps so far, taken and skipped, as the start of the next `fit`.

        It is called after a load and at the end of each `fit`.

        Args:
            steps: The optimizer steps taken so far.
        """
        self._steps_at_start = steps
        self._skips_at_start, self._spikes_at_start = self.skip_count, self.spike_count

    def _warn_if_skipped(self, steps, find_nonfinite_weights):
        """Warns if steps were skipped as non-finite since the last load or end of `fit`.

        It does not warn if the loss scale may be the cause and `fit` took other steps. `steps` is
        the number of all steps taken so far. The warning gives the counts of the whole training.
        """
        skip_count = self.skip_count
        if skip_count != self._skips_at_start and not (
            self.is_searching() and steps > self._steps_at_start
        ):
            cause = self.advice if find_nonfinite_weights() else f"{ALL_FINITE_TEXT} {self.advice}"
            warn(
                f"{self._name}: of {self._tried(steps):,} steps, {skip_count:,} have been skipped "
                "because their gradients were not finite. The loss that fit shows may hide it; "
                "the callback tf_lamb.StopOnDivergence() ends a run where they are many. "
                f"{cause}"
            )

    def _warn_if_spiked(self, steps):
        """Warns if steps were skipped because the norm of their gradient was a spike.

        It does so only if one was skipped since the last load or the last end of `fit`. `steps` is
        the number of all steps taken so far. The warning gives the counts of the whole training.
        """
        spike_count = self.spike_count
        if spike_count != self._spikes_at_start:
            warn(
                f"{self._name}: of {self._tried(steps):,} steps, "
                f"{spike_count:,} have been skipped because their gradient was a spike: longer "
                f"than the mean of {self.window} steps by more than {self.deviations:g} "
                "deviations. If they are many, raise the deviations in on_spike, or lower the "
                "learning rate."
            )

    def _tried(self, steps):
        """Returns how many steps there were so far: `steps` that were taken, and those skipped."""
        return steps + self.skip_count + self.spike_count


def nonfinite_names(
    which_are_finite: Callable, key: Callable, variables: Sequence, trained_variables: Sequence
) -> list[str]:
    """Returns the names of the variables that are not finite.

    Args:
        which_are_finite: A function of a list of variables, which returns for each whether it is
            finite.
        key: A function that returns a key that identifies a variable.
        variables: The variables to check.
        trained_variables: The variables of the optimizer, which are named as in its plan.
    """
    names: dict = {}
    for group in (variables, trained_variables):
        names |= zip(map(key, group), names_of(group), strict=True)
    floats = [variable for variable in variables if "float" in str(variable.dtype)]
    pairs = zip(floats, which_are_finite(floats) if floats else [], strict=True)
    return [names[key(variable)] for variable, is_finite in pairs if not is_finite]


def warn_if_waiting(name: str, waiting: int, micro_batches: int):
    """Warns if micro-batches wait for an update. The caller has checked that `fit` made none.

    Args:
        name: The name of the optimizer.
        waiting: The micro-batches that were added up since the last update.
        micro_batches: The micro-batches of an update.
    """
    if waiting:
        warn(
            f"{name}: fit has changed no weight, for it has made no update: one takes "
            f"{micro_batches:,} batches (gradient_accumulation_steps), and {waiting:,} have come. "
            "They count in the next fit. Train on more batches, or take fewer of them for an "
            "update."
        )
