"""Makes messages: warnings, errors for missing packages, tables, and differences of settings."""

import contextlib
import importlib.util
import sys
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence

_NOT_USER_PACKAGES = {
    "dataclasses", "jax", "keras", "official", "orbit", "tensorflow", "tf_keras", "tf_lamb",
    "tf_lamb_extras", "torch",
}  # fmt: skip


def warn(message: str) -> None:
    """Issues a `UserWarning` that points to a line of the user's code.

    The line is the innermost call on the stack that is neither in this package nor in a framework,
    such as Keras.
    """
    frame: types.FrameType | None = sys._getframe(1)
    stack_level = 2
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_USER_PACKAGES:
        frame, stack_level = frame.f_back, stack_level + 1
    warnings.warn(message, stacklevel=stack_level)


_PACKAGE_TITLES = {
    "official": "the Model Garden", "sklearn": "scikit-learn", "tensorboard": "TensorBoard",
    "tensorflow": "TensorFlow", "tf_keras": "tf-keras",
}  # fmt: skip


def require_installed(feature: str, *packages: str, install: str) -> None:
    """Checks that packages are installed, without importing them.

    Args:
        feature: What needs the packages; the error begins with it.
        *packages: The names of the packages, as they are imported.
        install: The arguments of `pip install` that install them beside a clone and beside a wheel;
            what else to know of the command may follow after a comma.

    Raises:
        ModuleNotFoundError: if one of the packages is not installed.
    """
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise _missing_packages_error(feature, missing, install)


@contextlib.contextmanager
def optional_imports(feature: str, install: str = "", advice: str = "") -> Iterator[None]:
    """Turns a failed import in the `with` block into an error that says how to install it.

    Args:
        feature: What needs the packages; the error begins with it.
        install: The arguments of `pip install` that install them beside a clone and beside a wheel;
            what else to know of the command may follow after a comma. Defaults to the package that
            is missing.
        advice: Advice that the error puts before the `pip` command. Defaults to none.

    Raises:
        ModuleNotFoundError: if a package that is imported in the block is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = str(error.name).partition(".")[0]
        if name == "tf_lamb":
            raise
        raise _missing_packages_error(feature, [name], install or name, advice) from error


def _missing_packages_error(
    feature: str, names: Sequence[str], install: str, advice: str = ""
) -> ModuleNotFoundError:
    """Returns the error for missing packages.

    Args:
        feature, install, advice: As in `optional_imports`.
        names: The names of the packages, as they are imported.
    """
    packages = " and ".join(_PACKAGE_TITLES.get(name, name) for name in names)
    return ModuleNotFoundError(
        f"{feature} needs {packages}, which this environment lacks: {advice}pip install {install}.",
        name=names[0],
    )


def join_words(words: Iterable[str], conjunction: str = "and") -> str:
    """Joins words by commas, and the last one by a conjunction.

    Args:
        words: The words, at least one.
        conjunction: The word before the last one. Defaults to "and".

    Example:

    >>> join_words(["LAMB", "LANS", "LARS"], "or")
    'LAMB, LANS or LARS'
    """
    *leading_words, last_word = words
    return f"{', '.join(leading_words)} {conjunction} {last_word}" if leading_words else last_word


def table(rows: Sequence[Sequence[str]], right_aligned: Sequence[int] = ()) -> list[str]:
    """Formats a table, with two blanks between columns.

    Args:
        rows: The cells of each row.
        right_aligned: The positions of the columns that are aligned right.

    Returns:
        The lines of the table.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if i in right_aligned else text.ljust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


_MAX_DIFFERENCES = 5  # a message shows at most this many differences, and counts the others


def differences_text(texts_by_process: Mapping[str, Mapping[str, str]]) -> str:
    """Describes the settings in which processes differ from the first one; it shows at most five.

    Of each setting it shows the value of the first process, and that of the first other process
    that differs from it.

    Args:
        texts_by_process: Name of a process -> name of a setting -> its value as text.

    Returns:
        A text such as "seed is 1 in worker 0, 2 in worker 1; 3 more"; "" if all agree.

    Example:

    >>> differences_text({"worker 0": {"seed": "1"}, "worker 1": {"seed": "2"}})
    'seed is 1 in worker 0, 2 in worker 1'
    """
    (chief, chief_texts), *others = texts_by_process.items()
    descriptions: dict[str, str] = {}
    for process, process_texts in others:
        for name in {**chief_texts, **process_texts}:
            expected = chief_texts.get(name, "not there")
            text = process_texts.get(name, "not there")
            if expected != text:
                descriptions.setdefault(
                    name, f"{name} is {expected} in {chief}, {text} in {process}"
                )
    shown_descriptions = [*descriptions.values()][:_MAX_DIFFERENCES]
    if len(descriptions) > len(shown_descriptions):
        shown_descriptions.append(f"{len(descriptions) - len(shown_descriptions)} more")
    return "; ".join(shown_descriptions)
