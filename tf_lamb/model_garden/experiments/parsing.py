"""Parsing of flags to an experiment, with one sentence for whatever cannot be read.

Model Garden reads the same flags; it says of a misspelt key which class lacks it, and of a missing
file where in its own code it was opened.
"""

import contextlib
import json
import typing
from collections.abc import Iterator

import tensorflow as tf
from official.core import config_definitions, exp_factory, train_utils
from official.modeling.hyperparams import base_config, oneof, params_dict

from tf_lamb.model_garden.errors import UserError, did_you_mean, unknown
from tf_lamb.model_garden.experiments import recipes
from tf_lamb.model_garden.experiments.optimizers import OPTIMIZERS
from tf_lamb.model_garden.folders import yamls
from tf_lamb.model_garden.folders.yamls import at, leaves, merged, nested
from tf_lamb.model_garden.running import batches

# The parts without which there is no experiment; others may be null.
_NEEDED = (
    "runtime", "task", "trainer", "model", "optimizer_config", "optimizer", "learning_rate",
    "warmup",
)  # fmt: skip


def parse(flags) -> config_definitions.ExperimentConfig:
    """The experiment that these flags describe, or one `UserError`.

    Args:
        flags: Model Garden's flags, or its `train_utils.ParseConfigOptions`.
    """
    params = _from_files(flags)
    _override(params, own(flags), "--params_override")
    try:
        return train_utils.parse_configuration(flags, print_return=False)
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(f"The configuration cannot be read: {error}") from error


def fill_in(flags) -> str:
    """Puts what the batch flags stand for in front of `--params_override`, where the main reads it.

    What `--params_override` says itself, holds, and the recipe follows it; the same thing said by
    both in two ways is refused.

    Args:
        flags: `global_batch_size`, `recipe` and `per_replica_batch_size`, and Model Garden's.

    Returns:
        The arithmetic, to be printed.
    """
    params, override, text, settings = _from_files(flags), own(flags), [], {}
    _override(params.replace(), override, "--params_override")
    batch, most = flags.global_batch_size, flags.per_replica_batch_size
    if flags.recipe and not batch:
        raise UserError(f"--recipe={flags.recipe} needs --global_batch_size: say for which batch")
    if batch:
        flag = f"--global_batch_size={batch}"
        _check_one(flag, "task.train_data.global_batch_size", batch, override)
        _override(params, _types(override), "--params_override")
        try:
            line, settings = recipes.fill_in(
                flags.recipe or recipes.DEFAULT, batch, params, override
            )
        except (TypeError, ValueError) as error:
            raise UserError(f"{flag}: {error}") from error
        text.append(line)
    _override(params, settings, "--global_batch_size")
    _override(params, override, "--params_override")
    if most:
        count, line = _accumulation(params, most)
        path = (
            f"trainer.optimizer_config.optimizer.{params.trainer.optimizer_config.optimizer.type}."
            "gradient_accumulation_steps"
        )
        _check_one(f"--per_replica_batch_size={most}", path, count, override)
        settings = merged(settings, nested(path, count))
        text.append(line)
    for path, value in leaves(settings):
        if (said := at(override, path)) not in (None, value):
            text.append(f"  but {path} = {said}, as --params_override has it, not {value}")
    if settings:
        put_in_front(flags, settings)
    return "\n".join(text)


def _check_one(flag: str, path: str, value: int, override: dict) -> None:
    """Raises where `--params_override` says otherwise what a flag says."""
    if (said := at(override, path)) not in (None, value):
        raise UserError(
            f"{flag} makes {path} {value}, but --params_override says {said}. Leave one of them out"
        )


def _types(settings: dict) -> dict:
    """The choices that settings make: of an optimizer, a learning rate, a warmup."""
    inner = {key: _types(value) for key, value in settings.items() if isinstance(value, dict)}
    chosen = {"type": settings["type"]} if isinstance(settings.get("type"), str) else {}
    return {key: value for key, value in inner.items() if value} | chosen


def put_in_front(flags, settings: dict) -> None:
    """Has `--params_override` say these settings, too, where it does not say otherwise."""
    flags.params_override = json.dumps(merged(settings, own(flags)))


def _accumulation(params, most: int) -> tuple[int, str]:
    flag = f"--per_replica_batch_size={most}"
    kind = params.trainer.optimizer_config.optimizer.type
    if kind not in OPTIMIZERS:
        raise UserError(
            f"{flag}: only optimizers of tf_lamb accumulate gradients, not {kind}. Write trainer."
            f"optimizer_config.optimizer.type={' or '.join(OPTIMIZERS)}"
        )
    batch = params.task.train_data.global_batch_size
    try:
        if (replicas := batches.replicas(params)) is None:
            raise ValueError(
                f"how many replicas a {params.runtime.distribution_strategy} run has is not known "
                f"beforehand. Set trainer.optimizer_config.optimizer.{kind}."
                "gradient_accumulation_steps instead"
            )
        count = batches.accumulation(batch, replicas, most)
    except ValueError as error:
        raise UserError(f"{flag}: {error}") from error
    share = batch // replicas // count
    line = (
        f"batch = {share:,} examples x {replicas} replica(s) x {count:,} micro-batch(es) "
        f"= {batch:,}"
    )
    if count > 1 and share != most:
        line += (
            f"\n  not {most:,} examples at once: {share:,} is the largest number up to {flag} that "
            f"divides the {batch // replicas:,} of a replica"
        )
    return count, line


def _from_files(flags) -> config_definitions.ExperimentConfig:
    names = sorted(_experiments())
    if flags.experiment not in names:
        raise UserError(unknown("--experiment", flags.experiment, names))
    params = exp_factory.get_exp_config(flags.experiment)
    for path in flags.config_file or []:
        _override(params, _read_yaml(path), f"--config_file={path}")
    return params


def _experiments(collection=None, prefix="") -> Iterator[str]:
    # seam: tf-models-official 2.20.0. The registry has no public listing.
    collection = exp_factory._REGISTERED_CONFIGS if collection is None else collection
    for name, entry in collection.items():
        if isinstance(entry, dict):
            yield from _experiments(entry, f"{prefix}{name}/")
        else:
            yield prefix + name


def _read_yaml(path: str) -> dict:
    if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
        raise UserError(yamls.missing(path))
    with tf.io.gfile.GFile(path, "rb") as file:
        return yamls.mapping(file.read(), f"--config_file={path}")


def own(flags) -> dict:
    """The settings of `--params_override`."""
    if not (text := flags.params_override):
        return {}
    with contextlib.suppress(ValueError):  # else JSON, YAML or the name of a file
        text = params_dict.nested_csv_str_to_json_str(text)
    if tf.io.gfile.exists(text):
        return _read_yaml(text)
    return yamls.mapping(text, "--params_override")


def _override(params, settings: dict, source: str) -> None:
    for complaint in _misfits(params, settings, ""):
        raise UserError(f"{source}: {complaint}")
    try:
        params.override(settings, is_strict=True)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{source} cannot be applied: {error}") from error


def _misfits(config, settings: dict, path: str) -> Iterator[str]:
    """Says of each setting that the config cannot take what it may have meant."""
    for key, value in settings.items():
        known = sorted(set(config.__dict__) - set(config.RESERVED_ATTR))
        if key not in known:
            yield f"there is no {path}{key}. {did_you_mean(key, known)}"
            continue
        if key == "type" and isinstance(config, oneof.OneOfConfig) and value is not None:
            types = [name for name in known if name != "type"]
            if value not in types:
                yield unknown(f"{path}type", value, types)
        # seam: tf-models-official 2.20.0. Where the config holds None or a list, Model Garden
        # takes any key, and the typo ends in a constructor's TypeError.
        kind, present = config._get_subconfig_type(key), config.__dict__[key]
        inner = kind() if kind is not base_config.Config else present
        hint = config._get_annotations().get(key)
        counts = int in (hint, *typing.get_args(hint)) and float not in typing.get_args(hint)
        if isinstance(value, list) and not isinstance(inner, int | float):
            entries = [(f"{path}{key}[{i}]", entry) for i, entry in enumerate(value)]
        else:
            entries = [(f"{path}{key}", value)]
        for name, entry in entries:
            if isinstance(inner, base_config.Config) and isinstance(entry, dict):
                # What is there may know more keys than its declared type does.
                same = isinstance(present, base_config.Config)
                yield from _misfits(present if same else inner, entry, f"{name}.")
            elif isinstance(inner, base_config.Config) and (entry is not None or key in _NEEDED):
                yield f"{name} takes settings of its own, but it is given {entry!r}"
            elif isinstance(inner, int | float) and isinstance(entry, str | dict | list):
                yield f"{name} takes a value such as {inner!r}, but it is given {entry!r}"
            elif isinstance(entry, float) and counts and not isinstance(inner, float):
                way_out = f". Write {int(entry)}" if entry.is_integer() else ""
                yield f"{name} is {entry!r}, which is no whole number{way_out}"
