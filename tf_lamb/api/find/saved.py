"""A search in a folder, which goes on where it was killed."""

import dataclasses
import json
import os
import tempfile
from typing import Any

from tf_lamb.core.search import Trial

SEARCH, WEIGHTS = "search.json", "weights.npz"


class Saved:
    """The trials that a folder holds, and the weights that they began with.

    Args:
        directory: The folder, which is made; None keeps nothing.
        what: The arguments of the search, which have to be those of the one that is there.
        trials: The model's, which begins with the weights of the folder.

    Raises:
        ValueError: if the folder holds another search.
    """

    def __init__(self, directory: str | os.PathLike | None, what: dict[str, Any], trials: Any):
        self._made: list[Trial] = []
        self._folder, self._what = directory and os.fspath(directory), what
        if not directory:
            return
        os.makedirs(directory, exist_ok=True)
        path = os.path.join(directory, SEARCH)
        if not os.path.exists(path):
            trials.save(os.path.join(directory, WEIGHTS))
            return self._write()
        with open(path) as file:
            saved = json.load(file)
        for name, value in what.items():
            if saved["what"].get(name) != value:
                raise ValueError(
                    f"{os.fspath(directory)} holds a search with {name}={saved['what'].get(name)}, "
                    f"and this one has {value}: take another directory, or the same arguments."
                )
        trials.load(os.path.join(directory, WEIGHTS))
        self._made = [
            Trial(**{**each, "losses": tuple(each["losses"])}) for each in saved["trials"]
        ]

    def find(self, optimizer: str, rate: float, steps: int) -> Trial | None:
        """The trial, if it was made."""
        for trial in self._made:
            if (trial.optimizer, trial.rate, trial.steps) == (optimizer, rate, steps):
                return trial
        return None

    def add(self, trial: Trial) -> None:
        """Keeps a trial."""
        self._made.append(trial)
        if self._folder:
            self._write()

    def _write(self):
        folder: Any = self._folder
        told = {"what": self._what, "trials": [dataclasses.asdict(each) for each in self._made]}
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
            json.dump(told, file)
        os.replace(file.name, os.path.join(folder, SEARCH))
