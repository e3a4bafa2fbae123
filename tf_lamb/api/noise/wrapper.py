"""An optimizer that stands around another: what it refuses, hands on and saves."""

from collections.abc import Callable
from typing import Any

from tf_lamb.api.variables import step_of
from tf_lamb.api.wrappers import unwrapped
from tf_lamb.core import checks


class Wrapper:
    """Stands before the wrapper of each door, which owns all that touches an array."""

    inner_optimizer: Any
    # The door's.
    name: str
    _host: tuple[type, str]  # its optimizers, and what a refusal says of them
    _wrap: Callable  # takes the inner optimizer over
    _serialize: Callable
    _deserialize: Callable

    def __init__(self, inner, name):
        self._check_inner(inner)
        self._wrap(inner, checks.text("name", name))

    def _check_inner(self, inner):
        """Raises where it cannot stand around an optimizer."""
        own, (host, words), name = type(self).__name__, self._host, type(inner).__name__
        if not isinstance(inner, host):
            raise TypeError(f"{own} stands around an optimizer of {words} {inner!r}.")
        if isinstance(inner, Wrapper):
            raise ValueError(
                f"{own} cannot stand around {name}, which measures already. Take one of the two: "
                "AdaScale, whose noise scale is there as well, or Measured."
            )
        if unwrapped(inner) is not inner:
            raise ValueError(
                f"{own} cannot stand around {name}, which wraps an optimizer itself: put {own} "
                f"around that optimizer, and {name} outside."
            )
        if getattr(inner, "loss_scale_factor", None) is not None:
            raise ValueError(
                f"{own} cannot stand around an optimizer with loss_scale_factor: leave that out, "
                f"and put LossScaleOptimizer around {own}."
            )
        if getattr(inner, "built", getattr(inner, "_built", False)):
            raise ValueError(
                f"{own} needs an optimizer that has not stepped yet, but {inner.name} is built. "
                "Make a new one, for instance with from_config(optimizer.get_config())."
            )

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value):
        self.inner_optimizer.learning_rate = value

    def finalize_variable_values(self, var_list):
        """See base class."""
        self.inner_optimizer.finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, the inner optimizer as its own config."""
        return {"inner": self._serialize(self.inner_optimizer), "name": self.name}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """The optimizer again."""
        return cls(**{**config, "inner": cls._deserialize(config["inner"], custom_objects)})

    @property
    def updates(self) -> int:
        """Steps of the inner optimizer, as a number."""
        return step_of(self.inner_optimizer)
