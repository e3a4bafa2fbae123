"""What is not installed is named, with the line that installs it."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def needed(room: str, way_out: str) -> Iterator[None]:
    """Imports inside it say what they lack, whom it is needed by, and what to do."""
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] == "tf_lamb":
            raise
        raise ModuleNotFoundError(
            f"{room} needs {error.name}, which is not installed. {way_out}", name=error.name
        ) from error
