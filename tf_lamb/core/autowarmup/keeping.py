"""The weights of the moment to which a warmup goes back, kept until it does."""

import glob
import os


class Kept:
    """The state of a model and its optimizer at one step, as arrays; the one of before is dropped.

    Args:
        state_file: Where there is one, a file beside it holds the arrays, too, for a run that goes
            on: `STATE_FILE.STEP.weights`.
    """

    def __init__(self, state_file=None):
        self._file = state_file
        self._step, self._arrays = -1, []

    def keep(self, step: int, arrays: list) -> None:
        """Takes the arrays, which nobody else may change."""
        self._step, self._arrays = step, arrays
        if not self._file:
            return
        os.makedirs(os.path.dirname(os.path.abspath(self._file)), exist_ok=True)
        beside = f"{self._file}.unfinished"
        with open(beside, "wb") as file:
            for array in arrays:
                file.write(array.tobytes())
        os.replace(beside, self._path(step))

    def drop(self, but: int = -1) -> None:
        """Forgets all, or all but the arrays of a step."""
        if self._step != but:
            self._step, self._arrays = -1, []
        for path in glob.glob(f"{glob.escape(str(self._file))}.*.weights") if self._file else ():
            if path != self._path(but):
                os.remove(path)

    def at(self, step: int, like: list) -> list | None:
        """The arrays of that step, or None if there are none.

        Args:
            like: NumPy arrays or scalars of the same shapes and dtypes, which may be overwritten.
        """
        if self._step == step:
            return self._arrays
        if not self._file or not os.path.exists(self._path(step)):
            return None
        if os.path.getsize(self._path(step)) != sum(array.nbytes for array in like):
            return None  # of another model
        with open(self._path(step), "rb") as file:
            return [_read(file, each) for each in like]

    def _path(self, step):
        return f"{self._file}.{step}.weights"


def _read(file, like):
    flat = like.reshape(-1)  # of a scalar of NumPy this is a copy: what is returned has to be it
    flat.view("uint8").data[:] = file.read(like.nbytes)
    return flat.reshape(like.shape)
