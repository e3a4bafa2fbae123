"""Finds the place of a setting that the user has written elsewhere in an experiment.

    optimizer_config: {learning_rate: 0.1}

The rate is a setting of the schedule, here
`optimizer_config.learning_rate.polynomial.initial_learning_rate`.
"""

import contextlib
import difflib
import functools
from collections.abc import Iterator
from typing import Any

from official.modeling.hyperparams import base_config, oneof

_ROOT = "trainer.optimizer_config"
_RATE_WORDS = "learning_rate", "initial_learning_rate", "lr"
_WARMUP_WORDS = "warmup_steps", "warmup"
# The names that the first rate of a schedule, and the length of a warmup, have in their blocks.
_RATES = "learning_rate", "initial_learning_rate"
_LENGTHS = "warmup_steps", "steps"
_MOST_PLACES = 3  # if more settings have the name, it does not say which is meant
# A name that is this similar to a setting at its own place is misspelt rather than misplaced.
_SIMILARITY = 0.6


class Places:
    """Finds places in one experiment.

    Args:
        params: The `ExperimentConfig` before the settings are applied.
        settings: What the user has written, as nested dicts.
    """

    def __init__(self, params, settings: dict):
        self._params, self._settings = params, settings

    @functools.cached_property
    def _root(self):
        """The experiment with the types that the user has written, which say what blocks count."""
        root = self._params.replace()
        with contextlib.suppress(KeyError, ValueError, TypeError, AttributeError):
            root.override(types_in(self._settings), is_strict=True)
        return root

    def instead_of(self, path: str, key: str, value) -> str:
        """Returns a sentence with the places of a setting; "" if none is found.

        Args:
            path: The path at which the user has written the setting, with a dot at its end.
            key: The name of the setting, which is not known there or takes settings of its own.
            value: What the user has written.
        """
        paths = self._of_schedule(key, value) or self._below(path, key, value)
        if not paths and not _is_misspelt(key, self._at(path)):
            paths = list(_settings_named(key, value, self._root))
        if len(paths) == 1:
            return f"Write {_assignment(paths[0], value)}"
        return f"Did you mean {' or '.join(paths)}?" if 1 < len(paths) <= _MOST_PLACES else ""

    def _at(self, path: str) -> Any:
        """Returns the config at a path; None if there is none, as in a list."""
        config = self._root
        for key in path.removesuffix(".").split(".") if path else ():
            config = getattr(config, key, None)
        return config

    def _of_schedule(self, key: str, value) -> list[str]:
        """Returns the place of the rate, or of the steps of warmup, if `key` is such a word."""
        if isinstance(value, str | dict | list):
            return []
        for words, block, names in (
            (_RATE_WORDS, "learning_rate", _RATES), (_WARMUP_WORDS, "warmup", _LENGTHS),
        ):  # fmt: skip
            choice = self._at(f"{_ROOT}.{block}")
            if key in words and isinstance(choice, oneof.OneOfConfig) and choice.get() is not None:
                paths = [f"{_ROOT}.{block}.{choice.type}.{name}" for name in names]
                return [path for path in paths if path.rpartition(".")[2] in vars(choice.get())][:1]
        return []

    def _below(self, path: str, key: str, value) -> list[str]:
        """Returns the places of a setting in the blocks below a path."""
        config = self._at(path)
        # A choice takes its type where the user has written the name of one.
        if isinstance(inner := getattr(config, key, None), oneof.OneOfConfig):
            return [f"{path}{key}.type"] if _is_type(inner, value) else []
        return list(_settings_named(key, value, config, path))


def types_in(settings: dict) -> dict:
    """Returns only the `type` entries of nested settings, such as `optimizer.type`, nested."""
    inner = {key: types_in(value) for key, value in settings.items() if isinstance(value, dict)}
    chosen = {"type": settings["type"]} if isinstance(settings.get("type"), str) else {}
    return {key: value for key, value in inner.items() if value} | chosen


def _settings_named(key: str, value, config, path: str = "") -> Iterator[str]:
    """Yields the path of each setting of a name in a config, without those in unused blocks.

    A `type` is left out unless it can have the value.
    """
    if not isinstance(config, base_config.Config):
        return
    is_choice = isinstance(config, oneof.OneOfConfig)
    for name, inner in vars(config).items():
        if name in config.RESERVED_ATTR or (is_choice and name not in ("type", config.type)):
            continue
        if isinstance(inner, base_config.Config):
            yield from _settings_named(key, value, inner, f"{path}{name}.")
        elif name == key and (name != "type" or _is_type(config, value)):
            yield f"{path}{name}"


def _is_type(choice, value) -> bool:
    """Returns whether a value is one of the types of a choice."""
    if not isinstance(choice, oneof.OneOfConfig) or not isinstance(value, str):
        return False
    return value in vars(choice).keys() - {"type", *choice.RESERVED_ATTR}


def _is_misspelt(key: str, config) -> bool:
    """Returns whether a config has a setting of a similar name."""
    names = vars(config) if isinstance(config, base_config.Config) else ()
    return bool(difflib.get_close_matches(key, names, n=1, cutoff=_SIMILARITY))


def _assignment(path: str, value) -> str:
    """Returns a path with a value, as `--params_override` takes it; the path alone for a block."""
    if isinstance(value, dict | list | tuple):
        return path
    text = str(value).lower() if isinstance(value, bool) else "null" if value is None else value
    return f"{path}={text}"
