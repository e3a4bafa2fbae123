"""Compares the arguments of the source of a migration with those of the optimizer here.

The source is the optimizer whose state is migrated, often one of another package, a peer. "Here"
means in this package: the optimizer that continues the state.
"""

import math
from collections.abc import Mapping
from typing import Any

from tf_lamb.api.keras_schedules import arrays_to_numbers
from tf_lamb.api.optimizers.settings import EXCLUSIONS
from tf_lamb.core.rules.muon import PRESETS

# Arguments that do not change the computed numbers.
_ARGUMENTS_WITHOUT_EFFECT = ("name", "jit_compile", "shard_update")
AVERAGING_ARGUMENTS = ("ema_momentum", "ema_overwrite_frequency")
# Arguments that are no part of the formula of an update. If the source does not have such an
# argument, the report does not list the value of the optimizer here as a change.
_ARGUMENTS_OUTSIDE_RULE = (
    "dtypes",
    "gradient_accumulation_steps",
    "loss_scale_factor",
    *AVERAGING_ARGUMENTS,
)
# Arguments that only Keras's Muon has -> the constants that this package computes with.
MUON_CONSTANTS = {"rms_rate": 0.2}


def argument_changes(
    source_arguments, new_arguments, defaults, omitted
) -> dict[str, tuple[Any, Any]]:
    """Compares the arguments of the source with those of the optimizer here.

    The arguments of moving averages are compared only if the source has `use_ema`.

    Args:
        source_arguments: The source's arguments, by their names in this package.
        new_arguments: The arguments of the optimizer that continues the source.
        defaults: Argument -> default of our optimizer, which is assumed for a source that does not
            have the argument.
        omitted: Names of arguments that were not saved in the source. They are not compared.

    Returns:
        Argument -> (value in the source, value here), where the two behave differently.
    """
    result = {}
    source_values = {
        argument: default
        for argument, default in defaults.items()
        if argument not in (*omitted, *_ARGUMENTS_OUTSIDE_RULE)
    } | dict(source_arguments)
    for name, new_value in new_arguments.items():
        if name in _ARGUMENTS_WITHOUT_EFFECT or name not in source_values:
            continue
        if name in ("use_ema", *AVERAGING_ARGUMENTS) and not source_values.get("use_ema"):
            continue  # averages do not change the steps; `averages` of the report describes them
        source_effect, new_effect = (
            _effect(name, value, config)
            for value, config in ((source_values[name], source_values), (new_value, new_arguments))
        )
        if not is_same_value(source_effect, new_effect):
            result[name] = (source_values[name], new_value)
    return result


def muon_changes(
    source_config: Mapping[str, Any], new_arguments: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Compares the arguments that only Keras's Muon has with the values that our Muon uses.

    Args:
        source_config: The arguments of Keras's Muon, by their names in Keras.
        new_arguments: The arguments of our Muon.

    Returns:
        Argument of Keras's Muon -> (value in the source, value here), where the two differ.
    """
    new_values = dict(MUON_CONSTANTS)
    if "adam_weight_decay" in source_config and not isinstance(
        new_arguments["weight_decay"], Mapping
    ):
        # If Adam updates a variable, Keras multiplies the weight decay by the full learning rate,
        # and this package by the learning rate times `fallback_lr_scale`.
        new_values["adam_weight_decay"] = (
            new_arguments["weight_decay"] * new_arguments["form"]["fallback_lr_scale"]
        )
    value_pairs = {
        name: (source_config[name] or 0.0, value)
        for name, value in new_values.items()
        if name in source_config
    }
    return {
        name: pair for name, pair in value_pairs.items() if not math.isclose(*pair, rel_tol=1e-6)
    }


def rule_changes(
    fresh_variables: Mapping[str, tuple[Mapping[str, Any], bool]],
) -> dict[str, tuple[str, str]]:
    """Finds the variables whose update Muon orthogonalizes in the source or here, but not in both.

    Args:
        fresh_variables: Path of a variable whose slots (its state arrays) begin at zero here ->
            (its slots in the source, whether Muon orthogonalizes its update here).

    Returns:
        "the rule of PATH" -> (rule in the source, rule here), each "Newton-Schulz" or "AdamW".
    """
    rules = {True: "Newton-Schulz", False: "AdamW"}
    is_matrix_pairs = {
        path: ("v" not in slots, is_matrix) for path, (slots, is_matrix) in fresh_variables.items()
    }
    return {
        f"the rule of {path}": (rules[in_source], rules[in_new])
        for path, (in_source, in_new) in is_matrix_pairs.items()
        if in_source != in_new
    }


def averaging_changes(
    source_config: Mapping[str, Any], new_arguments: Mapping[str, Any]
) -> dict[str, tuple[str, str]]:
    """Returns when moving averages of weights are updated in Keras and here, if it differs.

    Keras updates them at each micro-batch, this package at each update of the weights.

    Args:
        source_config: The source's arguments, by its own names.
        new_arguments: The arguments of the optimizer that continues the source.

    Returns:
        "when the averages move" -> (when in Keras, when here); {} if both are the same.
    """
    accumulates = (source_config.get("gradient_accumulation_steps") or 1) > 1
    if not (accumulates and source_config.get("use_ema") and new_arguments["use_ema"]):
        return {}
    return {"when the averages move": ("at each micro-batch", "at each update")}


def adascale_changes(
    source_arguments: Mapping[str, Any], new_arguments: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Compares the arguments of an AdaScale around the source with those of the one here.

    Args:
        source_arguments: The arguments of the source's AdaScale; empty if it has none.
        new_arguments: The arguments of the AdaScale that continues the source; empty if there is
            none. A missing argument counts as None.

    Returns:
        "AdaScale's ARGUMENT" -> (value in the source, value here), where the two differ.
    """
    names = ("scale", "preconditioned")
    pairs = {
        f"AdaScale's {name}": (source_arguments.get(name), new_arguments.get(name))
        for name in names
    }
    return {name: pair for name, pair in pairs.items() if not is_same_value(*pair)}


def schedule_slowdown(source_config: Mapping[str, Any], new_arguments: Mapping[str, Any]) -> int:
    """Returns how many times slower the same learning rate schedule is here than in Keras.

    With gradient accumulation, Keras reads a schedule at the number of micro-batches, and this
    package at the number of updates. So the result is the number of micro-batches of an update. It
    is 1 if the two schedules are not the same.

    Args:
        source_config: The source's arguments, by its own names.
        new_arguments: The arguments of the optimizer that continues it.
    """
    source_rate = source_config.get("learning_rate")
    is_same_schedule = is_serialized(source_rate) and is_same_value(
        source_rate, new_arguments["learning_rate"]
    )
    return (source_config.get("gradient_accumulation_steps") or 1) if is_same_schedule else 1


def _effect(name, value, arguments):
    """Returns a value of an argument in a form that is equal for values with the same effect.

    For example, None for an exclusion list becomes [].

    Args:
        name: The argument.
        value: Its value in a config.
        arguments: All arguments of that config.
    """
    if name == "exclude_from_layer_adaptation" and value is None:
        value = arguments.get("exclude_from_weight_decay")
    if name in EXCLUSIONS:
        return sorted(value or ())
    if isinstance(value, Mapping) and not is_serialized(value):
        # An empty dict has the same effect as None.
        value = {key: entry for key, entry in value.items() if entry is not None} or None
        return _with_numeric_coefficients(value) if value and "coefficients" in value else value
    return (value or 0.0) if name == "weight_decay" else value


def _with_numeric_coefficients(form):
    """Returns Muon's argument `form` with coefficients (a, b, c) for each Newton-Schulz step."""
    coefficients = form["coefficients"]
    numbers = PRESETS[coefficients] if isinstance(coefficients, str) else coefficients
    is_of_every_step = not isinstance(numbers[0], (list, tuple))
    steps = form.get("newton_schulz_steps", 5)
    return {**form, "coefficients": [numbers] * steps if is_of_every_step else numbers}


def is_same_value(a, b):
    """Returns whether two values of configs mean the same, also across Keras 3 and tf_keras."""
    if all(isinstance(value, (int, float)) for value in (a, b)):
        return a == b or abs(a - b) <= 1e-6 * max(abs(a), abs(b))  # inf - inf is nan
    a, b = map(_class_and_numbers, map(arrays_to_numbers, (a, b)))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(is_same_value(a[key], b[key]) for key in a)
    if all(isinstance(value, (list, tuple)) for value in (a, b)):
        return len(a) == len(b) and all(map(is_same_value, a, b))
    return a == b


def is_serialized(value) -> bool:
    """Returns whether a value is a serialized object of a config, such as a schedule."""
    return isinstance(value, Mapping) and {"class_name", "config"} <= value.keys()


def _class_and_numbers(value):
    """Returns a dict of a serialized schedule's class and numbers, without package and name.

    Any other value is returned as it is.
    """
    if not is_serialized(value) or not isinstance(value["config"], Mapping):
        return value
    class_name = value.get("registered_name") or value["class_name"]
    numbers = {
        name: entry
        for name, entry in value["config"].items()
        if name != "name" and entry is not None
    }
    return {"class_name": class_name.rpartition(">")[2], **numbers}


def value_text(value) -> str:
    """Returns an argument's value as text for a report; a schedule looks like a call."""
    value = arrays_to_numbers(value)
    reduced = _class_and_numbers(value)
    if reduced is value:
        return repr(value)
    class_name = reduced.pop("class_name")
    arguments = (f"{name}={value_text(entry)}" for name, entry in reduced.items())
    return f"{class_name}({', '.join(arguments)})"
