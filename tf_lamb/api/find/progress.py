"""How far a search is."""

import sys
from typing import Any

from tf_lamb.api import frontends


def is_watched() -> bool:
    """Whether what is printed comes to a terminal or a notebook, and not into a file."""
    return sys.stdout.isatty() or "ipykernel" in sys.modules


class Progress:
    """Keras's progress bar; in a file, one line when it is done.

    Args:
        model: Of the Keras.
        most: That can be done.
        unit: Of it.
    """

    def __init__(self, model: Any, most: int, unit: str):
        verbose = 1 if is_watched() else 2
        self._bar = frontends.of(model).host.utils.Progbar(most, verbose=verbose, unit_name=unit)
        self._done = 0

    def show(self, done: int) -> None:
        """How far it is; not the end."""
        self._done = min(done, self._bar.target - 1)
        self._bar.update(self._done)

    def add(self, more: int) -> None:
        """So much more is done."""
        self.show(self._done + more)

    def end(self) -> None:
        """It is done."""
        self._bar.update(self._bar.target)
