"""The mathematics: numbers and arrays only, with the standard library alone.

A recipe makes schedules of Keras and plots all the same: `tf_lamb/__init__.py` provides modules.
"""

from collections.abc import Callable
from typing import Any

_providers: dict[str, Callable[[], Any]] = {}


def provide(**modules: Callable[[], Any]) -> None:
    """Names functions that load a module above core, which `provided` returns when it is asked."""
    _providers.update(modules)


def provided(name: str) -> Any:
    """Loads a module above core by the name under which it was provided."""
    return _providers[name]()
