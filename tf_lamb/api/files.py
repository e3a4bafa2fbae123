"""Replaces files so that a killed process or a full disk never leaves an incomplete one."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from typing import IO


@contextlib.contextmanager
def atomic_write(path: str, mode: str = "w", temporary: str | None = None) -> Iterator[IO]:
    """Opens a temporary file that replaces `path` once it is written.

    After an error in the `with` block the old file is unchanged, and the temporary file is removed.
    The folder is made if it does not exist.

    Args:
        path: The path of the file to replace, or to make.
        mode: The mode of `open`. Defaults to "w".
        temporary: The path of the file while it is written. Defaults to None: a path that no other
            process uses.

    Yields:
        The open temporary file.
    """
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    temporary = temporary or f"{path}.{uuid.uuid4().hex}.tmp"
    try:
        with open(temporary, mode) as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise
