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

# The largest relative difference of a loss that another processor or other threads may cause.
LOSS_TOLERANCE = 1e-3
# Settings of an optimizer that may differ when an interrupted search is continued. The search sets
# the learning rate and the accumulation itself, and a name has no effect on the results.
IGNORED_SETTINGS = ("learning_rate", "name", "gradient_accumulation_steps")


def settings_by_name(optimizer: Any) -> dict[str, Any]:
    """Returns a dict of the settings that must be the same when a search is continued.

    The keys have the form "class.setting", such as "AdamW.beta_1". Settings in `IGNORED_SETTINGS`
    are left out.
    """
    class_name = type(optimizer).__name__
    config = optimizer.get_config()
    return {
        f"{class_name}.{setting}": config[setting]
        for setting in config
        if setting not in IGNORED_SETTINGS
    }


class SearchLog:
    """Holds the results of a search, and the weights that its runs begin with.

    With a folder, it saves them to files, from which a later process can continue the search.
    `find_rate` and `find_batch` write files of different names, so that both may share a folder.

    Args:
        directory: The folder, which is made if it is missing. None keeps the results in memory
            only.
        finder_name: "find_rate" or "find_batch".
        model: The model of the search.
        data: The training examples and the held-out examples.
        settings: The arguments on which the results depend, by name.

    Raises:
        ValueError: if `directory` is not a folder of this machine, or if it holds a search with
            other arguments, of another model or on other data, or one that cannot be read.
    """

    def __init__(
        self, directory: str | os.PathLike | None, finder_name: str, model: Any, data: Examples,
        settings: dict[str, Any],
    ):  # fmt: skip
        self.folder = os.fspath(directory) if directory else ""
        self._results: dict[str, Any] = {}  # the result for each key, a string of JSON
        self._start_loss = math.nan  # the held-out loss before any step
        # Whether the folder holds a search, and how many of its results were read.
        self._is_saved, self._resumed_count = False, 0
        # When this process began or continued the search, and the seconds that earlier processes
        # spent on it.
        self._start_time, self._seconds_before = clock(), 0.0
        if not self.folder:
            return
        if "://" in self.folder or os.path.isfile(self.folder):
            raise ValueError(
                f"directory={self.folder!r} is no folder of this machine: pass the path of one, "
                "which is made if it is not there."
            )
        self._json_path, self._weights_path = (
            os.path.join(self.folder, f"{finder_name}.{suffix}") for suffix in ("json", "npz")
        )
        host = frontends.of(model).host
        settings = {
            **settings,
            "Keras": f"{host.__name__} on {host.backend.backend()}",
            "model": layer_checksums(model),
            "data": data.checksum(),
        }
        self._settings = json.loads(json.dumps(settings, default=_to_json))
        if os.path.exists(self._json_path):
            self._read()

    @property
    def elapsed_seconds(self) -> float:
        """The seconds that the search has taken, including the time before an interruption."""
        return self._seconds_before + clock() - self._start_time

    def print_resumed(self, say: Callable[[str], None]) -> None:
        """Prints how many results of an interrupted search were read, if there are any.

        Args:
            say: A function that prints a line.
        """
        if self._resumed_count:
            say(f"goes on after {self._resumed_count} results in {self._json_path}")

    def load_or_save_start_values(self, trials: Trials) -> None:
        """Makes all runs of a search begin with the same weights, also after an interruption.

        If the folder holds a search, the weights that its runs begin with are loaded. Else the
        weights that the model has are saved.

        Args:
            trials: The `Trials`, which train the model.

        Raises:
            ValueError: if the held-out loss before any step is 0, not finite, or not that of the
                saved search, or if the file of weights cannot be read.
        """
        if self._is_saved:
            try:
                trials.load_start_values(self._weights_path)
            except (OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
                raise self._unreadable_error(self._weights_path, error) from error
        loss = trials.check_start_loss()
        if not self.folder:
            return
        if self._is_saved:
            if not math.isclose(loss, self._start_loss, rel_tol=LOSS_TOLERANCE):
                raise ValueError(
                    f"{self._json_path} is of a search whose loss before any step is "
                    f"{self._start_loss:.6g}, and here it is {loss:.6g}: pass the model and the "
                    "loss of that search, or another directory."
                )
            return
        with files.atomic_write(self._weights_path, "wb") as file:
            trials.save_start_values(file)
        self._start_loss, self._is_saved = loss, True
        self._write()

    def cached(
        self, key: list, compute: Callable[[], Any], on_saved: Callable[[Any], Any] | None = None
    ) -> Any:
        """Returns the saved result for a key, or computes and saves it.

        The result is always what JSON makes of it, so that tuples become lists.

        Args:
            key: A list that can be written as JSON.
            compute: A function that computes the result if none is saved.
            on_saved: A function that is called with the result if it was saved. Defaults to None.
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
        """Reads the saved search.

        Raises:
            ValueError: if the saved search has other settings, or if its file cannot be read.
        """
        try:
            with open(self._json_path) as file:
                saved = json.load(file)
            all_saved_settings, self._start_loss = saved["what"], float(saved["loss"])
            self._seconds_before = float(saved.get("took", 0.0))  # not in files of older versions
            self._results = {json.dumps(key): result for key, result in saved["made"]}
            saved_settings = {name: all_saved_settings.get(name) for name in self._settings}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._unreadable_error(self._json_path, error) from error
        for name, value in self._settings.items():
            if saved_settings[name] != value:
                difference = _difference_text(name, saved_settings[name], value)
                raise ValueError(
                    f"{self._json_path} is of a search {difference}: go on as that search began, "
                    "or pass another directory."
                )
        self._is_saved, self._resumed_count = True, len(self._results)

    def _unreadable_error(self, path, error):
        """Returns a ValueError which says that a file cannot be read, and what to do.

        Args:
            path: The path of the file.
            error: The error that was raised when it was read.
        """
        return ValueError(
            f"{path} cannot be read ({type(error).__name__}: {error}): delete {self.folder} to "
            "begin anew, or pass another directory."
        )

    def _write(self):
        """Writes all results to the file of the search."""
        results = [[json.loads(key), value] for key, value in self._results.items()]
        with files.atomic_write(self._json_path) as file:
            saved = {
                "what": self._settings,
                "loss": self._start_loss,
                "made": results,
                "took": self.elapsed_seconds,
            }
            json.dump(saved, file)


def layer_checksums(model: Any) -> list[list[str]]:
    """Returns a pair [type, checksum of the settings] for each layer of a model.

    The checksum does not depend on the name of the layer.
    """
    layers = []
    # seam: private API of Keras 3.15.1 and tf_keras 2.20.1, because no public method lists the
    # layers inside of layers.
    for layer in model._flatten_layers():
        config = {}
        # A layer that contains other layers is described by these.
        if len(list(layer._flatten_layers())) == 1:
            try:
                config = {**layer.get_config(), "name": ""}
            except Exception:  # a layer class of the user may have no `get_config` that works
                config = {}
        config_json = json.dumps(config, default=_to_json, sort_keys=True)
        layers.append([type(layer).__name__, f"{zlib.crc32(config_json.encode()):08x}"])
    return layers


def _to_json(value):
    """Returns a NumPy scalar as a number, and another object as the name of its type, for JSON."""
    return value.item() if getattr(value, "shape", None) == () else type(value).__name__


def _difference_text(setting, saved_value, new_value):
    """Returns how this search differs from the saved one, as the end of "FILE is of a search ...".

    Args:
        setting: The setting that differs.
        saved_value: Its value in the saved search.
        new_value: Its value in this search.
    """
    if setting == "data":
        return "on other data"
    if setting != "model":
        return f"with {setting}={saved_value}, and this one has {new_value}"
    layer_pairs = zip(saved_value or [], new_value, strict=False)
    layer_type = next(
        (saved_layer[0] for saved_layer, layer in layer_pairs if saved_layer != layer),
        "number of layers",
    )
    return f"of another model, whose {layer_type} differs"
