"""Extras beside the large-batch optimizers of `tf_lamb`, one a folder, each whole in it.

They import `tf_lamb`, which imports none of them. An extra loads its public names at their first
use, so that importing it loads no framework.
"""

import importlib
from collections.abc import Callable

from tf_lamb.api.frontends import keras_of_tensorflow

OF_BOTH = keras_of_tensorflow  # the file of the Keras that `tf.keras` names


def lazily(extra: str, **files: str | Callable[[], str]) -> Callable:
    """A `__getattr__` of an extra: the file that has each name, or a function that names it."""

    def __getattr__(name: str):
        if (file := files.get(name)) is None:
            raise AttributeError(f"module {extra!r} has no attribute {name!r}")
        file = file if isinstance(file, str) else file()
        return getattr(importlib.import_module(f"{extra}.{file}"), name)

    return __getattr__
