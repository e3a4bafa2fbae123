"""How far a search or a staged training is, for somebody who watches."""

import sys
from typing import Any

from tf_lamb.api import frontends

# Characters of Keras's bar with its colors, which a line in a notebook has to cover.
WIDEST = 120
PARTS, PAUSE = 100, 1.0  # of a notebook's bar: a cell that is saved may keep every one, and seconds


def can_print() -> bool:
    """Whether there is a standard output: a service may have none, or have closed it."""
    return sys.stdout is not None and not getattr(sys.stdout, "closed", False)


def say(text: str, end: str = "\n") -> None:
    """Prints a line, if there is somewhere to print it."""
    if not can_print():
        return
    try:
        print(text, end=end, flush=True)
    except (OSError, ValueError):  # a pipe that nobody reads any longer
        return


class Progress:
    """The progress bar of a model's Keras, and lines above it; in a file, the lines alone.

    A context manager, which ends the bar.

    Args:
        model: Of the Keras.
        most: What can be done.
        verbose: Whether to show anything.
        about: What is rather done; a bar that comes there goes on to twice as much. Defaults to
            None: all.
        unit: The name of one. Defaults to "example".
    """

    def __init__(
        self, model: Any, most: int, verbose: bool, about: int | None = None, unit: str = "example"
    ):
        self._verbose, self._done, self._shown = verbose, 0, 0
        self._bar: Any = None
        self._most = most
        self._in_terminal = can_print() and getattr(sys.stdout, "isatty", bool)()
        utils = frontends.of(model).host.utils
        is_watched = can_print() and (self._in_terminal or "ipykernel" in sys.modules)
        # Without its interactive logging Keras would log a line for every update.
        if verbose and is_watched and utils.is_interactive_logging_enabled():
            pause = {} if self._in_terminal else {"interval": PAUSE}
            self._bar = utils.Progbar(min(about or most, most), unit_name=unit, **pause)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        if kind is None and self._bar:
            if self._done:  # the end may come before all is done
                self._bar.target = min(self._done, self._bar.target)
            self._update(self._bar.target)
        elif self._bar and self._shown:
            say("")  # what ends it is printed below the bar

    def add(self, more: int) -> None:
        """So much more is done; not the end."""
        if not self._bar:
            return
        self._done += more
        done = min(self._done, self._most - 1)
        while done >= self._bar.target:
            self._bar.target = min(2 * self._bar.target, self._most)
        part = 1 if self._in_terminal else self._bar.target // PARTS
        if done - self._shown >= part:
            self._update(done)

    def say(self, line: str) -> None:
        """Prints a line in the place of the bar, which is drawn anew below it."""
        if not self._verbose:
            return
        if self._bar and self._shown:
            line = f"\r\x1b[K{line}" if self._in_terminal else f"\r{line:<{WIDEST}}"
        say(line)

    def _update(self, done):
        self._shown = done
        try:
            self._bar.update(done)
        except (AttributeError, OSError, ValueError):  # the standard output is gone
            self._bar = None
