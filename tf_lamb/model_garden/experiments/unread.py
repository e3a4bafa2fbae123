"""Finds the settings of a user that no run reads, because another `type` is chosen beside them.

    optimizer: {type: tf_lamb, lamb: {beta_2: 0.98}}

Model Garden reads the block with the name of the type, here `tf_lamb`, and passes over any other
block without a word. Its experiments have blocks of many types, with their defaults, so only what
the user has written is looked at.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from official.modeling.hyperparams import base_config, oneof

from tf_lamb.model_garden.common import seams
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.common.yamls import at, leaves

# The part of an experiment that is looked at. It has the optimizer, the learning rate, the warmup.
_ROOT = "trainer.optimizer_config"


class Source(NamedTuple):
    """Holds what the user has written in one place.

    Attributes:
        name: The place, as the user writes it: a flag.
        settings: The settings, as nested dicts.
    """

    name: str
    settings: dict[str, Any]


def unread(begun, params, sources: Sequence[Source]) -> list[str]:
    """Looks for blocks that the user has written for a type that is not chosen.

    Args:
        begun: The experiment before the sources were applied.
        params: The experiment with all sources applied.
        sources: What the user has written; a later source wins over an earlier one.

    Returns:
        A warning for each block that is not read and may be meant so: a later source has replaced
        its type, or the same source has the block of the type, or all types are Model Garden's own.

    Raises:
        UserError: for any other block that is not read.
    """
    settings = [
        inner for source in sources if isinstance(inner := at(source.settings, _ROOT), dict)
    ]
    choices = _choices(params.trainer.optimizer_config, settings, _ROOT)
    return [warning for choice in choices for warning in _warnings(choice, begun, sources)]


@dataclasses.dataclass(frozen=True)
class _Choice:
    """Holds a part of an experiment that has a `type`, and a block of settings for each type.

    Attributes:
        path: Its path in the experiment.
        config: Its settings, with all sources applied.
        is_in_ours: Whether it is a setting of an optimizer of ours.
    """

    path: str
    config: oneof.OneOfConfig
    is_in_ours: bool

    def is_mistaken(self, block: str) -> bool:
        """Returns whether no YAML for Model Garden's own types has this block beside the type."""
        types = filter(None, (self.config.type, block))
        return self.is_in_ours or any(seams.is_added(self.config, kind) for kind in types)

    def way_out(self, block: str, is_typed: bool) -> str:
        """Returns what to write so that a block is read.

        Args:
            block: The name of the block.
            is_typed: Whether the user has written the type.
        """
        chosen, choose = self.config.type, f"rite {self.path}.type={block}"
        if chosen is None:
            return f"W{choose}"
        if not seams.is_added(self.config, chosen):
            return f"W{choose}, or rename the block to {chosen}"
        return f"Rename the block to {chosen}" + ("" if is_typed else f", or w{choose}")


def _choices(config, settings: list[dict], path: str, is_in_ours=False) -> Iterator[_Choice]:
    """Yields each choice that settings say something of, without those in blocks of other types.

    Args:
        config: A part of the experiment.
        settings: What the sources have for this part.
        path: The path of this part.
        is_in_ours: Whether this part is a setting of an optimizer of ours. Defaults to False.
    """
    is_choice = isinstance(config, oneof.OneOfConfig)
    for key, inner in config.__dict__.items():
        inner_settings = [part[key] for part in settings if isinstance(part.get(key), dict)]
        if not inner_settings or not isinstance(inner, base_config.Config):
            continue
        if is_choice and key != config.type:
            continue
        is_ours = is_in_ours or (is_choice and seams.is_added(config, key))
        if isinstance(inner, oneof.OneOfConfig):
            yield _Choice(f"{path}.{key}", inner, is_ours)
        yield from _choices(inner, inner_settings, f"{path}.{key}", is_ours)


def _warnings(choice: _Choice, begun, sources: Sequence[Source]) -> Iterator[str]:
    """Yields the warnings on one choice; raises as `unread` does.

    Args:
        choice: The choice.
        begun: The experiment before the sources were applied.
        sources: What the user has written.
    """
    chosen = choice.config.type
    settings_by_source = [at(source.settings, choice.path) or {} for source in sources]
    types = types_of_sources(begun, choice.path, settings_by_source)
    typed = [i for i, part in enumerate(settings_by_source) if "type" in part]
    is_chosen_written = any(isinstance(part.get(chosen), dict) for part in settings_by_source)
    for i, (source, part) in enumerate(zip(sources, settings_by_source, strict=True)):
        if chosen is None and typed and i <= typed[-1]:
            continue  # turned off, here or later
        for block in _blocks(part):
            was_read = block in types[i:]
            if block == chosen or (was_read and is_chosen_written):
                continue
            reason = f"its type is {chosen}" if chosen else "there is no type"
            text = (
                f"{source.name}: the block {block} of {choice.path} is not read, because {reason}"
            )
            if was_read or isinstance(part.get(types[i]), dict) or not choice.is_mistaken(block):
                yield text
            else:
                raise UserError(f"{text}. {choice.way_out(block, is_typed=bool(typed))}")


def types_of_sources(begun, path: str, settings_by_source: list[dict]) -> list[str | None]:
    """Returns the type of a choice as it is after each source.

    Args:
        begun: The experiment before the sources were applied.
        path: The path of the choice.
        settings_by_source: What each source has for the choice.
    """
    for key in path.split("."):
        begun = getattr(begun, key, None)
    current, types = getattr(begun, "type", None), []
    for part in settings_by_source:
        current = part.get("type", current)
        types.append(current)
    return types


def _blocks(settings: dict) -> Iterator[str]:
    """Yields the blocks that a source has for a choice.

    It leaves out a block whose values are all 0, false or null, such as
    `adamw.weight_decay_rate=0`. With such a block, a user who chooses another type only clears the
    settings that the experiment had for the old type.
    """
    for key, block in settings.items():
        if isinstance(block, dict) and any(value for _, value in leaves(block)):
            yield key
