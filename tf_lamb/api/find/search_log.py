"""What a search has made, in a folder, from which it goes on after a kill."""

import json
import math
import os
import zipfile
import zlib
from collections.abc import Callable
from time import perf_counter as clock
from typing import Any

from tf_lamb.api import files, frontends
from tf_lamb.api.find.data import Examples
from tf_lamb.api.find.trials import Trials

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

    A finder has two files, so that both finders may have one folder.

    Args:
        directory: The folder, which is made; None keeps nothing.
        finder: "find_rate" or "find_batch".
        model: What is searched.
        data: What it is trained and judged on.
        what: The arguments that decide what is made, by name.

    Raises:
        ValueError: if the folder holds a search with other arguments, of another model or on other
            data, or one that cannot be read.
    """

    def __init__(
        self, directory: str | os.PathLike | None, finder: str, model: Any, data: Examples,
        what: dict[str, Any],
    ):  # fmt: skip
        self.folder = os.fspath(directory) if directory else ""
        self._made: dict[str, Any] = {}  # key, as JSON -> what was made
        self._loss = math.nan  # before any step
        self._is_old, self._before = False, 0
        self._began, self._earlier = clock(), 0.0  # seconds of this life, and of those before
        if not self.folder:
            return
        if "://" in self.folder or os.path.isfile(self.folder):
            raise ValueError(
                f"directory={self.folder!r} is no folder of this machine: pass the path of one, "
                "which is made if it is not there."
            )
        self._file, self._weights = (
            os.path.join(self.folder, f"{finder}.{kind}") for kind in ("json", "npz")
        )
        host = frontends.of(model).host
        what = {
            **what,
            "Keras": f"{host.__name__} on {host.backend.backend()}",
            "model": layers_of(model),
            "data": data.checksum(),
        }
        self._what = json.loads(json.dumps(what, default=_plain))
        if os.path.exists(self._file):
            self._read()

    @property
    def took(self) -> float:
        """Seconds of the search until now, in all its lives."""
        return self._earlier + clock() - self._began

    def tell(self, say: Callable[[str], None]) -> None:
        """Says how much of the search was made before, if anything."""
        if self._before:
            say(f"goes on after {self._before} results in {self._file}")

    def begin(self, trials: Trials) -> None:
        """Lets runs begin with the weights that the search began with; raises for their loss."""
        if self._is_old:
            try:
                trials.load(self._weights)
            except (OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
                raise self._unreadable(self._weights, error) from error
        loss = trials.check_loss()
        if not self.folder:
            return
        if self._is_old:
            if not math.isclose(loss, self._loss, rel_tol=SAME):
                raise ValueError(
                    f"{self._file} is of a search whose loss before any step is {self._loss:.6g}, "
                    f"and here it is {loss:.6g}: pass the model and the loss of that search, or "
                    "another directory."
                )
            return
        with files.replaced(self._weights, "wb") as file:
            trials.save(file)
        self._loss, self._is_old = loss, True
        self._write()

    def cached(
        self, key: list, compute: Callable[[], Any], known: Callable[[Any], Any] | None = None
    ) -> Any:
        """Returns the saved result for `key`, or computes and saves it; as JSON, lists are lists.

        `known` is called with a result that was saved.
        """
        coded = json.dumps(key)
        if coded in self._made:
            if known:
                known(self._made[coded])
            return self._made[coded]
        self._made[coded] = json.loads(json.dumps(compute()))
        if self.folder:
            self._write()
        return self._made[coded]

    def _read(self):
        try:
            with open(self._file) as file:
                saved = json.load(file)
            what, self._loss = saved["what"], float(saved["loss"])
            self._earlier = float(saved.get("took", 0.0))  # not in files of before
            self._made = {json.dumps(key): made for key, made in saved["made"]}
            before = {name: what.get(name) for name in self._what}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._unreadable(self._file, error) from error
        for name, value in self._what.items():
            if before[name] != value:
                raise ValueError(
                    f"{self._file} is of a search {_difference(name, before[name], value)}: go on "
                    "as that search began, or pass another directory."
                )
        self._is_old, self._before = True, len(self._made)

    def _unreadable(self, path, error):
        return ValueError(
            f"{path} cannot be read ({type(error).__name__}: {error}): delete {self.folder} to "
            "begin anew, or pass another directory."
        )

    def _write(self):
        made = [[json.loads(key), value] for key, value in self._made.items()]
        with files.replaced(self._file) as file:
            saved = {"what": self._what, "loss": self._loss, "made": made, "took": self.took}
            json.dump(saved, file)


def layers_of(model: Any) -> list[list[str]]:
    """The kind and the checksum of the settings of every layer, whatever their names."""
    found = []
    # seam: Keras 3.15.1, tf_keras 2.20.1. No public walk reaches layers inside of layers.
    for layer in model._flatten_layers():
        config = {}
        if len(list(layer._flatten_layers())) == 1:  # what holds others is these
            try:
                config = {**layer.get_config(), "name": ""}
            except Exception:  # a layer of the user's own may have none
                config = {}
        coded = json.dumps(config, default=_plain, sort_keys=True)
        found.append([type(layer).__name__, f"{zlib.crc32(coded.encode()):08x}"])
    return found


def _plain(value):
    """What stands in JSON for a number of NumPy's, or for an object."""
    return value.item() if getattr(value, "shape", None) == () else type(value).__name__


def _difference(name, before, now):
    """How a search differs from the one that was saved, after "a search"."""
    if name == "data":
        return "on other data"
    if name != "model":
        return f"with {name}={before}, and this one has {now}"
    pairs = zip(before or [], now, strict=False)
    kind = next((one[0] for one, other in pairs if one != other), "number of layers")
    return f"of another model, whose {kind} differs"
