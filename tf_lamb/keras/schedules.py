"""Learning rate schedules of this door: those of `tf_lamb.core.schedules`, before Keras 3."""

import dataclasses

import keras
from keras import ops

from tf_lamb.api.schedules import check_host
from tf_lamb.core import schedules

_Host = keras.optimizers.schedules.LearningRateSchedule
_registered = keras.saving.register_keras_serializable(package="tf_lamb")


class _Schedule(schedules.Schedule, _Host):
    """A schedule of the core as a schedule of the host; the host's own may stand inside it."""

    def __call__(self, step):
        return self.value(ops, ops.cast(step, keras.config.floatx()))

    def get_config(self):
        """The fields, as JSON can hold them."""
        fields = (field.name for field in dataclasses.fields(self))
        return {name: _serialized(getattr(self, name)) for name in fields}

    def check_inside(self, name, value):
        """Refuses what is no schedule, or one of the other Keras."""
        super().check_inside(name, value)
        check_host(name, value, _Host)

    @classmethod
    def from_config(cls, config):
        """The schedule again."""
        return cls(**{name: _deserialized(value) for name, value in config.items()})


def _serialized(value):
    if isinstance(value, tuple):
        return [_serialized(each) for each in value]
    return keras.optimizers.schedules.serialize(value) if isinstance(value, _Host) else value


def _deserialized(value):
    if isinstance(value, list):
        return tuple(_deserialized(each) for each in value)
    return keras.optimizers.schedules.deserialize(value) if isinstance(value, dict) else value


@_registered
class Constant(schedules.Constant, _Schedule):
    __doc__ = schedules.Constant.__doc__


@_registered
class Polynomial(schedules.Polynomial, _Schedule):
    __doc__ = schedules.Polynomial.__doc__


@_registered
class Cosine(schedules.Cosine, _Schedule):
    __doc__ = schedules.Cosine.__doc__


@_registered
class Exponential(schedules.Exponential, _Schedule):
    __doc__ = schedules.Exponential.__doc__


@_registered
class MultiStep(schedules.MultiStep, _Schedule):
    __doc__ = schedules.MultiStep.__doc__


@_registered
class Warmup(schedules.Warmup, _Schedule):
    __doc__ = schedules.Warmup.__doc__


@_registered
class Stages(schedules.Stages, _Schedule):
    __doc__ = schedules.Stages.__doc__
