"""Warnings that point at the user's line, not at ours or at a host's."""

import sys
import warnings

_NOT_THE_USERS = {"tf_lamb", "keras", "tf_keras", "tensorflow", "official", "orbit", "jax"}


def warn(message: str) -> None:
    """A `UserWarning` of the nearest line that is neither of this package nor of a host."""
    frame, level = sys._getframe(1), 2
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_USERS:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
