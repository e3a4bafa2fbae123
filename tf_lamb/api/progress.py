"""Shows the progress of a search or of `fit_stages`, in a terminal or a notebook."""

import sys
from typing import Any

from tf_lamb.api import frontends

# The most characters of Keras's progress bar, with its color codes. In a notebook, a line that is
# printed over the bar is padded to this length, so that it hides the whole bar.
MAX_BAR_CHARACTERS = 120
# How often a notebook draws the bar, and the pause between two drawings. They are limited because a
# saved notebook may contain every drawing.
MAX_DRAWINGS, MIN_PAUSE_SECONDS = 100, 1.0


def can_print() -> bool:
    """Returns whether the process has an open standard output; a service may have none."""
    return sys.stdout is not None and not getattr(sys.stdout, "closed", False)


def say(text: str, end: str = "\n") -> None:
    """Prints a line, if the process has an open standard output.

    Args:
        text: The line.
        end: The end of the line. Defaults to a line break.
    """
    if not can_print():
        return
    try:
        print(text, end=end, flush=True)
    except (OSError, ValueError):  # the reader of a pipe has ended
        return


class Progress:
    """Shows Keras's progress bar, with lines of text above it.

    If the output goes to a file, only the lines of text are written. The class is a context
    manager; a `with` block that ends without an error fills the bar.

    Args:
        model: A model of the Keras whose bar is shown.
        max_units: The largest number of units of work that can be done.
        verbose: Whether to show anything.
        expected_units: The expected number of units, for which the bar is drawn. If more units are
            done, the length of the bar is doubled, up to `max_units`. Defaults to None:
            `max_units`.
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
        # If its interactive logging is off, Keras writes each update of a bar to the log as a line.
        if verbose and is_watched and utils.is_interactive_logging_enabled():
            options = {} if self._in_terminal else {"interval": MIN_PAUSE_SECONDS}
            self._bar = utils.Progbar(
                min(expected_units or max_units, max_units), unit_name=unit, **options
            )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        if kind is None and self._bar:
            if self._done_units:  # fewer units than expected may be done
                self._bar.target = min(self._done_units, self._bar.target)
            self._update(self._bar.target)
        elif self._bar and self._drawn_units:
            say("")  # ends the line of the bar, before the error is printed

    def add(self, units: int) -> None:
        """Counts units that are done, and draws the bar; it is full only after the `with` block."""
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
        """Prints a line over the bar; the next update draws the bar again, below the line."""
        if not self._verbose:
            return
        if self._bar and self._drawn_units:
            line = f"\r\x1b[K{line}" if self._in_terminal else f"\r{line:<{MAX_BAR_CHARACTERS}}"
        say(line)

    def _update(self, units):
        """Draws the bar for a number of units that are done."""
        self._drawn_units = units
        try:
            self._bar.update(units)
        except (AttributeError, OSError, ValueError):  # the standard output was closed
            self._bar = None
