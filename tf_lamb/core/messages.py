"""Makes the texts of tables, differences, warnings, and errors for missing packages."""

import contextlib
import importlib.util
import sys
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence

_NOT_THE_USERS = {
    "dataclasses", "jax", "keras", "official", "orbit", "tensorflow", "tf_keras", "tf_lamb",
    "tf_lamb_extras", "torch",
}  # fmt: skip


def warn(message: str) -> None:
    """Issues a `UserWarning` that shows a line of the user's code.

    That is the innermost call of the stack outside of this package and of the frameworks.
    """
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
    """Checks that packages are installed, without importing them.

    Args:
        room: What needs the packages, as the error names it.
        *packages: The names of the packages, as they are imported.
        extra: The extra of this package that installs them.

    Raises:
        ModuleNotFoundError: if one of the packages is not installed.
    """
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise _lack(room, missing, extra)


@contextlib.contextmanager
def needed(room: str, extra: str, before: str = "") -> Iterator[None]:
    """Makes failing imports in the `with` block raise the error of `require_installed`.

    Args:
        room: What needs the packages, as the error names it.
        extra: The extra of this package that installs them.
        before: Advice that the error puts before the `pip` command. Defaults to none.

    Raises:
        ModuleNotFoundError: if a package that is imported in the block is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = str(error.name).partition(".")[0]
        if name == "tf_lamb":
            raise
        raise _lack(room, [name], extra, before) from error


def _lack(room: str, names: Sequence[str], extra: str, before: str = "") -> ModuleNotFoundError:
    """Returns the error for missing packages.

    Args:
        room, extra, before: As in `needed`.
        names: The names of the packages, as they are imported.
    """
    packages = " and ".join(_CALLED.get(name, name) for name in names)
    return ModuleNotFoundError(
        f'{room} needs {packages}, which this environment lacks: {before}pip install ".[{extra}]".',
        name=names[0],
    )


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Formats a table, with two blanks between columns.

    Args:
        rows: The cells of each row.
        right: The positions of the columns that are aligned right.

    Returns:
        The lines.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if i in right else text.ljust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


_MOST_DIFFERENCES = 5  # a message shows no more than these, and counts the others


def differences(texts: Mapping[str, Mapping[str, str]]) -> str:
    """Describes the settings, or other facts, in which processes differ; it shows at most five.

    Args:
        texts: Process -> name of a setting -> its value as text. Each process is compared with the
            first one.

    Returns:
        Such as "seed is 1 in worker 0, 2 in worker 1; 3 more"; "" if all agree.

    Example:

    >>> differences({"worker 0": {"seed": "1"}, "worker 1": {"seed": "2"}})
    'seed is 1 in worker 0, 2 in worker 1'
    """
    (chief, chief_texts), *others = texts.items()
    descriptions: dict[str, str] = {}
    for process, its_texts in others:
        for name in {**chief_texts, **its_texts}:
            expected, text = chief_texts.get(name, "not there"), its_texts.get(name, "not there")
            if expected != text:
                descriptions.setdefault(
                    name, f"{name} is {expected} in {chief}, {text} in {process}"
                )
    parts = [*descriptions.values()][:_MOST_DIFFERENCES]
    if len(descriptions) > len(parts):
        parts.append(f"{len(descriptions) - len(parts)} more")
    return "; ".join(parts)
