"""Learning rate schedules for Keras 3: those of `tf_lamb.core.schedules`, as its class."""

import keras
from keras import ops

from tf_lamb.api.schedules import Schedule
from tf_lamb.core import schedules

_registered = keras.saving.register_keras_serializable(package="tf_lamb")


class _Schedule(Schedule, keras.optimizers.schedules.LearningRateSchedule):
    _host = keras.optimizers.schedules.LearningRateSchedule
    _xp = ops
    _floatx = staticmethod(keras.config.floatx)
    _serialize = staticmethod(keras.optimizers.schedules.serialize)
    _deserialize = staticmethod(keras.optimizers.schedules.deserialize)


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
