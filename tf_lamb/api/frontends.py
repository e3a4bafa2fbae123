"""Registers the modules and functions for each Keras, and finds them by an object of Keras.

The object is a model, an optimizer or a layer, or the class of one.

A frontend is the part of this package for one Keras: for Keras 3, or for tf_keras.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class Frontend:
    """Holds one Keras and this package's modules and functions for it.

    Attributes:
        host: The package `keras` or `tf_keras`.
        optimizers: This package's module of optimizers for it.
        layers: This package's module of layers for it.
        schedules: This package's module of schedules for it.
        devices: Function: model -> the number of devices that share the batch of a training step.
            It raises ValueError if several processes train the model.
        fit_input: Function: model, iterator of batches, first batch -> the batches in a form that
            `fit` reads.
        call_on_batch: Function: a method of a model such as `train_on_batch`, a batch -> the logs
            that the method returns for the batch.
        migration_source: Function: optimizer of this Keras -> its state as a `Source` for
            `migrate`; None for optimizers that `migrate` cannot read.
        checkpoints: Function without arguments that returns the module that reads checkpoint
            files. The frontend of Keras 3 imports this module in the call, because it needs
            TensorFlow.
        unlisted: Function: model -> the variables and buffers that training may change, but that
            `model.variables` does not list.
    """

    host: Any
    optimizers: Any
    layers: Any
    schedules: Any
    devices: Callable[[Any], int]
    fit_input: Callable[[Any, Iterator, Any], Any]
    call_on_batch: Callable[[Callable, tuple], dict]
    migration_source: Callable[[Any], Any]
    checkpoints: Callable[[], Any]
    unlisted: Callable[[Any], list]


_FRONTENDS: dict[str, Frontend] = {}  # "keras" or "tf_keras" -> its frontend


def keras_of_tensorflow() -> str:
    """Returns the name of the package that `tf.keras` is: "keras" or "tf_keras".

    The environment variable `TF_USE_LEGACY_KERAS` decides, as in TensorFlow itself.
    """
    legacy = os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")
    return "tf_keras" if legacy else "keras"


def register(frontend: Frontend) -> None:
    """Adds a frontend to those that `of` finds; each frontend calls this when it is imported."""
    _FRONTENDS[frontend.host.__name__] = frontend


def of(keras_object: Any) -> Frontend:
    """Returns the frontend of the Keras that an object belongs to.

    Args:
        keras_object: A model, an optimizer or a layer, or the class of one.

    Raises:
        TypeError: if it belongs to neither Keras, or to one whose frontend is not imported.
    """
    kind = keras_object if isinstance(keras_object, type) else type(keras_object)
    roots = [base.__module__.partition(".")[0] for base in kind.__mro__]
    if (root := next((root for root in roots if root in ("keras", "tf_keras")), None)) is None:
        raise TypeError(f"{keras_object!r:.80} is neither of Keras nor of tf_keras.")
    if root not in _FRONTENDS:
        raise TypeError(f"{kind.__name__} is of {root}: import tf_lamb.{root} first.")
    return _FRONTENDS[root]
