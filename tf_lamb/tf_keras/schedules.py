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
class Constant(schedules.Constant, _Schedule): ...


@_registered
class Polynomial(schedules.Polynomial, _Schedule): ...


@_registered
class Cosine(schedules.Cosine, _Schedule): ...


@_registered
class Exponential(schedules.Exponential, _Schedule): ...


@_registered
class MultiStep(schedules.MultiStep, _Schedule): ...


@_registered
class Warmup(schedules.Warmup, _Schedule): ...


@_registered
class Stages(schedules.Stages, _Schedule): ...
