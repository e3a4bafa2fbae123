"""Holds the extras of `tf_lamb`: optional training methods and tools, each in a folder of its own.

The extras import `tf_lamb`, but `tf_lamb` imports no extra. Importing an extra loads no framework,
because the module that defines a public name is imported only when the name is first used.
"""

import importlib
from collections.abc import Callable

from tf_lamb.api.frontends import keras_of_tensorflow

# A function to pass to `lazily` for a name that an extra defines for Keras 3 and for tf_keras. It
# returns "keras" or "tf_keras", the module for the one that `tf.keras` is.
OF_BOTH = keras_of_tensorflow


def lazily(extra: str, **files: str | Callable[[], str]) -> Callable:
    """Returns a module-level `__getattr__`, which imports each public name when it is first used.

    Args:
        extra: The name of the extra's package, such as "tf_lamb_extras.integers".
        files: For each public name, the module of the package that defines it, such as "model", or
            a function that returns the module's name. The returned `__getattr__` raises
            AttributeError for any other name.
    """

    def __getattr__(name: str):
        if (file := files.get(name)) is None:
            raise AttributeError(f"module {extra!r} has no attribute {name!r}")
        file = file if isinstance(file, str) else file()
        return getattr(importlib.import_module(f"{extra}.{file}"), name)

    return __getattr__
