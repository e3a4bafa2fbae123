"""Shows the progress of a search or of `fit_stages`, in a terminal or a notebook."""

import sys
from typing import Any

from tf_lamb.api import frontends

MAX_BAR_CHARACTERS = (
    120  # characters of Keras's bar with its colors: a line in a notebook is padded to them
)
# Those of the bar in a notebook, of which a saved cell may keep each.
MAX_DRAWINGS, MIN_PAUSE_SECONDS = 100, 1.0


def can_print() -> bool:
    """Returns whether there is a standard output: a service may have none, or have closed it."""
    return sys.stdout is not None and not getattr(sys.stdout, "closed", False)


def say(text: str, end: str = "\n") -> None:
    """Prints a line, if there is somewhere to print it.

    Args:
        text: The line.
        end: The end of the line. Defaults to a line break.
    """
    if not can_print():
        return
    try:
        print(text, end=end, flush=True)
    except (OSError, ValueError):  # nobody reads the pipe any longer
        return


class Progress:
    """Shows Keras's progress bar with lines of text above it; in a file, the lines alone.

    It is a context manager, which fills the bar at the end of its block.

    Args:
        model: A model of the Keras whose bar is shown.
        most: The most units that can be done.
        verbose: Whether to show anything.
        about: The expected number of units, at which the bar would be full. When they are done, the
            bar is extended to twice as many. Defaults to None: `most`.
        unit: The name of a unit. Defaults to "example".
    """

    def __init__(
        self,
        model: Any,
        max_units: int,
        verbose: bool,
        expected_units: int | None = None,
        unit: str = "example",
    ):
        self._verbose, self._done_units, self._drawn_units = verbose, 0, 0
        self._bar: Any = None
        self._max_units = max_units
        self._in_terminal = can_print() and getattr(sys.stdout, "isatty", bool)()
        utils = frontends.of(model).host.utils
        is_watched = can_print() and (self._in_terminal or "ipykernel" in sys.modules)
        # Without its interactive logging Keras would log a line for every update.
        if verbose and is_watched and utils.is_interactive_logging_enabled():
            options = {} if self._in_terminal else {"interval": MIN_PAUSE_SECONDS}
            self._bar = utils.Progbar(
                min(expected_units or max_units, max_units), unit_name=unit, **options
            )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        if kind is None and self._bar:
            if self._done_units:  # the end may come before all is done
                self._bar.target = min(self._done_units, self._bar.target)
            self._update(self._bar.target)
        elif self._bar and self._drawn_units:
            say("")  # the error is printed below the bar

    def add(self, units: int) -> None:
        """Adds units that are done. The bar gets full only at the end of the block."""
        if not self._bar:
            return
        self._done_units += units
        units_done = min(self._done_units, self._max_units - 1)
        while units_done >= self._bar.target:
            self._bar.target = min(2 * self._bar.target, self._max_units)
        min_units = 1 if self._in_terminal else self._bar.target // MAX_DRAWINGS
        if units_done - self._drawn_units >= min_units:
            self._update(units_done)

    def say(self, line: str) -> None:
        """Prints a line in the place of the bar; the next update draws the bar below it."""
        if not self._verbose:
            return
        if self._bar and self._drawn_units:
            line = f"\r\x1b[K{line}" if self._in_terminal else f"\r{line:<{MAX_BAR_CHARACTERS}}"
        say(line)

    def _update(self, units):
        """Draws the bar with so many units done."""
        self._drawn_units = units
        try:
            self._bar.update(units)
        except (AttributeError, OSError, ValueError):  # the standard output is gone
            self._bar = None
