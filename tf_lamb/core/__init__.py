"""Holds the mathematics of the package: functions of numbers and arrays, without a framework.

The modules import nothing but the standard library, and `recipes/growing.py` NumPy. Recipes also
make Keras schedules and plots. The modules for that are outside of `core`: `tf_lamb/__init__.py`
passes functions that import them to `provide`.
"""

from collections.abc import Callable
from typing import Any

_providers: dict[str, Callable[[], Any]] = {}


def provide(**modules: Callable[[], Any]) -> None:
    """Registers functions that import modules outside of `core`.

    Args:
        **modules: Name, as `provided_module` takes it -> a function that imports and returns the
            module.
    """
    _providers.update(modules)


def provided_module(name: str) -> Any:
    """Imports and returns the module that `provide` has registered under a name."""
    return _providers[name]()
