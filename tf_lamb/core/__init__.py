"""Holds the mathematics of the package: functions of numbers and arrays that need no framework.

The modules in `core` import only each other and the standard library; `recipes/growing.py` also
imports NumPy. Recipes also make Keras schedules and plots, with modules outside of `core`. So that
`core` does not import these, `tf_lamb/__init__.py` registers a function that imports each of them.
"""

from collections.abc import Callable
from typing import Any

_providers: dict[str, Callable[[], Any]] = {}


def provide(**modules: Callable[[], Any]) -> None:
    """Registers functions that import modules outside of `core`.

    Args:
        **modules: Name of a module, "schedules" or "plots" -> a function without arguments that
            imports and returns the module.
    """
    _providers.update(modules)


def provided_module(name: str) -> Any:
    """Imports and returns the module that was registered under a name by `provide`."""
    return _providers[name]()
