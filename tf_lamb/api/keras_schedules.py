"""Makes the schedules of `tf_lamb.core` callable and serializable like the schedules of Keras."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from tf_lamb.core import schedules


class Schedule(schedules.Schedule):
    """Makes a schedule of `tf_lamb.core` a schedule of Keras 3 or tf_keras.

    It is a mixin: a subclass lists it before the `LearningRateSchedule` of its Keras among its
    bases. A field of the schedule may hold one of Keras's own schedules.
    """

    value: Callable
    # The subclasses for each Keras define these.
    _base_schedule: ClassVar[Any]  # Keras's class `LearningRateSchedule`
    _xp: ClassVar[Any]  # the array functions, with NumPy's names
    _floatx: ClassVar[Callable]
    _serialize: ClassVar[Callable]
    _deserialize: ClassVar[Callable]

    def __call__(self, step):
        # Integers stay integers, because float32 does not hold all of them.
        step = self._xp.convert_to_tensor(step)
        is_exact = "int" in str(step.dtype) and self._floatx() != "float64"
        rate = self.value(self._xp, step if is_exact else self._xp.cast(step, self._floatx()))
        return self._xp.cast(rate, self._floatx())

    def checked(self, name: str, value: Any) -> Any:
        """Checks the value of a field as the base class does; refuses schedules of the other Keras.

        Args:
            name: The name of the field, for the error.
            value: A number or a schedule.

        Returns:
            The value.

        Raises:
            TypeError: if the value is a schedule of the other Keras, or neither a rate nor a
                schedule.
            ValueError: if the number is out of range.
        """
        check_host(name, value, self._base_schedule)
        return super().checked(name, value)

    def get_config(self):
        """Returns the fields by name, as values that JSON can hold."""
        fields = (field.name for field in dataclasses.fields(self))  # type: ignore[arg-type]
        return {name: self._serialized(getattr(self, name)) for name in fields}

    @classmethod
    def from_config(cls, config):
        """Makes a schedule from what `get_config` returned."""
        return cls(**{name: cls._deserialized(value) for name, value in config.items()})

    @classmethod
    def _serialized(cls, value):
        """Converts the value of a field to one that JSON can hold; tuples become lists."""
        if isinstance(value, tuple):
            return [cls._serialized(element) for element in value]
        is_schedule = isinstance(value, cls._base_schedule)
        return arrays_to_numbers(cls._serialize(value)) if is_schedule else value

    @classmethod
    def _deserialized(cls, value):
        """Converts a result of `_serialized` back to the value of a field."""
        if isinstance(value, list):
            return tuple(cls._deserialized(element) for element in value)
        return cls._deserialize(arrays_to_numbers(value)) if isinstance(value, dict) else value


def arrays_to_numbers(config: Any) -> Any:
    """Replaces the tensors and arrays in a serialized schedule by their numbers.

    Keras (3.15.1) and tf_keras (2.20.1) write tensors and arrays as dicts that their own schedules
    cannot read again.

    Args:
        config: The config of a schedule, or any part of it.

    Returns:
        A copy with numbers; a `config` that is no dict, list or tuple is returned as it is.
    """
    if type(config) in (list, tuple):
        return type(config)(map(arrays_to_numbers, config))
    if not isinstance(config, Mapping):
        return config
    inner = config.get("config")
    is_array = config.get("class_name") in ("__tensor__", "__numpy__")
    if is_array and isinstance(inner, Mapping) and "value" in inner:
        return inner["value"]
    return {name: arrays_to_numbers(value) for name, value in config.items()}


def to_float_scalar(xp, value):
    """Converts the value of a schedule or function to a scalar that can be multiplied.

    A schedule of Keras may return an integer or a value in half precision. A multiplication by an
    integer would cut off fractions, and one in half precision would round the product.

    Args:
        xp: The array namespace.
        value: The value, as a number or tensor.

    Returns:
        A float64 scalar if the value has that dtype, else a float32 scalar.
    """
    value = xp.convert_to_tensor(value)
    return value if "float64" in str(value.dtype) else xp.cast(value, "float32")


def check_host(name, value, host):
    """Checks that a schedule belongs to this Keras, not to the other one (Keras 3 or tf_keras).

    A schedule of the other Keras would raise an unclear error in the first step, or when it is
    saved.

    Args:
        name: The name of the argument, for the error.
        value: A schedule, or any other value, which passes.
        host: The class `LearningRateSchedule` of this Keras.

    Raises:
        TypeError: for a schedule of the other Keras.
    """
    bases = [base for base in type(value).__mro__ if base.__name__ == "LearningRateSchedule"]
    if not bases or host in bases:
        return
    theirs, ours = (base.__module__.partition(".")[0] for base in (bases[0], host))
    raise TypeError(
        f"{name} is a {type(value).__name__} of {theirs}, and what reads it is of {ours}: take one "
        f"of {ours}.optimizers.schedules or tf_lamb.{ours}.schedules. The schedule of a recipe is "
        f"recipe.schedule(tf_lamb.{ours}.schedules)."
    )
