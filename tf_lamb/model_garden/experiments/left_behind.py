"""Finds the settings of an optimizer that a run would lose, because another type is chosen.

An experiment has settings for the type of optimizer that it was written for. If the user chooses
another type, that type starts from its own defaults. The run could then train without weight decay,
decay the wrong variables, or clip nothing.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from official.core import exp_factory

from tf_lamb.core.messages import join_words
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.common.yamls import at
from tf_lamb.model_garden.experiments.optimizers import OPTIMIZERS
from tf_lamb.model_garden.experiments.unread import Source, types_of_sources

CLIPPINGS = ("clipnorm", "global_clipnorm", "clipvalue")
_PATH = "trainer.optimizer_config.optimizer"
# Settings that must not get lost when the user picks another type of optimizer. Each line lists the
# names of one setting, or of its alternatives, in the optimizers of this package and of Model
# Garden. The setting is not lost if the new type sets any name in the line.
_ROLES = (
    ("weight_decay", "weight_decay_rate"),
    ("exclude_from_weight_decay", "include_in_weight_decay"),
    ("exclude_from_layer_adaptation",),
    (*CLIPPINGS, "gradient_clip_norm"),
)
# The settings that are turned off by 0. Others are turned off by null.
_OFF_BY_0 = "weight_decay", "weight_decay_rate", "gradient_clip_norm"


def turn_off_what_is_answered(begun, params, sources: Sequence[Source]) -> None:
    """Turns off the settings of unused types that the user has answered with 0 or null.

    A user who writes `tf_lamb.global_clipnorm: null` wants no clipping. In the settings that is
    also the default of `tf_lamb`, so `check` could not tell it from nothing. Hence the settings of
    other types that it stands for, such as `adamw.gradient_clip_norm`, are turned off.

    Args:
        begun: The experiment before the sources were applied.
        params: The experiment with all sources applied, which is changed.
        sources: What the user has written; a later source wins over an earlier one.

    Raises:
        UserError: if the block of the chosen type is null.
    """
    optimizer = params.trainer.optimizer_config.optimizer
    chosen = optimizer.type
    if chosen not in OPTIMIZERS:
        return
    if optimizer.get() is None:
        raise UserError(f"{_PATH}.{chosen} is null. Leave it out to have its defaults")
    settings_by_source = [at(source.settings, _PATH) or {} for source in sources]
    # A null beside another type, which a later source replaces, is no answer for the later type.
    types = types_of_sources(begun, _PATH, settings_by_source)
    answered = {
        name
        for settings, kind in zip(settings_by_source, types, strict=True)
        if kind == chosen
        for name in settings.get(chosen) or {}
    }
    for unused_type in _types_of(optimizer):
        unused = getattr(optimizer, unused_type)
        for name in dict(_lost(unused.as_dict(), optimizer.get().as_dict())):
            if unused_type != chosen and _ours(name) in answered:
                unused.override({name: 0 if name in _OFF_BY_0 else None})


def check(optimizer, experiment: str | None) -> None:
    """Checks that a change of the optimizer's type loses no settings of the experiment.

    Settings that the user has changed come before those that the experiment has by itself.

    Args:
        optimizer: The experiment's `OptimizerConfig`, whose type is one of this package.
        experiment: The name of the experiment, if it is known.

    Raises:
        UserError: if settings get lost.
    """
    # Without the name, the defaults are those of the types.
    begun = type(optimizer)()
    if experiment is not None:
        begun = exp_factory.get_exp_config(experiment).trainer.optimizer_config.optimizer
    lost_by_type = {
        kind: _lost_of_type(optimizer, begun, kind)
        for kind in _types_of(optimizer)
        if kind != optimizer.type
    }
    unchanged_types = {
        kind
        for kind, lost in lost_by_type.items()
        if experiment is not None and lost.items() <= getattr(begun, kind).as_dict().items()
    }
    for unused_type in sorted(lost_by_type, key=unchanged_types.__contains__):
        if lost_settings := lost_by_type[unused_type]:
            our_keys = dict.fromkeys(map(_ours, lost_settings))
            origin = f" in the experiment {experiment}" if unused_type in unchanged_types else ""
            lost_text = join_words(f"{key}={value}" for key, value in lost_settings.items())
            raise UserError(
                f"{_PATH}.type={optimizer.type} has no {join_words(our_keys)}, but {unused_type}, "
                f"which is not used, has {lost_text}{origin}. Write "
                f"{join_words(f'{optimizer.type}.{key}' for key in our_keys)}, or for none "
                f"{join_words(f'{optimizer.type}.{key}={_off(key)}' for key in our_keys)}"
            )


def _lost_of_type(optimizer, begun, unused_type: str) -> dict[str, Any]:
    """Returns the settings of one unused type that get lost; an empty dict if none do.

    Args:
        optimizer: The experiment's `OptimizerConfig`.
        begun: The same before the user changed it.
        unused_type: The type.
    """
    config = getattr(optimizer, unused_type)
    defaults = type(config)().as_dict()
    if config.as_dict() == getattr(begun, unused_type).as_dict() == defaults:
        return {}  # nobody has chosen its settings
    lost = dict(_lost(config.as_dict(), optimizer.get().as_dict()))
    if unused_type in OPTIMIZERS and not lost.keys() - {"weight_decay"}:
        return {}  # only this package's `weight_decay` is lost, which is taken as intended
    return lost


def _types_of(optimizer) -> list[str]:
    """Returns the sorted names of the optimizers that an `OptimizerConfig` can select by `type`.

    Those whose block the user has set to null are left out.
    """
    names = set(optimizer.__dict__) - set(optimizer.RESERVED_ATTR) - {"type"}
    return sorted(name for name in names if getattr(optimizer, name) is not None)


def _lost(settings: dict, chosen: dict) -> Iterator[tuple[str, Any]]:
    """Yields key and value of the settings that get lost, because the chosen type has none of them.

    The chosen type has a setting if it sets any name in the same line of `_ROLES`.

    Args:
        settings: The settings of the type that is not used.
        chosen: The settings of the chosen type.
    """
    for names in _ROLES:
        if any(chosen.get(name) not in (None, 0) for name in names):
            continue
        if "weight_decay" in names and (chosen.get("weight_decay_schedule") or {}).get("type"):
            continue  # the schedule replaces the number
        yield from ((name, settings[name]) for name in names if settings.get(name))


def _ours(key: str) -> str:
    """Translates the name of a setting of Model Garden's optimizers to its name in this package."""
    return {
        "weight_decay_rate": "weight_decay", "gradient_clip_norm": "global_clipnorm",
        "include_in_weight_decay": "exclude_from_weight_decay",
    }.get(key, key)  # fmt: skip


def _off(key: str) -> str:
    """Returns the value, "0" or "null", that turns off a setting of an optimizer."""
    return "0" if key in _OFF_BY_0 else "null"
