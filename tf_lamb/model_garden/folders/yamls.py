"""YAML from anywhere: read without executing anything, and without unfolding a bomb.

Model Garden's own loader makes Python functions of `!!python/name`, and takes whatever memory the
aliases of a file unfold to.
"""

import re

import yaml

from tf_lamb.model_garden.errors import UserError

_MOST_VALUES = 100_000  # that aliases may unfold to; the largest experiment has some hundreds
_PLAIN = (str, int, float, bool, type(None))


class _Loader(yaml.SafeLoader):
    """Plain values, and the tuples that Model Garden writes."""


# seam: tf-models-official 2.20.0. Its loader reads 1e-3 as a number, which YAML 1.1 does not.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"), [*"-+0123456789"]
)
_Loader.add_constructor(
    "tag:yaml.org,2002:python/tuple",
    lambda loader, node: tuple(loader.construct_sequence(node, deep=True)),
)


def read(text: str | bytes):
    """The values that a YAML holds: mappings, lists, texts, numbers.

    Raises:
        ValueError: with one line that says what is wrong.
    """
    try:
        found = yaml.load(text, Loader=_Loader)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (
        yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError,
    ) as error:  # fmt: skip
        raise ValueError(" ".join(str(error).split())) from error
    _check(found)
    return found


def _check(found) -> None:
    """Walks through all values, as often as aliases name them."""
    pending, count = [found], 0
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
    except ValueError as error:
        raise UserError(f"{source} is not YAML: {error}") from error
    if not isinstance(found, dict):
        raise UserError(
            f"{source} holds {found!r}, no settings. Write key: value, or on the command line "
            "trainer.train_steps=100,runtime.num_gpus=2"
        )
    return found


def missing(path: str) -> str:
    """What to say of a config file that is not there."""
    return f"--config_file={path}: there is no such file"
