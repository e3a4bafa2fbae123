"""The mathematics of the package, on numbers and arrays, with the standard library alone.

Recipes in here can still make schedules of Keras and plots, because `tf_lamb/__init__.py` provides
functions that load the modules for that.
"""

from collections.abc import Callable
from typing import Any

_providers: dict[str, Callable[[], Any]] = {}


def provide(**modules: Callable[[], Any]) -> None:
    """Registers functions that load modules above core, by the name that `provided` takes."""
    _providers.update(modules)


def provided(name: str) -> Any:
    """Loads and returns a module above core, by the name under which it was registered."""
    return _providers[name]()
