"""Learning rate schedules of this door: those of `tf_lamb.core.schedules`, before tf_keras."""

import dataclasses

import tensorflow as tf
import tf_keras

from tf_lamb.api.schedules import check_host
from tf_lamb.core import schedules
from tf_lamb.tensorflow import namespace
from tf_lamb.tf_keras import saved

_Host = tf_keras.optimizers.schedules.LearningRateSchedule
_registered = tf_keras.saving.register_keras_serializable(package="tf_lamb")


class _Schedule(schedules.Schedule, _Host):
    """A schedule of the core as a schedule of the host; the host's own may stand inside it."""

    def __call__(self, step):
        return self.value(namespace, tf.cast(step, tf_keras.backend.floatx()))

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
    return tf_keras.optimizers.schedules.serialize(value) if isinstance(value, _Host) else value


def _deserialized(value):
    if isinstance(value, list):
        return tuple(_deserialized(each) for each in value)
    if isinstance(value, dict):
        return tf_keras.optimizers.schedules.deserialize(saved.by_registered_name(value))
    return value


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
