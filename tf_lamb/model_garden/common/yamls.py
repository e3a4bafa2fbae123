"""Reads YAML from untrusted sources: runs no code, and limits the number of values.

Model Garden's own loader turns the tag `!!python/name` into Python functions. It also expands the
aliases of a file without a limit, so that a small file can fill the memory.
"""

import os
import pathlib
import re
from collections.abc import Iterator

import yaml

from tf_lamb.model_garden.common.errors import UserError, did_you_mean

# The largest number of values in a YAML, with aliases expanded. Experiments have some hundreds.
_MOST_VALUES = 100_000
# The types of values that a YAML may hold, besides dicts, lists and tuples.
_PLAIN = (str, int, float, bool, type(None))
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Loads plain values, and the tuples that Model Garden writes.

    Refuses text whose meaning in YAML is not what it seems: keys that occur twice, base-60
    integers, and a leading 0 that changes an integer by making it octal. A base-60 float such as
    1:30.5 is not refused.
    """

    def compose_mapping_node(self, anchor):
        """Composes a mapping; see base class, which would use the last of two equal keys.

        Raises:
            UserError: if the mapping has the same key twice.
        """
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
        """Constructs an integer; see base class, which would read 010 as 8, and 1:30 as 90.

        Raises:
            UserError: if a leading 0 changes the number, or a colon makes it base 60.
        """
        number, digits = super().construct_yaml_int(node), node.value.replace("_", "")
        if ":" in digits:
            raise UserError(
                f"{node.value} in line {node.start_mark.line + 1} is {number} in YAML, where a "
                f"colon is between sixties. Write {number}, or '{node.value}' for the text"
            )
        if digits.lstrip("+-").isdecimal() and number != int(digits):
            raise UserError(
                f"{node.value} in line {node.start_mark.line + 1} is {number} in YAML, where a "
                f"leading 0 makes a number octal. Write {int(digits)}"
            )
        return number


# seam: does as tf-models-official 2.20.0, whose loader reads 1e-3 as a number. YAML 1.1 would read
# it as text.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"), [*"-+0123456789"]
)
_Loader.add_constructor(
    "tag:yaml.org,2002:python/tuple",
    lambda loader, node: tuple(loader.construct_sequence(node, deep=True)),
)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def read(text: str | bytes):
    """Returns the values that a YAML holds.

    Raises:
        UserError: if a mapping has the same key twice, or an integer is octal or base 60.
        ValueError: if the text is no YAML of plain values; the message is one line.
    """
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
    """Raises `ValueError` if a YAML has too many values, or one of a type that is not allowed.

    A value counts once more for each alias that refers to it.
    """
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
    """Returns the settings that a YAML holds.

    Args:
        text: the YAML.
        source: where the YAML comes from, such as a flag with its value, for errors.

    Raises:
        UserError: if the text is no YAML, or no mapping; the message names `source`.
    """
    try:
        settings = read(text)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error
    except ValueError as error:
        raise UserError(f"{source} is not YAML: {error}") from error
    if not isinstance(settings, dict):
        raise UserError(
            f"{source} holds {settings!r}, no settings. Write key: value, or on the command line "
            "trainer.train_steps=100,runtime.num_gpus=2"
        )
    return settings


def at(settings, path: str):
    """Returns the value at a path of nested settings; None if there is no such path.

    Args:
        settings: a dict of dicts.
        path: keys with dots between them, such as trainer.train_steps.
    """
    for key in path.split("."):
        settings = settings.get(key) if isinstance(settings, dict) else None
    return settings


def merged(first: dict, second: dict) -> dict:
    """Returns two nested settings merged into one; where both have a value, the second is taken.

    Args:
        first: a dict of dicts.
        second: a dict of dicts, whose values replace those of `first` at the same paths.
    """
    result = {**first, **second}
    for key in first.keys() & second.keys():
        if isinstance(first[key], dict) and isinstance(second[key], dict):
            result[key] = merged(first[key], second[key])
    return result


def without(settings: dict, path: str) -> dict:
    """Returns nested settings without the one at a path; dicts that become empty are left out.

    Args:
        settings: a dict of dicts.
        path: keys with dots between them.
    """
    key, _, tail = path.partition(".")
    result = {name: value for name, value in settings.items() if name != key}
    if tail and key in settings:
        inner = settings[key]
        rest = without(inner, tail) if isinstance(inner, dict) else inner
        if rest != {}:
            result[key] = rest
    return result


def leaves(settings: dict, path: str = "") -> Iterator[tuple[str, object]]:
    """Yields each path of nested settings and its value.

    Args:
        settings: a dict of dicts.
        path: a prefix of all paths, which the function passes when it calls itself.
    """
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def nested(path: str, value) -> dict:
    """Returns nested settings with one value.

    Args:
        path: keys with dots between them.
        value: the value at that path.
    """
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def shipped_folder() -> pathlib.Path:
    """Returns the folder of the YAML files that come with this package.

    It is in the installed package, or is the folder `model_garden_configs` of its repository.
    """
    package = pathlib.Path(__file__).parents[1]
    folder = package / "configs"
    return folder if folder.is_dir() else package.parents[1] / "model_garden_configs"


def shipped() -> dict[str, str]:
    """Returns the YAML files that come with this package, file name -> path."""
    return {path.name: str(path) for path in sorted(shipped_folder().glob("*.yaml"))}


def found(path: str) -> str:
    """Returns the path of a config file; checks that it exists, unless it is a URL.

    Args:
        path: a path or URL, or the file name of a YAML that comes with this package.

    Raises:
        UserError: if there is no such file.
    """
    if "://" in path or os.path.isfile(path):
        return path
    paths = shipped()
    if path not in paths:
        name, hint = os.path.basename(path), ""
        if name in paths:
            hint = f", and one of that name comes with this package. Pass the bare name, {name}"
        elif paths and not os.path.dirname(path):
            hint = f". {did_you_mean(path, paths)}"
        raise UserError(missing_text(path) + hint)
    return paths[path]


def missing_text(path: str, flag: str = "--config_file") -> str:
    """Returns the text of the error if `flag` has been given a `path` that does not exist."""
    return f"{flag}={path}: there is no such file"


def read_file(path: str, flag: str = "--config_file") -> dict:
    """Returns the settings in a file.

    TensorFlow, whose import takes seconds, is used only for a file in a bucket, such as gs://...

    Args:
        path: The path of the file.
        flag: The flag that names it, for errors. Defaults to "--config_file".

    Raises:
        UserError: if there is no such file, or it holds no settings, or if it is a local file that
            cannot be read. TensorFlow's errors on a file in a bucket are not replaced.
    """
    if "://" not in path:
        try:
            text = pathlib.Path(path).read_bytes()
        except OSError as error:
            raise UserError(f"{flag}={path} cannot be read: {error.strerror}") from error
    else:
        import tensorflow as tf

        if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
            raise UserError(missing_text(path, flag))
        with tf.io.gfile.GFile(path, "rb") as file:
            text = file.read()
    return mapping(text, f"{flag}={path}")


def read_files(names: list[str] | None) -> list[tuple[str, dict]]:
    """Reads config files, in their order.

    Args:
        names: paths, or file names of YAMLs that come with this package; None for no files.

    Returns:
        A pair for each file: the flag that names it, as text for errors, and its settings.

    Raises:
        UserError: if there is no such file, or it holds no settings.
    """
    paths = map(found, names or [])
    return [(f"--config_file={path}", read_file(path)) for path in paths]
