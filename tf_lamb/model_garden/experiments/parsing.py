"""Parses the flags to an experiment, and reports each mistake in one sentence.

The flags are parsed once, and Model Garden's main receives the result. Model Garden's own parser
would report a misspelt key by the name of a config class, and a missing file by a traceback.
"""

import contextlib
import typing
from collections.abc import Iterator, Sequence

import tensorflow as tf
from official.core import config_definitions, exp_factory, train_utils
from official.modeling.hyperparams import base_config, oneof, params_dict

from tf_lamb.api.optimizers import arguments, words
from tf_lamb.model_garden.common import batches, yamls
from tf_lamb.model_garden.common.errors import UserError, did_you_mean, named, unknown
from tf_lamb.model_garden.common.yamls import at, leaves, nested
from tf_lamb.model_garden.experiments import decays, left_behind, scaling
from tf_lamb.model_garden.experiments.optimizers import OPTIMIZERS, SETTINGS
from tf_lamb.model_garden.experiments.places import Places, types_in
from tf_lamb.model_garden.experiments.unread import Source, unread

# Names of nested configs that an experiment cannot do without. Other nested configs may be null.
_NEEDED = (
    "runtime", "task", "trainer", "model", "optimizer_config", "optimizer", "learning_rate",
    "warmup",
)  # fmt: skip


def parse(
    flags,
    override: dict | None = None,
    begun: config_definitions.ExperimentConfig | None = None,
    replicas: int | None = None,
    parts: Sequence[dict] | None = None,
) -> tuple[config_definitions.ExperimentConfig, str]:
    """Parses the flags to an experiment.

    The settings in `--params_override` win over config files and recipes. A recipe takes them into
    account, such as an overridden number of steps. A flag that contradicts them is an error.

    Args:
        flags: The flags.
        override: The settings to use in place of `--params_override`. Defaults to None.
        begun: The `ExperimentConfig` to use in place of the one that `--experiment` and
            `--config_file` describe. Defaults to None.
        replicas: The number of replicas of the run, if its settings do not say it. Defaults to
            None.
        parts: The settings that `override` is merged of, where a type in one may replace that of
            the ones before. Defaults to None: it is one part.

    Returns:
        The `ExperimentConfig`, and a text to print: how the flags of the batch size change the
        settings, and warnings.

    Raises:
        UserError: if a flag, a file or a setting is wrong.
    """
    begun, files = _read_experiment(flags) if begun is None else (begun, [])
    params = begun.replace()
    for source in files:
        _override(params, source.settings, source.name)
    override = own(flags) if override is None else override
    # The overrides are first applied to a copy, to find mistakes in them before a recipe uses them.
    # The recipe itself needs the settings of the YAML files without the overrides.
    overridden = params.replace()
    _override(overridden, override, "--params_override")
    of_override = [Source("--params_override", part) for part in parts or [override]]
    # These recipes choose types themselves.
    chooses = flags.recipe in (scaling.TRANSFER, *scaling.PUBLISHED)
    sources = [*files, *of_override]
    warnings = [] if chooses else unread(begun, overridden, sources)
    tuned = params.replace()
    text, filled_settings = _settings_of_batch(flags, params, override)
    _override(params, filled_settings, "--global_batch_size")
    parser = train_utils.ExperimentParser(flags)
    parser.parse_data_service(parser.parse_runtime(params))
    _override(params, override, "--params_override")
    if chooses:
        recipe = Source("--recipe", filled_settings)
        sources = [*files, recipe, *of_override]
        warnings = unread(begun, params, sources)
    left_behind.turn_off_what_is_answered(begun, params, sources)
    text += warnings
    if not filled_settings and at(override, "trainer.train_steps") is not None:
        text += filter(None, [decays.cut_short(tuned, params)])
    if largest := flags.per_replica_batch_size:
        text.append(_accumulate(params, largest, replicas, override))
    for path, value in leaves(filled_settings):
        if (overridden := at(override, path)) not in (None, value):
            text.append(f"  but {path} = {overridden}, as --params_override has it, not {value}")
    with named("The configuration cannot be read", (KeyError, ValueError, TypeError)):
        params.validate()
    params.lock()
    return params, "\n".join(text)


def _read_experiment(flags) -> tuple[config_definitions.ExperimentConfig, list[Source]]:
    """Returns the experiment of `--experiment`, and the settings of each `--config_file`.

    Raises `UserError` if there is no experiment of this name, or if a file cannot be read.
    """
    names = sorted(experiments())
    if flags.experiment not in names:
        raise UserError(unknown("--experiment", flags.experiment, names))
    files = [Source(name, settings) for name, settings in yamls.read_files(flags.config_file)]
    return exp_factory.get_exp_config(flags.experiment), files


def _settings_of_batch(flags, params, override: dict) -> tuple[list[str], dict]:
    """Returns lines that explain the settings for `--global_batch_size`, and these settings.

    Both are empty without this flag. With it, `params` first gets the types that
    `--params_override` sets. Raises `UserError` if the recipe does not fit the experiment, or if
    `--recipe` is set without the flag.
    """
    if not (batch := flags.global_batch_size):
        if flags.recipe:
            raise UserError(
                f"--recipe={flags.recipe} needs --global_batch_size: say for which batch"
            )
        return [], {}
    flag = f"--global_batch_size={batch}"
    _check_one(flag, "task.train_data.global_batch_size", batch, override)
    _override(params, types_in(override), "--params_override")
    with named(flag):
        line, settings = scaling.settings_at_batch(
            flags.recipe or scaling.DEFAULT, batch, params, override
        )
    return [line], settings


def _check_one(flag: str, path: str, value: int, override: dict) -> None:
    """Raises `UserError` if `--params_override` contradicts a flag.

    The flag sets the setting at `path` to `value`, and `override` has another value there.
    """
    if (overridden := at(override, path)) not in (None, value):
        raise UserError(
            f"{flag} makes {path} {value}, but --params_override says {overridden}. Leave one of "
            "them out"
        )


def accumulated(params, most: int, replicas: int):
    """Returns an experiment with as many micro-batches as `--per_replica_batch_size` requires.

    Args:
        params: The `ExperimentConfig` that `parse` returns.
        most: The largest number of examples that a replica holds at once.
        replicas: The number of replicas of the run. On a TPU it is known once the strategy is made.

    Returns:
        The changed `ExperimentConfig`, and a line to print that explains the micro-batches.

    Raises:
        UserError: if the batch cannot be split over these replicas.
    """
    params = params.replace()
    line = _accumulate(params, most, replicas)
    params.lock()
    return params, line


def _accumulate(params, most: int, replicas: int | None, override: dict | None = None) -> str:
    """Sets the number of micro-batches of an update, so that each has at most `most` examples.

    Returns a line to print that explains the number. Sets nothing if the number of replicas is not
    known yet. Raises `UserError` if the batch cannot be split.
    """
    flag = f"--per_replica_batch_size={most}"
    kind = params.trainer.optimizer_config.optimizer.type
    if kind not in OPTIMIZERS:
        raise UserError(
            f"{flag}: only optimizers of tf_lamb accumulate gradients, not {kind}. Write trainer."
            f"optimizer_config.optimizer.type={' or '.join(OPTIMIZERS)}"
        )
    path = f"trainer.optimizer_config.optimizer.{kind}.gradient_accumulation_steps"
    batch = params.task.train_data.global_batch_size
    with named(flag):
        replicas = replicas or batches.replicas(params)
        if replicas is None:
            if (value := at(override, path)) is not None:
                raise ValueError(
                    f"it stands for {path}, of which --params_override says {value}. Leave one of "
                    "them out"
                )
            return (
                f"batch = {batch:,} examples, at most {most:,} on a replica at once: the run "
                "accumulates the rest when the TPU says how many replicas it has"
            )
        count = batches.accumulation(batch, replicas, most)
    _check_one(flag, path, count, override or {})
    _override(params, nested(path, count), "--per_replica_batch_size")
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
    return line


def experiments(collection=None, prefix="") -> Iterator[str]:
    """Yields the names of all registered experiments.

    Args:
        collection: A part of the registry. Defaults to None: the whole registry.
        prefix: The beginning of the names in this part. Defaults to an empty string.

    Yields:
        The name of an experiment.
    """
    # seam: relies on tf-models-official 2.20.0, where no public function lists the registry.
    collection = exp_factory._REGISTERED_CONFIGS if collection is None else collection
    for name, entry in collection.items():
        if isinstance(entry, dict):
            yield from experiments(entry, f"{prefix}{name}/")
        else:
            yield prefix + name


def own(flags) -> dict:
    """Returns the settings of `--params_override`; raises `UserError` if it cannot be read."""
    if not (text := flags.params_override):
        return {}
    # Text that is not of the form a.b=1,c=2 is JSON, YAML or the name of a file.
    with contextlib.suppress(ValueError):
        text = params_dict.nested_csv_str_to_json_str(text)
    if tf.io.gfile.exists(text):
        return yamls.read_file(text, "--params_override")
    return yamls.mapping(text, "--params_override")


def _override(params, settings: dict, source: str) -> None:
    """Overrides settings of an experiment; raises `UserError` if they do not fit it.

    The message begins with `source`, the flag or file that has the settings.
    """
    for complaint in _misfits(params, settings, "", Places(params, settings)):
        raise UserError(f"{source}: {complaint}")
    kinds = KeyError, ValueError, TypeError, AttributeError
    with named(f"{source} cannot be applied", kinds):
        params.override(settings, is_strict=True)


def _misfits(config, settings: dict, path: str, places: Places) -> Iterator[str]:
    """Yields a sentence for each setting that a config has no place for, or of a wrong type.

    The sentence has a suggestion.

    Args:
        config: A part of the experiment.
        settings: What the user has written for it.
        path: The path of this part in the experiment, with a dot at its end.
        places: Where the settings of the experiment belong.
    """
    for key, value in settings.items():
        known_keys = sorted(set(config.__dict__) - set(config.RESERVED_ATTR))
        if key not in known_keys:
            way_out = _way_out(config, key, value, path, places) or did_you_mean(key, known_keys)
            yield f"there is no {path}{key}. {way_out}"
            continue
        if key == "type" and isinstance(config, oneof.OneOfConfig) and value is not None:
            types = [name for name in known_keys if name != "type"]
            if value not in types:
                yield unknown(f"{path}type", value, types)
        # seam: relies on tf-models-official 2.20.0. Where the config holds None or a list, Model
        # Garden accepts any key, and a typo would end in the TypeError of a constructor.
        kind, current = config._get_subconfig_type(key), config.__dict__[key]
        inner = kind() if kind is not base_config.Config else current
        hint = config._get_annotations().get(key)
        is_integer = int in (hint, *typing.get_args(hint)) and float not in typing.get_args(hint)
        if isinstance(value, list) and not isinstance(inner, int | float):
            entries = [(f"{path}{key}[{i}]", entry) for i, entry in enumerate(value)]
        else:
            entries = [(f"{path}{key}", value)]
        for name, entry in entries:
            if isinstance(inner, base_config.Config) and isinstance(entry, dict):
                # The present value may have more keys than the declared type.
                is_config = isinstance(current, base_config.Config)
                yield from _misfits(current if is_config else inner, entry, f"{name}.", places)
            elif isinstance(inner, base_config.Config) and (entry is not None or key in _NEEDED):
                place = places.instead_of(path, key, entry) if entry is not None else ""
                text = f"{name} takes settings of its own, but it is given {entry!r}"
                yield ". ".join(filter(None, [text, place]))
            elif isinstance(inner, int | float) and isinstance(entry, str | dict | list):
                yield f"{name} takes a value such as {inner!r}, but it is given {entry!r}"
            elif isinstance(entry, float) and is_integer and not isinstance(inner, float):
                way_out = f". Write {int(entry)}" if entry.is_integer() else ""
                yield f"{name} is {entry!r}, which is no whole number{way_out}"


def _way_out(config, key: str, value, path: str, places: Places) -> str:
    """Returns a sentence on where an unknown setting belongs, or how we call it; "" if not known.

    Args:
        config: The config that has no such setting.
        key: The name of the setting.
        value: What the user has written.
        path: The path of the config, with a dot at its end.
        places: Where the settings of the experiment belong.
    """
    ours, reason = _in_our_words(config, key, value, path)
    return ours or places.instead_of(path, key, value) or reason


def _in_our_words(config, key: str, value, path: str) -> tuple[str, str]:
    """Returns suggestions if a key is the argument of another package's optimizer.

    Returns:
        A sentence with the settings of this package that do the same, or with what is wrong with
        their values; and one on why there are none. Both are "" for any other key.
    """
    for kind, cls in OPTIMIZERS.items():
        if not (isinstance(config, SETTINGS[kind]) and words.is_known(key)):
            continue
        our_arguments, notes, unsupported = arguments.translate(cls, {key: value})
        if our_arguments and all(name in config.__dict__ for name in our_arguments):
            if refusal := arguments.refusal(cls, {key: value}):
                return refusal.removesuffix("."), ""
            pairs = " and ".join(f"{path}{name}={text}" for name, text in our_arguments.items())
            return " ".join(filter(None, [f"Write {pairs}.", notes])).removesuffix("."), ""
        is_needless = not our_arguments and not unsupported
        return "", "Leave it out" if is_needless else notes.removesuffix(".")
    return "", ""
