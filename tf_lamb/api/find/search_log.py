"""What a search has made, in a folder, from which it goes on after a kill; and how far it is."""

import json
import math
import os
import sys
from collections.abc import Callable
from typing import Any

from tf_lamb.api import files, frontends
from tf_lamb.api.find.data import Examples
from tf_lamb.api.find.trials import Trials

SEARCH, WEIGHTS = "search.json", "weights.npz"
SAME = 1e-3  # of two losses: what processors and threads may change
# A search sets the first and the last itself.
NOT_SETTINGS = ("learning_rate", "name", "gradient_accumulation_steps")


def settings_by_name(optimizer: Any) -> dict[str, Any]:
    """An optimizer's, by names with its own, for a search that has to go on with the same."""
    kind = type(optimizer).__name__
    config = optimizer.get_config()
    return {f"{kind}.{name}": config[name] for name in config if name not in NOT_SETTINGS}


class SearchLog:
    """What a search has made, and the weights that its runs begin with; no folder keeps nothing.

    Raises:
        ValueError: if the folder holds a search of other data, or of other arguments, `what`.
    """

    def __init__(self, directory: str | os.PathLike | None, data: Examples, what: dict[str, Any]):
        self._folder = os.fspath(directory) if directory else ""
        self._made: list[list] = []  # keys and what was made
        self._loss = math.nan  # before any step
        if not self._folder:
            return
        what = {**what, "held_out": data.held_out, "checksum_of_data": data.checksum()}
        self._what = json.loads(json.dumps(what, default=lambda each: type(each).__name__))
        if not os.path.exists(self._path(SEARCH)):
            return
        with open(self._path(SEARCH)) as file:
            saved = json.load(file)
        for name, value in self._what.items():
            if saved["what"].get(name) != value:
                raise ValueError(
                    f"{self._folder} holds a search with {name}={saved['what'].get(name)}, and "
                    f"this one has {value}: take another directory, or the same arguments."
                )
        self._made, self._loss = saved["made"], saved["loss"]

    def begin(self, trials: Trials) -> None:
        """Lets runs begin with the weights that the search began with."""
        if not self._folder:
            return
        os.makedirs(self._folder, exist_ok=True)
        if not os.path.exists(self._path(SEARCH)):
            self._loss = trials.first_loss()
            trials.save(self._path(WEIGHTS))
            self._write()
            return
        trials.load(self._path(WEIGHTS))
        if not math.isclose(loss := trials.first_loss(), self._loss, rel_tol=SAME):
            raise ValueError(
                f"{self._folder} holds a search whose loss before any step is {self._loss:.6g}, "
                f"and here it is {loss:.6g}: take another directory, or the same model and loss."
            )

    def cached(self, key: list, compute: Callable[[], Any]) -> Any:
        """Returns the saved result for `key`, computing and saving it the first time, as JSON."""
        for known, made in self._made:
            if known == key:
                return made
        self._made.append([key, compute()])
        if self._folder:
            self._write()
        return self._made[-1][1]

    def _path(self, name):
        return os.path.join(self._folder, name)

    def _write(self):
        told = {"what": self._what, "loss": self._loss, "made": self._made}
        with files.replaced(self._path(SEARCH)) as file:
            json.dump(told, file)


def is_watched() -> bool:
    """Whether what is printed comes to a terminal or a notebook, and not into a file."""
    return sys.stdout.isatty() or "ipykernel" in sys.modules


class Progress:
    """The progress bar of a model's Keras; in a file, one line when it is done."""

    def __init__(self, model: Any, most: int, unit: str):
        verbose = 1 if is_watched() else 2
        self._bar = frontends.of(model).host.utils.Progbar(most, verbose=verbose, unit_name=unit)
        self._done = 0

    def show(self, done: int) -> None:
        """How far it is; not the end."""
        self._done = min(done, self._bar.target - 1)
        self._bar.update(self._done)

    def add(self, more: int) -> None:
        """So much more is done."""
        self.show(self._done + more)

    def end(self) -> None:
        """It is done."""
        self._bar.update(self._bar.target)
