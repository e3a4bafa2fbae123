"""The mathematics: numbers and arrays only, with the standard library alone.

Nothing here imports a framework, so every line can be run, tested and checked against its paper
with NumPy, or with no array library at all. A recipe makes schedules of Keras and plots all the
same: `tf_lamb/__init__.py` provides the modules for that.
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
