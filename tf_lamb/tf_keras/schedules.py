"""Learning rate schedules for tf_keras: those of `tf_lamb.core.schedules`, as its class."""

import tf_keras

from tf_lamb.api.schedules import Schedule
from tf_lamb.core import schedules
from tf_lamb.tensorflow import namespace
from tf_lamb.tf_keras import host

_registered = tf_keras.saving.register_keras_serializable(package="tf_lamb")


class _Schedule(Schedule, tf_keras.optimizers.schedules.LearningRateSchedule):
    _host = tf_keras.optimizers.schedules.LearningRateSchedule
    _xp = namespace
    _floatx = staticmethod(tf_keras.backend.floatx)
    _serialize = staticmethod(tf_keras.optimizers.schedules.serialize)

    @staticmethod
    def _deserialize(config):
        return tf_keras.optimizers.schedules.deserialize(host.by_registered_name(config))


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
