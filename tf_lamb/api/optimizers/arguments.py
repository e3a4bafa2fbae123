"""The error for an argument that an optimizer does not have, which names the right one."""

import difflib
import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from tf_lamb.api import frontends

Constructor = TypeVar("Constructor", bound=Callable[..., None])

# Names in TensorFlow Addons, Model Garden, torch, apex and optax -> the names here.
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
_LIKENESS = 0.75  # least similarity, of 1; below it, names of other things would count as similar


def answered(constructor: Constructor) -> Constructor:
    """Wraps a constructor, so that its error for an unknown argument names the right one.

    The signature stays the same. A subclass may take other arguments.
    """
    accepted = [*inspect.signature(constructor).parameters][1:]

    @functools.wraps(constructor)
    def __init__(self, *args: Any, **arguments: Any) -> None:
        for name in arguments:
            if name not in accepted:
                raise TypeError(answer(type(self), name, accepted))
        constructor(self, *args, **arguments)

    return __init__  # type: ignore[return-value]


def answer(cls: type, name: str, known: Collection[str]) -> str:
    """Returns a sentence that says which argument to pass instead of one that a class lacks.

    Args:
        cls: The class of optimizers.
        name: The argument that was passed.
        known: The arguments that the class has.
    """
    unknown = f"{cls.__name__} has no argument {name!r}"
    equivalents = _ELSEWHERE.get(name, ())
    if equivalents and set(equivalents) <= set(known):
        return f"{unknown}: pass it as {' and '.join(equivalents)}."
    if name == "decay" and "learning_rate" in known:
        host = frontends.of(cls).host.__name__
        return (
            f"{unknown}, the decay of the learning rate: pass learning_rate="
            f"{host}.optimizers.schedules.InverseTimeDecay(rate, 1, decay)."
        )
    if matches := difflib.get_close_matches(name, known, 1, _LIKENESS):
        return f"{unknown}: did you mean {matches[0]}?"
    return f"{unknown}: it takes {', '.join(known)}."
