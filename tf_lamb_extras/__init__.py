"""Holds the extras beside the large-batch optimizers of `tf_lamb`, each complete in one folder.

The extras import `tf_lamb`, which imports none of them. An extra loads its public names at their
first use, so that importing it loads no framework.
"""

import importlib
from collections.abc import Callable

from tf_lamb.api.frontends import keras_of_tensorflow

# A function that returns the file of the Keras that `tf.keras` names: "keras" or "tf_keras".
OF_BOTH = keras_of_tensorflow


def lazily(extra: str, **files: str | Callable[[], str]) -> Callable:
    """Returns a `__getattr__` for the module of an extra, which imports each name at its first use.

    Args:
        extra: The extra's module name, such as "tf_lamb_extras.integers".
        files: The public names. A value is the file in the extra's folder that has the name, or a
            function that returns this file. The result raises AttributeError for any other name.
    """

    def __getattr__(name: str):
        if (file := files.get(name)) is None:
            raise AttributeError(f"module {extra!r} has no attribute {name!r}")
        file = file if isinstance(file, str) else file()
        return getattr(importlib.import_module(f"{extra}.{file}"), name)

    return __getattr__
