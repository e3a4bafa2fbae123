"""Schedules of the core as those of a host: how they are called, and how they are saved."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

from tf_lamb.core import schedules


class Schedule(schedules.Schedule):
    """Stands before the host's class of schedules; one of the host's own may be inside."""

    value: Callable
    # The frontend's.
    _host: ClassVar[type]
    _xp: ClassVar[Any]
    _floatx: Callable
    _serialize: Callable
    _deserialize: Callable

    def __call__(self, step):
        # Whole numbers stay so, as float32 does not hold all of them.
        step = self._xp.convert_to_tensor(step)
        is_exact = "int" in str(step.dtype) and self._floatx() != "float64"
        rate = self.value(self._xp, step if is_exact else self._xp.cast(step, self._floatx()))
        return self._xp.cast(rate, self._floatx())

    def inside(self, name: str, value: Any) -> Any:
        """See base class; a schedule of the other Keras is refused."""
        check_host(name, value, self._host)
        return super().inside(name, value)

    def get_config(self):
        """The fields, as JSON can hold them."""
        fields = (field.name for field in dataclasses.fields(self))  # type: ignore[arg-type]
        return {name: self._serialized(getattr(self, name)) for name in fields}

    @classmethod
    def from_config(cls, config):
        """The schedule again."""
        return cls(**{name: cls._deserialized(value) for name, value in config.items()})

    @classmethod
    def _serialized(cls, value):
        if isinstance(value, tuple):
            return [cls._serialized(each) for each in value]
        return cls._serialize(value) if isinstance(value, cls._host) else value

    @classmethod
    def _deserialized(cls, value):
        if isinstance(value, list):
            return tuple(cls._deserialized(each) for each in value)
        return cls._deserialize(value) if isinstance(value, dict) else value


def factor(xp, value):
    """What a schedule or a function gives, as a scalar that can be multiplied: float32, or float64.

    One of Keras gives what it was given. A whole number would cut off the fraction of what is
    multiplied by it, and half precision would round it.
    """
    value = xp.convert_to_tensor(value)
    return value if "float64" in str(value.dtype) else xp.cast(value, "float32")


def check_host(name, value, host):
    """Refuses a schedule of the other Keras, which fails within the first step or when saved."""
    bases = [base for base in type(value).__mro__ if base.__name__ == "LearningRateSchedule"]
    if not bases or host in bases:
        return
    theirs, ours = (base.__module__.partition(".")[0] for base in (bases[0], host))
    raise TypeError(
        f"{name} is a {type(value).__name__} of {theirs}, and what reads it is of {ours}: take one "
        f"of {ours}.optimizers.schedules or tf_lamb.{ours}.schedules. The schedule of a recipe is "
        f"recipe.schedule(tf_lamb.{ours}.schedules)."
    )
