"""Errors of the user's settings, in one line each."""

import contextlib
import difflib
import importlib.util
import os
import pathlib
import re
import sys
from collections.abc import Iterator

from tf_lamb.core import messages


class UserError(ValueError):
    """A run that cannot be; its message is one line that names the value and the way out."""


def unknown(what: str, name, known) -> str:
    """The error for an unknown name: what may have been meant instead, or all known names."""
    return f"{what}={name!r} is not known. {did_you_mean(name, known)}"


def did_you_mean(name, known) -> str:
    """The names that may have been meant instead of an unknown one, or all known names.

    Of a name that an extra registers, it is the flag that imports the extra.
    """
    if module := _registering(str(name)):
        return f"It is registered by an import: add --gin_params='import {module}'."
    if near := difflib.get_close_matches(str(name), known, n=3, cutoff=0.5):
        return f"Did you mean {' or '.join(near)}?"
    return f"There is {', '.join(known)}."


def _registering(name: str) -> str | None:
    """The module of an extra that registers a name, as its source says; None without one."""
    registers = re.compile(rf'(\bregister\w*\(|^KEY = )"{re.escape(name)}"', re.MULTILINE)
    extras = importlib.util.find_spec("tf_lamb_extras")
    for folder in (extras and extras.submodule_search_locations) or ():
        for file in sorted(pathlib.Path(folder).glob("*/model_garden.py")):
            if registers.search(file.read_text(encoding="utf-8")):
                return ".".join(("tf_lamb_extras", file.parent.name, file.stem))
    return None


@contextlib.contextmanager
def named(source: str, kinds=(TypeError, ValueError)) -> Iterator[None]:
    """Makes errors of these kinds one line that begins with where they come from."""
    try:
        yield
    except kinds as error:
        reason, *_ = str(error).split("\n")  # Gin adds lines on where it stood in the call
        raise UserError(f"{source}: {reason or type(error).__name__}") from error


@contextlib.contextmanager
def one_line(command: str, kind=UserError, package="tf_lamb.model_garden") -> Iterator[None]:
    """Ends the process with one line for an error of this kind, or of one of these."""
    try:
        yield
    except kind as error:
        sys.exit(f"{package}.{command}: {error}")


def begin(command: str, package="tf_lamb.model_garden") -> None:
    """Ends the process with one line if Model Garden is not installed."""
    with one_line(command, ModuleNotFoundError, package):
        require()
    # Model Garden is of tf_keras; without this, TensorFlow imports Keras 3 as well.
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")


def require() -> None:
    """Raises `ModuleNotFoundError`, with the line that installs it, where Model Garden is not."""
    messages.require_installed("tf_lamb.model_garden", "official", "tf_keras", extra="model-garden")
