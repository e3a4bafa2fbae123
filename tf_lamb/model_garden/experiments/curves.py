"""Rescales the learning rate of an experiment to another peak and another number of steps.

All rates of the schedule are multiplied by one factor, and the steps of the decay are stretched in
proportion to the number of steps of the run. The caller passes the new length of warmup.

With Model Garden's own warmups, warmup and decay both count from step 0, so a warmup ends below the
first rate of the decay. A linear `polynomial` decay over 400 steps, for example, has 9/10 of its
first rate after a warmup of 40 steps. The rates are then scaled so that the rate at the end of
warmup is the new peak. If `--params_override` sets the number of steps or the length of warmup, the
schedule is computed for these values.
"""

import dataclasses
from fractions import Fraction
from typing import Any

from tf_lamb.core.recipes.scaling import round_half_up
from tf_lamb.model_garden.experiments import decays

# The names of the settings of schedules whose values are learning rates.
RATES = {
    "learning_rate", "initial_learning_rate", "end_learning_rate", "learning_rates", "values",
    "start", "warmup_learning_rate",
}  # fmt: skip
# The names of the settings of schedules that count steps, from the step `offset` if that is set.
_STEPS = {"steps", "decay_steps", "boundaries"}
# Types of the schedules of Model Garden that this module can rescale.
_SCALABLE = ("constant", "stepwise", "polynomial", "cosine", "exponential")


def multiplied(schedule, factor: float) -> dict:
    """Returns those settings of a schedule that are learning rates, multiplied by a factor."""
    return _each(schedule, RATES, lambda rate: rate * factor)


def stretched(
    schedule,
    stretch: Fraction,
    old_warmup: int = 0,
    new_warmup: int = 0,
    has_end: bool = True,
    new_offset: int | None = None,
) -> dict:
    """Returns those settings of a schedule that count steps, changed for a run of another length.

    Each change of the rate stays at the same fraction of the run.

    Args:
        schedule: The settings of the schedule.
        stretch: The new number of steps of the run, divided by the old one.
        old_warmup: The steps of the old warmup if the schedule counts from the end of warmup, else
            0. Defaults to 0.
        new_warmup: The steps of the new warmup if the schedule counts from the end of warmup, else
            0. Defaults to 0.
        has_end: Whether the settings are steps at which the rate changes or stops changing. False
            if they are a period, such as the `decay_steps` of an exponential decay. Defaults to
            True.
        new_offset: The new value of `offset`, the step at which the decay begins. Defaults to None:
            the old offset times `stretch`, or less if a longer warmup would delay the decay.

    Returns:
        The changed settings, name -> value.
    """
    old_offset = getattr(schedule, "offset", 0) or 0
    old_begin = old_warmup + old_offset
    if new_offset is None:
        # After a longer warmup, the decay begins at the same fraction of the run as before, or at
        # the end of warmup if that is later. A shorter warmup does not lengthen the offset, because
        # at steps before its offset a decay is above its first rate.
        new_offset = min(
            max(round_half_up(old_begin * stretch) - new_warmup, 0),
            round_half_up(old_offset * stretch),
        )
    begin, new_begin = (old_begin, new_warmup + new_offset) if has_end else (0, 0)
    changes = _each(
        schedule, _STEPS, lambda step: max(round_half_up((step + begin) * stretch) - new_begin, 1)
    )
    return {**changes, "offset": new_offset} if old_offset else changes


def _each(schedule, names: set[str], change) -> dict:
    """Returns the settings in `names` that are not 0 or None, with their values changed.

    The function `change` is applied to the value, or to every entry if the value is a list.
    """
    return {
        name: [*map(change, value)] if isinstance(value, list) else change(value)
        for name, value in schedule.as_dict().items()
        if value and name in names
    }


def largest(path: str, rate) -> float:
    """Returns the largest rate in the settings of a schedule.

    Args:
        path: The path of the schedule in `optimizer_config`, for errors.
        rate: The config of the schedule: its `type`, and the settings of that type.

    Raises:
        ValueError: if a schedule of this type cannot be scaled, or none of its settings is a rate.
    """
    if rate.type not in _SCALABLE and not str(rate.type).startswith("tf_lamb_"):
        raise ValueError(
            f"--global_batch_size cannot scale {path}.type={rate.type}, only "
            f"{', '.join(_SCALABLE)} and those of tf_lamb. Write what this batch needs into a YAML"
        )
    rates = [
        value for key, value in rate.get().as_dict().items() if key in RATES and value is not None
    ]
    if not rates:
        raise ValueError(
            f"trainer.optimizer_config.{path}.{rate.type} names no rate to scale. Write one "
            "into a YAML, because a rate of --params_override holds as it is"
        )
    return max(max(entry) if isinstance(entry, list) else entry for entry in rates)


@dataclasses.dataclass(frozen=True)
class Curve:
    """Holds the schedule of an experiment's learning rate, and the warmup before it.

    Attributes:
        rate: The config of the learning rate: its `type`, and the settings of that type.
        warmup_kind: The type of the warmup; None without one.
        warmup: The settings of the warmup.
        override: The settings of the learning rate in `--params_override`, which are not rescaled.
    """

    rate: Any
    warmup_kind: str | None
    warmup: Any
    override: dict

    @property
    def warmup_setting(self) -> str:
        """The name of the setting for the steps of warmup."""
        return "steps" if self.warmup_kind == "tf_lamb" else "warmup_steps"

    @property
    def warmup_steps(self) -> int:
        """The steps of warmup; 0 if there is none."""
        return getattr(self.warmup, self.warmup_setting, None) or 0

    @property
    def decay_begins_behind(self) -> bool:
        """Whether the decay counts its steps from the end of warmup, and not from step 0."""
        return self.warmup_kind == "tf_lamb" and self.warmup.handover == "continuous"

    @property
    def warmup_ends_on_decay(self) -> bool:
        """Whether warmup ends at the rate that the decay, counted from step 0, has at that step.

        The warmups of Model Garden do so.
        """
        return self.warmup is not None and self.warmup_kind != "tf_lamb"

    @property
    def peak(self) -> float:
        """The learning rate where warmup ends."""
        largest_rate = largest("learning_rate", self.rate)
        if not self.warmup_ends_on_decay:
            return largest_rate
        settings = {
            key: self.override.get(key) if value is None else value
            for key, value in self.rate.get().as_dict().items()
        }
        return decays.peak(self.rate.type, settings, self.warmup_steps) or largest_rate

    def rate_to(self, peak: float, stretch: Fraction, warmup_steps: int) -> dict:
        """Returns the settings of the learning rate that change with the peak and the steps.

        Args:
            peak: The new rate where warmup ends.
            stretch: The new number of steps of the run, divided by the old one.
            warmup_steps: The new steps of warmup.

        Raises:
            ValueError: if the decay cannot have the rate `peak` at the end of warmup, because it
                has fallen or ended before.
        """
        rate, kind = self.rate.get(), self.rate.type
        steps_before = (self.warmup_steps, warmup_steps) if self.decay_begins_behind else (0, 0)
        has_end, new_offset = "exponential" not in kind, self.override.get("offset")
        changes = {
            **multiplied(rate, peak / self.peak),
            **stretched(rate, stretch, *steps_before, has_end, new_offset),
        }
        if not self.warmup_ends_on_decay:
            return changes
        settings = {**rate.as_dict(), **changes, **self.override}
        return changes | decays.with_peak(kind, settings, warmup_steps, peak)

    def warmup_to(self, peak: float, steps: int) -> dict:
        """Returns the settings of a warmup that rises to a new peak.

        Args:
            peak: The new rate where warmup ends.
            steps: The new steps of warmup.
        """
        settings = {**self.warmup.as_dict(), **multiplied(self.warmup, peak / self.peak)}
        return {
            "type": self.warmup_kind,
            self.warmup_kind: {**settings, self.warmup_setting: steps},
        }
