"""What is said at the end of `fit`, if it took more steps than the schedule has."""

from collections.abc import Callable

from tf_lamb.core import schedules
from tf_lamb.core.messages import warn
from tf_lamb.core.recipes.picture import batch


def warn_if_over(optimizer, steps: Callable[[], int]) -> None:
    """Warns, at the end of `fit`, if the last steps were taken at a learning rate of 0.

    Args:
        optimizer: one of this package.
        steps: gives the steps that it has taken; asked only where its schedule comes to 0.
    """
    end = _zero_from(optimizer._learning_rate)
    if end is None or (taken := steps()) <= end:
        return
    recipe = optimizer._recipe
    made = "" if recipe is None else f", as {recipe.title} at {batch(recipe)} has it"
    what = "schedule" if recipe is None else "recipe"
    warn(
        f"{optimizer.name}: the learning rate was 0 in the last {taken - end:,} of {taken:,} "
        f"steps, because its schedule ends after {end:,}{made}. Train with the batch and the "
        f"epochs that the {what} was made for, or make the {what} for those of this run."
    )


def _zero_from(schedule) -> int | None:
    """The step from which the rate stays 0; None where it does not, or a host's own may."""
    if isinstance(schedule, (schedules.Polynomial, schedules.Cosine)):
        falls = getattr(schedule, "power", 1) > 0
        return schedule.steps if falls and schedule.end_learning_rate == 0 else None
    if isinstance(schedule, schedules.Warmup):
        end, begin = _zero_from(schedule.after), schedule.steps
        return end if end is None or schedule.handover == "drop" else begin + end
    if isinstance(schedule, schedules.Stages):
        end = _zero_from(schedule.schedules[-1])
        return None if end is None else sum(schedule.lengths[:-1]) + end
    return None
