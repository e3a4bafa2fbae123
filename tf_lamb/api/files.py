"""Files that are whole at any moment, whatever ends the process or fills the disk."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from typing import IO


@contextlib.contextmanager
def replaced(path: str, mode: str = "w", temporary: str | None = None) -> Iterator[IO]:
    """Opens a file beside another one, whose place it takes once it is written.

    After an error the old one is there, and nothing of the new one. A folder is made if need be.

    Args:
        path: of the one that is replaced, or that is not there yet.
        mode: as of `open`.
        temporary: its path until then. Defaults to None: one that no other process has.
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
