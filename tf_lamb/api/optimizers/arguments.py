"""The answer to an argument that an optimizer does not have: which one it may have been."""

import difflib
import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from tf_lamb.api import frontends

Constructor = TypeVar("Constructor", bound=Callable[..., None])

# What TensorFlow Addons, Model Garden, torch, apex and optax call what is here, too.
_ELSEWHERE = {
    "lr": ("learning_rate",),
    "weight_decay_rate": ("weight_decay",),
    "wd": ("weight_decay",),
    "eps": ("epsilon",),
    "betas": ("beta_1", "beta_2"),
    "b1": ("beta_1",),
    "b2": ("beta_2",),
    "eeta": ("trust_coefficient",),
    "max_grad_norm": ("global_clipnorm",),
}
_LIKENESS = 0.75  # of 1; below it, names of other things are called alike


def answered(constructor: Constructor) -> Constructor:
    """Has a constructor answer unknown arguments with the one of its arguments that was meant.

    Its signature stays; a subclass may take what it likes.
    """
    known = [*inspect.signature(constructor).parameters][1:]

    @functools.wraps(constructor)
    def __init__(self, *args: Any, **arguments: Any) -> None:
        for name in arguments:
            if name not in known:
                raise TypeError(answer(type(self), name, known))
        constructor(self, *args, **arguments)

    return __init__  # type: ignore[return-value]


def answer(cls: type, name: str, known: Collection[str]) -> str:
    """A sentence on an argument that a class does not have, and the way out."""
    unknown = f"{cls.__name__} has no argument {name!r}"
    theirs = _ELSEWHERE.get(name, ())
    if theirs and set(theirs) <= set(known):
        return f"{unknown}: pass it as {' and '.join(theirs)}."
    if name == "decay" and "learning_rate" in known:
        host = frontends.of(cls).host.__name__
        return (
            f"{unknown}, the decay of the learning rate: pass learning_rate="
            f"{host}.optimizers.schedules.InverseTimeDecay(rate, 1, decay)."
        )
    if meant := difflib.get_close_matches(name, known, 1, _LIKENESS):
        return f"{unknown}: did you mean {meant[0]}?"
    return f"{unknown}: it takes {', '.join(known)}."
