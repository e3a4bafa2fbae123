"""Holds the mathematics of the package: functions of numbers and arrays that need no framework.

The modules in `core` import only each other and the standard library; `recipes/growing.py` also
imports NumPy. Recipes also make Keras schedules and plots, for which they need the modules
`schedules` and `plots` outside of `core`. `core` imports neither of these two. Instead,
`tf_lamb/__init__.py` passes two functions to `provide`, one for each module. A recipe calls such a
function when it needs the module: the function imports and returns it.
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
