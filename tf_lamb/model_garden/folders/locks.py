"""One run in a folder at a time: two would write over each other's checkpoints."""

import os
import socket
from typing import IO

from tf_lamb.model_garden.errors import UserError

try:
    import fcntl
except ModuleNotFoundError:  # Windows has none
    fcntl = None  # type: ignore[assignment]

_LOCK_FILE = "tf_lamb_run.lock"
_locked: dict[str, IO] = {}  # by path, open as long as this process trains there


def lock(model_dir: str) -> None:
    """Keeps other runs out of a folder for as long as this process lives; raises where one is in.

    The lock is the system's, which takes it back from a process that ends in whatever way. A
    bucket has none, and neither have some file systems: there nobody is kept out.
    """
    path = os.path.join(os.path.realpath(model_dir), _LOCK_FILE)
    if "://" in model_dir or fcntl is None or path in _locked:
        return
    os.makedirs(model_dir, exist_ok=True)
    file = open(path, "a+", encoding="utf-8")  # noqa: SIM115  (open until the process ends)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        raise UserError(
            f"--model_dir={model_dir}: another run trains in it, {holder}. Wait for its end, or "
            "choose another --model_dir"
        ) from error
    except OSError:
        file.close()
        return
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    _locked[path] = file
