"""Holds what the API needs of each Keras, and finds it by a model, an optimizer or their class."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class Frontend:
    """Holds one Keras and this package's modules and functions for it.

    Attributes:
        host: The package of the Keras.
        optimizers: This package's module of optimizers for it.
        layers: This package's module of layers for it.
        schedules: This package's module of schedules for it.
        devices: Model -> the number of devices that share a call; raises for several processes.
        fed: Model, iterator of batches, first batch -> what `fit` reads.
        on_batch: A method such as a model's `train_on_batch`, and a batch -> its logs.
        state_of: Optimizer of the host -> its `Source` for `migrate`, or a false value.
        checkpoints: Returns the module that reads files, which it imports only then.
        unlisted: Model -> the state that it holds and its Keras does not list.
    """

    host: Any
    optimizers: Any
    layers: Any
    schedules: Any
    devices: Callable[[Any], int]
    fed: Callable[[Any, Iterator, Any], Any]
    on_batch: Callable[[Callable, tuple], dict]
    state_of: Callable[[Any], Any]
    checkpoints: Callable[[], Any]
    unlisted: Callable[[Any], list]


_OF: dict[str, Frontend] = {}  # name of the host -> its frontend


def keras_of_tensorflow() -> str:
    """Returns the name of the package that `tf.keras` is: "keras" or "tf_keras".

    It decides as TensorFlow itself does, by an environment variable.
    """
    legacy = os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")
    return "tf_keras" if legacy else "keras"


def register(frontend: Frontend) -> None:
    """Makes a frontend known; each frontend calls this when it is imported."""
    _OF[frontend.host.__name__] = frontend


def of(thing: Any) -> Frontend:
    """Returns the frontend of the Keras that an object is of.

    Args:
        thing: A model, an optimizer or a layer, or a class of them.

    Raises:
        TypeError: if it is of no Keras, or of one whose frontend is not imported.
    """
    kind = thing if isinstance(thing, type) else type(thing)
    roots = [base.__module__.partition(".")[0] for base in kind.__mro__]
    if (root := next((root for root in roots if root in ("keras", "tf_keras")), None)) is None:
        raise TypeError(f"{thing!r:.80} is neither of Keras nor of tf_keras.")
    if root not in _OF:
        raise TypeError(f"{kind.__name__} is of {root}: import tf_lamb.{root} first.")
    return _OF[root]
