"""What a schedule may be made of, and whose it is."""

import sys
from collections.abc import Iterable

from tf_lamb.core import checks

_BASE = "LearningRateSchedule"  # of schedules, in every Keras


def rates(**values):
    """Each is a finite number of at least 0."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} must be a number, not {value!r}.")
        if not 0 <= value <= sys.float_info.max:
            raise ValueError(f"{name} must be a finite number >= 0, but it is {value!r}.")


def whole(**values):
    """Each is a count."""
    for name, value in values.items():
        if value is None:
            raise ValueError(f"{name} must be a whole number >= 1, not None.")
        checks.steps(name, value)


def several(schedule, *names):
    """Fields that are lists become tuples."""
    for name in names:
        value = getattr(schedule, name)
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise TypeError(f"{name} must be a list, not {value!r}.")
        object.__setattr__(schedule, name, tuple(value))


def inside(schedule, name, value):
    """What stands inside a schedule is one, too, and of the same Keras."""
    if not callable(value) and not hasattr(value, "value"):
        raise TypeError(f"{name} must be a schedule, such as Constant({value!r}), not {value!r}.")
    bases = (base for base in type(schedule).__mro__ if base.__name__ == _BASE)
    of_host(name, value, next(bases, None))


def of_host(name, value, host):
    """Refuses a schedule of the other Keras, which fails within the first step or when saved.

    Args:
        name: of the argument.
        value: anything.
        host: the base class of schedules in the Keras that is to read it; None is none.
    """
    bases = [base for base in type(value).__mro__ if base.__name__ == _BASE]
    if host is None or not bases or host in bases:
        return
    theirs, ours = (base.__module__.partition(".")[0] for base in (bases[0], host))
    raise TypeError(
        f"{name} is a {type(value).__name__} of {theirs}, and what reads it is of {ours}: take one "
        f"of {ours}.optimizers.schedules or tf_lamb.{ours}.schedules. The schedule of a recipe is "
        f"recipe.schedule(tf_lamb.{ours}.schedules)."
    )
