"""Holds the extras of `tf_lamb`: training methods and tools, each complete in one folder.

The extras import `tf_lamb`, which imports none of them. An extra imports the modules of its public
names at their first use, so that importing the extra loads no framework.
"""

import importlib
from collections.abc import Callable

from tf_lamb.api.frontends import keras_of_tensorflow

# A value for `lazily`: the file for the Keras that `tf.keras` is, "keras" or "tf_keras".
OF_BOTH = keras_of_tensorflow


def lazily(extra: str, **files: str | Callable[[], str]) -> Callable:
    """Returns a `__getattr__` for the module of an extra, which imports each name at its first use.

    Args:
        extra: The extra's module name, such as "tf_lamb_extras.integers".
        files: Public name -> the module in the extra's folder that defines it, such as "model", or
            a function that returns this. The result raises AttributeError for any other name.
    """

    def __getattr__(name: str):
        if (file := files.get(name)) is None:
            raise AttributeError(f"module {extra!r} has no attribute {name!r}")
        file = file if isinstance(file, str) else file()
        return getattr(importlib.import_module(f"{extra}.{file}"), name)

    return __getattr__
