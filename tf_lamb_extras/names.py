"""The public names of an extra, loaded at their first use: importing the extra is quick."""

import importlib
from collections.abc import Callable

from tf_lamb.api.frontends import keras_of_tensorflow

OF_BOTH = keras_of_tensorflow  # the file of the Keras that `tf.keras` names


def lazily(extra: str, **files: str | Callable[[], str]) -> Callable:
    """A `__getattr__` of an extra's `__init__.py`.

    Args:
        extra: The extra's `__name__`.
        **files: Name -> the extra's file that has it, or what says which.
    """

    def __getattr__(name: str):
        if (file := files.get(name)) is None:
            raise AttributeError(f"module {extra!r} has no attribute {name!r}")
        file = file if isinstance(file, str) else file()
        return getattr(importlib.import_module(f"{extra}.{file}"), name)

    return __getattr__
