"""What a user reads: tables, warnings that point at their line, and errors for what is missing."""

import contextlib
import importlib.util
import sys
import types
import warnings
from collections.abc import Iterator, Sequence

_NOT_THE_USERS = {
    "dataclasses", "jax", "keras", "official", "orbit", "tensorflow", "tf_keras", "tf_lamb",
    "tf_lamb_extras", "torch",
}  # fmt: skip


def warn(message: str) -> None:
    """A `UserWarning` of the nearest line that is neither of this package nor of a host."""
    frame: types.FrameType | None = sys._getframe(1)
    level = 2
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_USERS:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


_CALLED = {
    "official": "the Model Garden", "sklearn": "scikit-learn", "tensorboard": "TensorBoard",
    "tensorflow": "TensorFlow", "tf_keras": "tf-keras",
}  # fmt: skip


def require_installed(room: str, *packages: str, extra: str) -> None:
    """Raises, in no time, where one of the packages that a room imports is not installed."""
    if lacking := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise _lack(room, lacking, extra)


@contextlib.contextmanager
def needed(room: str, extra: str, before: str = "") -> Iterator[None]:
    """Imports inside it say the same of what they lack; `before` is a way out to try first."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = str(error.name).partition(".")[0]
        if name == "tf_lamb":
            raise
        raise _lack(room, [name], extra, before) from error


def _lack(room: str, names: Sequence[str], extra: str, before: str = "") -> ModuleNotFoundError:
    called = " and ".join(_CALLED.get(name, name) for name in names)
    return ModuleNotFoundError(
        f'{room} needs {called}, which this environment lacks: {before}pip install ".[{extra}]".',
        name=names[0],
    )


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """The lines of a table, two blanks between its columns, of which some are aligned right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if i in right else text.ljust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
