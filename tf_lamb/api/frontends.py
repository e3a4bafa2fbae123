"""What the API needs of each Keras, found by a model, an optimizer or a class of it."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class Frontend:
    """One Keras, with this package's half for it.

    Attributes:
        host: The package of the Keras.
        optimizers: The module of our optimizers.
        layers: The module of our layers.
        schedules: The module of our schedules.
        devices: Model -> devices that share a call; raises where several processes train.
        fed: (model, generator of batches, first batch) -> what `fit` reads.
        state_of: Optimizer of the host -> the `Source` that it is for `migrate`, if it is one.
        checkpoints: Loads the module that reads files.
    """

    host: Any
    optimizers: Any
    layers: Any
    schedules: Any
    devices: Callable[[Any], int]
    fed: Callable[[Any, Iterator, Any], Any]
    state_of: Callable[[Any], Any]
    checkpoints: Callable[[], Any]


_OF: dict[str, Frontend] = {}


def keras_of_tensorflow() -> str:
    """The package that `tf.keras` is, as TensorFlow itself decides: "keras" or "tf_keras"."""
    legacy = os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")
    return "tf_keras" if legacy else "keras"


def register(frontend: Frontend) -> None:
    """Makes the frontend known; each does so when it is imported."""
    _OF[frontend.host.__name__] = frontend


def of(thing: Any) -> Frontend:
    """The frontend of the Keras that a model, an optimizer, a layer or a class of them is of.

    Raises:
        TypeError: for what is of neither Keras, or of one whose frontend was not imported.
    """
    kind = thing if isinstance(thing, type) else type(thing)
    roots = [base.__module__.partition(".")[0] for base in kind.__mro__]
    if (root := next((root for root in roots if root in ("keras", "tf_keras")), None)) is None:
        raise TypeError(f"{thing!r:.80} is neither of Keras nor of tf_keras.")
    if root not in _OF:
        raise TypeError(f"{kind.__name__} is of {root}: import tf_lamb.{root} first.")
    return _OF[root]
