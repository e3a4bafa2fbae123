"""The results of a search, kept in a folder, from which the search goes on after a kill."""

import json
import math
import os
import zipfile
import zlib
from collections.abc import Callable
from time import perf_counter as clock
from typing import Any

from tf_lamb.api import files, frontends
from tf_lamb.find.data import Examples
from tf_lamb.find.trials import Trials

SAME = 1e-3  # relative difference of two losses that processors and threads may make
# Settings that may differ when a search goes on. A search sets the first and the last itself.
NOT_SETTINGS = ("learning_rate", "name", "gradient_accumulation_steps")


def settings_by_name(optimizer: Any) -> dict[str, Any]:
    """Returns the settings of an optimizer by "class.setting".

    A search that goes on has to have the same. Those in `NOT_SETTINGS` are left out.
    """
    kind = type(optimizer).__name__
    config = optimizer.get_config()
    return {f"{kind}.{name}": config[name] for name in config if name not in NOT_SETTINGS}


class SearchLog:
    """The results of a search, and the weights that its runs begin with.

    Without a folder nothing is kept. Each finder has files of its own, so that both finders may
    have one folder.

    Args:
        directory: The folder, which is made; None keeps nothing.
        finder: "find_rate" or "find_batch".
        model: The model that is searched.
        data: The examples that it is trained and judged on.
        what: The arguments that decide the results, by name.

    Raises:
        ValueError: if the folder holds a search with other arguments, of another model or on other
            data, or one that cannot be read.
    """

    def __init__(
        self, directory: str | os.PathLike | None, finder: str, model: Any, data: Examples,
        what: dict[str, Any],
    ):  # fmt: skip
        self.folder = os.fspath(directory) if directory else ""
        self._made: dict[str, Any] = {}  # key, as JSON -> result
        self._loss = math.nan  # the held-out loss before any step
        self._is_old, self._before = False, 0  # whether a search was saved, with how many results
        self._began, self._earlier = clock(), 0.0  # when it began; seconds of it before a kill
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
        """The seconds of the search until now, those before a kill included."""
        return self._earlier + clock() - self._began

    def tell(self, say: Callable[[str], None]) -> None:
        """Says how many results the search had before, if any."""
        if self._before:
            say(f"goes on after {self._before} results in {self._file}")

    def begin(self, trials: Trials) -> None:
        """Lets runs begin with the weights that the search began with.

        Args:
            trials: The runs of the model.

        Raises:
            ValueError: if the loss before any step is 0, not finite, or not that of the saved
                search, or if the file of weights cannot be read.
        """
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
        """Returns the saved result for a key, or computes and saves it.

        A result has gone through JSON: its tuples are lists.

        Args:
            key: A list that JSON can hold.
            compute: Computes the result if none is saved.
            known: Is called with a result that was saved. Defaults to None.
        """
        json_key = json.dumps(key)
        if json_key in self._made:
            if known:
                known(self._made[json_key])
            return self._made[json_key]
        self._made[json_key] = json.loads(json.dumps(compute()))
        if self.folder:
            self._write()
        return self._made[json_key]

    def _read(self):
        """Reads a saved search; raises if it is another one, or cannot be read."""
        try:
            with open(self._file) as file:
                saved = json.load(file)
            saved_arguments, self._loss = saved["what"], float(saved["loss"])
            self._earlier = float(saved.get("took", 0.0))  # older files lack it
            self._made = {json.dumps(key): result for key, result in saved["made"]}
            before = {name: saved_arguments.get(name) for name in self._what}
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
        """Returns the error for a file that cannot be read."""
        return ValueError(
            f"{path} cannot be read ({type(error).__name__}: {error}): delete {self.folder} to "
            "begin anew, or pass another directory."
        )

    def _write(self):
        """Writes all results to the file of the search."""
        results = [[json.loads(key), value] for key, value in self._made.items()]
        with files.replaced(self._file) as file:
            saved = {"what": self._what, "loss": self._loss, "made": results, "took": self.took}
            json.dump(saved, file)


def layers_of(model: Any) -> list[list[str]]:
    """Returns the type and a checksum of the settings of every layer, whatever its name."""
    layers = []
    # seam: Keras 3.15.1, tf_keras 2.20.1. No public walk reaches layers inside of layers.
    for layer in model._flatten_layers():
        config = {}
        if len(list(layer._flatten_layers())) == 1:  # a layer of layers is described by them
            try:
                config = {**layer.get_config(), "name": ""}
            except Exception:  # the user's own layer may have no config
                config = {}
        config_json = json.dumps(config, default=_plain, sort_keys=True)
        layers.append([type(layer).__name__, f"{zlib.crc32(config_json.encode()):08x}"])
    return layers


def _plain(value):
    """Converts a scalar of NumPy to a number, and an object to the name of its type, for JSON."""
    return value.item() if getattr(value, "shape", None) == () else type(value).__name__


def _difference(name, before, now):
    """Describes how a search differs from the saved one; it follows the words "a search"."""
    if name == "data":
        return "on other data"
    if name != "model":
        return f"with {name}={before}, and this one has {now}"
    pairs = zip(before or [], now, strict=False)
    layer_type = next(
        (saved_layer[0] for saved_layer, layer in pairs if saved_layer != layer), "number of layers"
    )
    return f"of another model, whose {layer_type} differs"
