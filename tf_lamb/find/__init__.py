"""Searches a learning rate (`find_rate`) and a batch size (`find_batch`) for a model and data."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

from tf_lamb.api.elsewhere import missing_name_text

# Name of each search -> the module that defines it.
_MODULE_BY_SEARCH = {"find_batch": "tf_lamb.find.batch", "find_rate": "tf_lamb.find.rate"}


def lazy_getattr(module: str) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a module that offers the searches, but does not import them.

    Most programs train and never search, and `import tf_lamb` is faster without the twenty modules
    of this package. They are imported when `find_batch` or `find_rate` is first used.

    Args:
        module: The name of the module, for the message of the AttributeError.

    Returns:
        A function: name -> the search; it raises AttributeError for every other name.
    """

    def module_getattr(name: str) -> Any:
        """Returns `find_batch` or `find_rate`.

        Raises:
            AttributeError: for every other name.
        """
        if name in _MODULE_BY_SEARCH:
            return getattr(importlib.import_module(_MODULE_BY_SEARCH[name]), name)
        names = vars(sys.modules[module]).get("__all__", ())
        # With a name Python adds no object, and so no second "Did you mean".
        raise AttributeError(missing_name_text(module, name, names), name=name)

    return module_getattr
