"""Saves the results of a search in a folder, so that an interrupted search can go on from there."""

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

SAME = 1e-3  # relative difference that another processor or other threads may make in a loss
# Settings of an optimizer that may differ when a search goes on. A search sets the first and the
# last of them itself.
NOT_SETTINGS = ("learning_rate", "name", "gradient_accumulation_steps")


def settings_by_name(optimizer: Any) -> dict[str, Any]:
    """Returns the settings of an optimizer by "class.setting", without those in `NOT_SETTINGS`.

    A search that goes on needs an optimizer of the same settings.
    """
    kind = type(optimizer).__name__
    config = optimizer.get_config()
    return {f"{kind}.{name}": config[name] for name in config if name not in NOT_SETTINGS}


class SearchLog:
    """Holds the results of a search, and the weights that its runs begin with.

    Without a folder they are kept in memory alone. `find_rate` and `find_batch` write files of
    different names, so that both may share a folder.

    Args:
        directory: The folder, which is made if it is missing; None for none.
        finder: "find_rate" or "find_batch".
        model: The model of the search.
        data: The examples to train on and those held out.
        settings: The arguments on which the results depend, by name.

    Raises:
        ValueError: if the folder holds a search with other arguments, of another model or on other
            data, or one that cannot be read.
    """

    def __init__(
        self, directory: str | os.PathLike | None, finder: str, model: Any, data: Examples,
        settings: dict[str, Any],
    ):  # fmt: skip
        self.folder = os.fspath(directory) if directory else ""
        self._results: dict[str, Any] = {}  # key, as JSON -> result
        self._loss = math.nan  # the held-out loss before any step
        # Whether the folder holds a search, and how many results of it were read.
        self._is_saved, self._results_before = False, 0
        # When this process began or continued the search, and the seconds before that.
        self._began, self._seconds_before = clock(), 0.0
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
        settings = {
            **settings,
            "Keras": f"{host.__name__} on {host.backend.backend()}",
            "model": layers_of(model),
            "data": data.checksum(),
        }
        self._settings = json.loads(json.dumps(settings, default=_plain))
        if os.path.exists(self._file):
            self._read()

    @property
    def took(self) -> float:
        """The seconds of the search until now, those before an interruption included."""
        return self._seconds_before + clock() - self._began

    def tell(self, say: Callable[[str], None]) -> None:
        """Prints how many results an interrupted search has left in the folder, if any."""
        if self._results_before:
            say(f"goes on after {self._results_before} results in {self._file}")

    def begin(self, trials: Trials) -> None:
        """Sets the weights that runs begin with to those of the saved search.

        If none is saved, the weights that the model has are saved.

        Args:
            trials: The `Trials` of the model.

        Raises:
            ValueError: if the loss before any step is 0, not finite, or not that of the saved
                search, or if the file of weights cannot be read.
        """
        if self._is_saved:
            try:
                trials.load_start_values(self._weights)
            except (OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
                raise self._unreadable(self._weights, error) from error
        loss = trials.check_start_loss()
        if not self.folder:
            return
        if self._is_saved:
            if not math.isclose(loss, self._loss, rel_tol=SAME):
                raise ValueError(
                    f"{self._file} is of a search whose loss before any step is {self._loss:.6g}, "
                    f"and here it is {loss:.6g}: pass the model and the loss of that search, or "
                    "another directory."
                )
            return
        with files.replaced(self._weights, "wb") as file:
            trials.save_start_values(file)
        self._loss, self._is_saved = loss, True
        self._write()

    def cached(
        self, key: list, compute: Callable[[], Any], on_saved: Callable[[Any], Any] | None = None
    ) -> Any:
        """Returns the saved result for a key, or computes and saves it.

        A result has gone through JSON: its tuples are lists.

        Args:
            key: A list that JSON can hold.
            compute: Computes the result if none is saved.
            on_saved: Is called with the result if it was saved. Defaults to None.
        """
        json_key = json.dumps(key)
        if json_key in self._results:
            if on_saved:
                on_saved(self._results[json_key])
            return self._results[json_key]
        self._results[json_key] = json.loads(json.dumps(compute()))
        if self.folder:
            self._write()
        return self._results[json_key]

    def _read(self):
        """Reads the saved search; raises if its settings differ, or if it cannot be read."""
        try:
            with open(self._file) as file:
                saved = json.load(file)
            saved_arguments, self._loss = saved["what"], float(saved["loss"])
            self._seconds_before = float(saved.get("took", 0.0))  # older files lack it
            self._results = {json.dumps(key): result for key, result in saved["made"]}
            before = {name: saved_arguments.get(name) for name in self._settings}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._unreadable(self._file, error) from error
        for name, value in self._settings.items():
            if before[name] != value:
                raise ValueError(
                    f"{self._file} is of a search {_difference(name, before[name], value)}: go on "
                    "as that search began, or pass another directory."
                )
        self._is_saved, self._results_before = True, len(self._results)

    def _unreadable(self, path, error):
        """Returns the error for a file that cannot be read."""
        return ValueError(
            f"{path} cannot be read ({type(error).__name__}: {error}): delete {self.folder} to "
            "begin anew, or pass another directory."
        )

    def _write(self):
        """Writes all results to the file of the search."""
        results = [[json.loads(key), value] for key, value in self._results.items()]
        with files.replaced(self._file) as file:
            saved = {"what": self._settings, "loss": self._loss, "made": results, "took": self.took}
            json.dump(saved, file)


def layers_of(model: Any) -> list[list[str]]:
    """Returns the type of each layer, and a checksum of its settings.

    Names of layers do not count.
    """
    layers = []
    # seam: Keras 3.15.1, tf_keras 2.20.1. No public walk reaches layers inside of layers.
    for layer in model._flatten_layers():
        config = {}
        if len(list(layer._flatten_layers())) == 1:  # else the layers in it describe it
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
    """Describes how a search differs from the saved one, as the end of "FILE is of a search ...".

    Args:
        name: The setting that differs.
        before: Its value in the saved search.
        now: Its value in this search.
    """
    if name == "data":
        return "on other data"
    if name != "model":
        return f"with {name}={before}, and this one has {now}"
    pairs = zip(before or [], now, strict=False)
    layer_type = next(
        (saved_layer[0] for saved_layer, layer in pairs if saved_layer != layer), "number of layers"
    )
    return f"of another model, whose {layer_type} differs"
