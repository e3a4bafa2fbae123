"""YAML from anywhere: read without executing anything, and without unfolding a bomb.

Model Garden's own loader makes Python functions of `!!python/name`, and takes whatever memory the
aliases of a file unfold to.
"""

import os
import pathlib
import re
from collections.abc import Iterator

import yaml

from tf_lamb.model_garden.common.errors import UserError, did_you_mean

_MOST_VALUES = 100_000  # that aliases may unfold to; the largest experiment has some hundreds
_PLAIN = (str, int, float, bool, type(None))
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Plain values, and the tuples that Model Garden writes; refuses what hides another meaning."""

    def compose_mapping_node(self, anchor):
        """See base class, which lets the last of two equal keys win."""
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines:
                raise UserError(
                    f"{key.value} is in line {lines[name]} and again in line {line}, and only one "
                    "would count. Write one with the settings of both"
                )
            lines[name] = line
        return node

    def construct_yaml_int(self, node):
        """See base class, which reads 010 as 8."""
        number, digits = super().construct_yaml_int(node), node.value.replace("_", "")
        if digits.lstrip("+-").isdecimal() and number != int(digits):
            raise UserError(
                f"{node.value} in line {node.start_mark.line + 1} is {number} in YAML, where a "
                f"leading 0 makes a number octal. Write {int(digits)}"
            )
        return number


# seam: tf-models-official 2.20.0. Its loader reads 1e-3 as a number, which YAML 1.1 does not.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"), [*"-+0123456789"]
)
_Loader.add_constructor(
    "tag:yaml.org,2002:python/tuple",
    lambda loader, node: tuple(loader.construct_sequence(node, deep=True)),
)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def read(text: str | bytes):
    """The values that a YAML holds, or one `ValueError` in a line that says what is wrong."""
    try:
        values = yaml.load(text, Loader=_Loader)
    except UserError:
        raise
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (
        yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError,
    ) as error:  # fmt: skip
        raise ValueError(" ".join(str(error).split())) from error
    _check(values)
    return values


def _check(values) -> None:
    """Walks through all values, as often as aliases name them."""
    pending, count = [values], 0
    while pending:
        value = pending.pop()
        count += 1
        if count > _MOST_VALUES:
            raise ValueError(f"its aliases unfold to too many values, more than {_MOST_VALUES:,}")
        if isinstance(value, dict):
            pending += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple)):
            pending += value
        elif not isinstance(value, _PLAIN):
            raise ValueError(f"{value!r} is neither a text nor a number; write it in quotes")


def mapping(text: str | bytes, source: str) -> dict:
    """The settings that a YAML holds, or one `UserError` that names where it comes from."""
    try:
        found = read(text)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error
    except ValueError as error:
        raise UserError(f"{source} is not YAML: {error}") from error
    if not isinstance(found, dict):
        raise UserError(
            f"{source} holds {found!r}, no settings. Write key: value, or on the command line "
            "trainer.train_steps=100,runtime.num_gpus=2"
        )
    return found


def at(settings, path: str):
    """The value of nested settings at a path such as trainer.train_steps; None without one."""
    for key in path.split("."):
        settings = settings.get(key) if isinstance(settings, dict) else None
    return settings


def merged(first: dict, second: dict) -> dict:
    """Two settings in one; where both say something, the second holds."""
    both = {**first, **second}
    for key in first.keys() & second.keys():
        if isinstance(first[key], dict) and isinstance(second[key], dict):
            both[key] = merged(first[key], second[key])
    return both


def without(settings: dict, path: str) -> dict:
    """Settings that do not say what stands at a path."""
    key, _, rest = path.partition(".")
    kept = {k: v for k, v in settings.items() if k != key}
    if rest and isinstance(inner := settings.get(key), dict) and (inner := without(inner, rest)):
        kept[key] = inner
    return kept


def leaves(settings: dict, path: str = "") -> Iterator[tuple[str, object]]:
    """Each path of nested settings, and what stands there."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def nested(path: str, value) -> dict:
    """Nested settings that say one thing: what stands at a path."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def shipped() -> dict[str, str]:
    """The YAMLs of this package by their bare names: where it is installed, and in a checkout."""
    package = pathlib.Path(__file__).parents[1]
    for folder in (package / "configs", package.parents[1] / "model_garden_configs"):
        if folder.is_dir():
            return {path.name: str(path) for path in sorted(folder.glob("*.yaml"))}
    return {}


def found(path: str) -> str:
    """The path of a config file that is named by its own or, of those of this package, its name."""
    if "://" in path or os.path.isfile(path):
        return path
    ours = shipped()
    if path not in ours:
        hint = f". {did_you_mean(path, ours)}" if ours and not os.path.dirname(path) else ""
        raise UserError(missing(path) + hint)
    return ours[path]


def missing(path: str) -> str:
    """The error for a config file that is not there."""
    return f"--config_file={path}: there is no such file"


def read_file(path: str) -> dict:
    """The settings in a config file; one of a bucket is read by TensorFlow, which takes seconds."""
    if "://" not in path:
        text = pathlib.Path(path).read_bytes()
    else:
        import tensorflow as tf

        if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
            raise UserError(missing(path))
        with tf.io.gfile.GFile(path, "rb") as file:
            text = file.read()
    return mapping(text, f"--config_file={path}")


def read_files(names: list[str] | None) -> list[tuple[str, dict]]:
    """Reads each config file once: what errors call it, and its settings."""
    paths = map(found, names or [])
    return [(f"--config_file={path}", read_file(path)) for path in paths]
