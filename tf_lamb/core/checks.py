"""Refuse early: what a constructor can know to be wrong, in one sentence with the way out."""

import difflib
import inspect
import math
from collections.abc import Mapping

# name -> (lowest, highest, whether the highest itself is allowed, an example)
RANGES = {
    "learning_rate": (0.0, math.inf, False, "1e-3"),
    "weight_decay": (0.0, math.inf, False, "0.01"),
    "beta_1": (0.0, 1.0, False, "0.9"),
    "beta_2": (0.0, 1.0, False, "0.999"),
    "epsilon": (0.0, math.inf, False, "1e-6"),
    "ema_momentum": (0.0, 1.0, True, "0.99"),
    "clipnorm": (0.0, math.inf, False, "1.0"),
    "clipvalue": (0.0, math.inf, False, "1.0"),
    "global_clipnorm": (0.0, math.inf, False, "1.0"),
}


def number(name: str, value) -> float:
    """The value as a finite float in the range of its name, or an error that says which."""
    low, high, closed, example = RANGES[name]
    interval = f"[{low:g}, {high:g}{']' if closed else ')'}"
    try:
        if isinstance(value, (str, bool)):
            raise TypeError(f"a {type(value).__name__} is no number")
        value_as_float = float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name} must be a number in {interval}, not {value!r}. Try {name}={example}."
        ) from error
    inside = low <= value_as_float < high or (closed and value_as_float == high)
    if not inside:
        raise ValueError(
            f"{name} must be a number in {interval}, but it is {value!r}. Try {name}={example}."
        )
    return value_as_float


def flag(name: str, value) -> bool:
    """The value as it is if it is a bool, or an error."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}.")
    return value


def at_most_one(arguments: Mapping[str, object]) -> None:
    """At most one of these arguments is given."""
    given = {name: value for name, value in arguments.items() if value is not None}
    if len(given) > 1:
        values = " and ".join(f"{name}={value!r}" for name, value in given.items())
        raise ValueError(f"At most one of {', '.join(arguments)} can be set, but got {values}.")


def steps(name: str, value, lowest: int) -> int | None:
    """The value as a whole number of steps, None where it is not given, or an error."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise ValueError(f"{name} must be None or a whole number >= {lowest}, not {value!r}.")
    return value


def text(name: str, value) -> str:
    """The value as it is if it is a string, or an error."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {value!r}, a {type(value).__name__}.")
    return value


def no_unknown(cls: type, unknown: Mapping[str, object]) -> None:
    """No argument is left over; one that is gets the nearest name that the constructor has."""
    known = [name for name in inspect.signature(cls).parameters]
    for name, value in unknown.items():
        near = difflib.get_close_matches(name, known[:-1], n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(known[:-1])}."
        raise TypeError(f"{cls.__name__} has no argument {name!r} (got {name}={value!r}). {hint}")
