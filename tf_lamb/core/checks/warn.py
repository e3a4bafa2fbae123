"""Warnings that point at the user's line, not at ours or at a host's."""

import sys
import types
import warnings

_NOT_THE_USERS = {
    "dataclasses", "jax", "keras", "official", "orbit", "tensorflow", "tf_keras", "tf_lamb",
}  # fmt: skip


def warn(message: str) -> None:
    """A `UserWarning` of the nearest line that is neither of this package nor of a host."""
    frame: types.FrameType | None = sys._getframe(1)
    level = 2
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_USERS:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
