"""Model Garden's choices (of an optimizer, a learning rate, a warmup), with ours among them."""

import dataclasses
import inspect
from typing import Any

from official.modeling.hyperparams import base_config, oneof


def settings(cls, *without: str, base=base_config.Config, **more) -> type[base_config.Config]:
    """The arguments of a class as a class of settings: without some, and with more.

    One that has no default is None here, so that an experiment may leave it to its YAML.
    """
    arguments = {
        name: None if argument.default is argument.empty else argument.default
        for name, argument in inspect.signature(cls).parameters.items()
        if name not in without and argument.kind is not argument.VAR_KEYWORD
    }
    fields = [(name, Any, default) for name, default in {**arguments, **more}.items()]
    return dataclasses.make_dataclass(f"{cls.__name__}Config", fields, bases=(base,))


def add(choice: type[oneof.OneOfConfig], kinds: dict[str, type]) -> None:
    """Has a choice know our keys, in every experiment.

    A subclass would serve those experiments alone that are made with it.

    Args:
        choice: Model Garden's class; what derives from it knows our keys, too.
        kinds: key -> the class of its settings.
    """
    # seam: tf-models-official 2.20.0. A config reads the type of a field from the annotations, and
    # takes overrides of what is in its dict. Some experiments copy one that is older than ours.
    choice.__annotations__.update(kinds)

    def complete(self):
        for key, kind in kinds.items():
            self.__dict__.setdefault(key, kind())

    def __post_init__(self, *args):
        complete(self)
        oneof.OneOfConfig.__post_init__(self, *args)

    def __setstate__(self, state):
        self.__dict__.update(state)
        complete(self)

    choice.__post_init__, choice.__setstate__ = __post_init__, __setstate__
