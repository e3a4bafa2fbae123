"""What the API needs of each Keras, found by a model, an optimizer or a class of it."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class Frontend:
    """One Keras, with this package's half for it."""

    host: Any  # the package of the Keras, and then our modules for it
    optimizers: Any
    layers: Any
    schedules: Any
    devices: Callable[[Any], int]  # of a model, those that share a call; refuses several processes
    fed: Callable[[Any, Iterator, Any], Any]  # model, batches, first batch -> what `fit` reads
    on_batch: Callable[[Callable, tuple], dict]  # a model's train_on_batch, say, batch -> its logs
    state_of: Callable[[Any], Any]  # optimizer of the host -> its `Source` for `migrate`, if any
    checkpoints: Callable[[], Any]  # loads the module that reads files
    unlisted: Callable[[Any], list]  # of a model, what it holds and its Keras does not list


_OF: dict[str, Frontend] = {}


def keras_of_tensorflow() -> str:
    """The package that `tf.keras` is, as TensorFlow itself decides: "keras" or "tf_keras"."""
    legacy = os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")
    return "tf_keras" if legacy else "keras"


def register(frontend: Frontend) -> None:
    """Makes the frontend known; each does so when it is imported."""
    _OF[frontend.host.__name__] = frontend


def of(thing: Any) -> Frontend:
    """The frontend of the Keras that a model, an optimizer, a layer or a class of them is of."""
    kind = thing if isinstance(thing, type) else type(thing)
    roots = [base.__module__.partition(".")[0] for base in kind.__mro__]
    if (root := next((root for root in roots if root in ("keras", "tf_keras")), None)) is None:
        raise TypeError(f"{thing!r:.80} is neither of Keras nor of tf_keras.")
    if root not in _OF:
        raise TypeError(f"{kind.__name__} is of {root}: import tf_lamb.{root} first.")
    return _OF[root]
