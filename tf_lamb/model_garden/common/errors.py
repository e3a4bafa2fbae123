"""Reports errors in the user's settings, each in one line."""

import contextlib
import difflib
import importlib.util
import os
import pathlib
import re
import sys
from collections.abc import Iterator

from tf_lamb.core import messages

# The arguments of `pip install` that install the Model Garden.
INSTALL = (
    'tf-models-official==2.20.0 tokenizers scikit-learn tqdm "setuptools<81", because its '
    "tensorflow-hub imports the pkg_resources that later setuptools lack"
)


class UserError(ValueError):
    """Raised if a run is impossible; its message is one line: what is wrong, and what to write."""


def unknown(what: str, name, known) -> str:
    """Returns the text of the error for an unknown name.

    Args:
        what: the setting, as the user writes it.
        name: the unknown name.
        known: the names that exist.
    """
    return f"{what}={name!r} is not known. {did_you_mean(name, known)}"


def did_you_mean(name, known) -> str:
    """Returns a sentence with the names that are close to an unknown one, or with all names.

    If a module of `tf_lamb_extras` would register the name, the sentence has the flag that imports
    this module.

    Args:
        name: the unknown name.
        known: the names that exist.
    """
    if module := _registering(str(name)):
        return f"It is registered by an import: add --gin_params='import {module}'."
    if close_names := difflib.get_close_matches(str(name), known, n=3, cutoff=0.5):
        return f"Did you mean {' or '.join(close_names)}?"
    return f"There is {', '.join(known)}."


def _registering(name: str) -> str | None:
    """Finds the module of `tf_lamb_extras` whose source registers a type or an experiment.

    Returns the full name of the module, for a hint in an error; None if no module registers `name`.
    """
    pattern = re.compile(rf'(\bregister\w*\(|^KEY = )"{re.escape(name)}"', re.MULTILINE)
    extras = importlib.util.find_spec("tf_lamb_extras")
    for folder in (extras and extras.submodule_search_locations) or ():
        for file in sorted(pathlib.Path(folder).glob("*/model_garden.py")):
            if pattern.search(file.read_text(encoding="utf-8")):
                return ".".join(("tf_lamb_extras", file.parent.name, file.stem))
    return None


@contextlib.contextmanager
def named(source: str, kinds=(TypeError, ValueError)) -> Iterator[None]:
    """Turns an error in its `with` block into a `UserError` of one line.

    Args:
        source: the beginning of the line, such as the setting that the error is about.
        kinds: the types of errors to catch.

    Raises:
        UserError: in place of an error of these types.
    """
    try:
        yield
    except kinds as error:
        reason, *_ = str(error).split("\n")  # Gin appends lines on the call that failed
        raise UserError(f"{source}: {reason or type(error).__name__}") from error


@contextlib.contextmanager
def one_line(command: str, kind=UserError, package="tf_lamb.model_garden") -> Iterator[None]:
    """Ends the process with one line if its `with` block raises an error of a given type.

    Args:
        command: the name of the command; the line begins with `package.command`.
        kind: the type of the error, or a tuple of types.
        package: the package of the command.
    """
    try:
        yield
    except kind as error:
        sys.exit(f"{package}.{command}: {error}")


def begin(command: str, package="tf_lamb.model_garden") -> None:
    """Prepares the process for Model Garden; if it is not installed, exits with one line.

    Args:
        command: the name of the command.
        package: the package of the command.
    """
    with one_line(command, ModuleNotFoundError, package):
        require()
    # Model Garden uses tf_keras. Without this variable TensorFlow imports Keras 3 as well.
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")


def require() -> None:
    """Checks that Model Garden is installed, without importing it.

    Raises:
        ModuleNotFoundError: if it is not installed; the message has the command that installs it.
    """
    messages.require_installed("tf_lamb.model_garden", "official", "tf_keras", install=INSTALL)
