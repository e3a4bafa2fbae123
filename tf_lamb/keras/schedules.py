"""Learning rate schedules for Keras 3.

Each class joins a framework-independent one of `tf_lamb.core.schedules` with Keras's class.
"""

import keras
from keras import ops

from tf_lamb.api.keras_schedules import Schedule
from tf_lamb.core import schedules


def _registered(cls):
    """Registers a class with Keras's serialization, under its name without a leading underscore."""
    name = cls.__name__.removeprefix("_")
    return keras.saving.register_keras_serializable("tf_lamb", name)(cls)


class _Schedule(Schedule, keras.optimizers.schedules.LearningRateSchedule):
    """Joins Keras's class of schedules with `Schedule`.

    It sets the members in which Keras 3 and tf_keras differ.
    """

    _base_schedule = keras.optimizers.schedules.LearningRateSchedule
    _xp = ops
    _floatx = staticmethod(keras.config.floatx)
    _serialize = staticmethod(keras.optimizers.schedules.serialize)
    _deserialize = staticmethod(keras.optimizers.schedules.deserialize)


@_registered
class Warmup(schedules.Warmup, _Schedule): ...


@_registered
class Stages(schedules.Stages, _Schedule): ...


# The schedules below are made by recipes and from Model Garden's settings. They are private,
# because users have Keras's own classes for them.
@_registered
class _Constant(schedules._Constant, _Schedule): ...


@_registered
class _Polynomial(schedules._Polynomial, _Schedule): ...


@_registered
class _Cosine(schedules._Cosine, _Schedule): ...


@_registered
class _Exponential(schedules._Exponential, _Schedule): ...


@_registered
class _MultiStep(schedules._MultiStep, _Schedule): ...
