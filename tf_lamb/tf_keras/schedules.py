"""Learning rate schedules for tf_keras.

Each class joins a framework-independent class of `tf_lamb.core.schedules` with tf_keras's
`LearningRateSchedule`.
"""

from typing import Any, ClassVar

import tf_keras

from tf_lamb.api.keras_schedules import Schedule
from tf_lamb.core import schedules
from tf_lamb.tensorflow import namespace
from tf_lamb.tf_keras import host


def _registered(cls):
    """Registers a class with Keras's serialization, under its name without a leading underscore."""
    name = cls.__name__.removeprefix("_")
    return tf_keras.saving.register_keras_serializable("tf_lamb", name)(cls)


class _Schedule(Schedule, tf_keras.optimizers.schedules.LearningRateSchedule):
    """Makes the schedules of this package schedules of tf_keras, too.

    The base class `Schedule` is the same for each Keras. It calls the functions that are set below.
    """

    _base_schedule = tf_keras.optimizers.schedules.LearningRateSchedule
    _xp: ClassVar[Any] = namespace
    _floatx = staticmethod(tf_keras.backend.floatx)
    _serialize = staticmethod(tf_keras.optimizers.schedules.serialize)

    @staticmethod
    def _deserialize(config, custom_objects=None):
        """Makes a schedule from its serialized form."""
        config = host.with_registered_class_name(config)
        return tf_keras.optimizers.schedules.deserialize(config, custom_objects)


@_registered
class Warmup(schedules.Warmup, _Schedule): ...


@_registered
class Stages(schedules.Stages, _Schedule): ...


# The schedules below are private: recipes and the settings of Model Garden make them, while users
# take the classes of Keras itself.
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
