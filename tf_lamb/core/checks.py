"""Checks arguments. A check returns the value to store, or raises an error that says what to do."""

import dataclasses
import difflib
import functools
import math
import numbers
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tf_lamb.core.patterns import ARGUMENTS_WITH_PRESETS, PRESETS
from tf_lamb.core.rules.muon import PRESETS as COEFFICIENTS
from tf_lamb.core.rules.muon import Coefficients, Triple
from tf_lamb.core.rules.shared import Interval
from tf_lamb.core.spikes import DEFAULT_DEVIATIONS, DEFAULT_WINDOW

# Name of an argument -> the interval of its values, and an example.
RANGES = {
    "learning_rate": ("[0, inf)", "0.01"),
    "weight_decay": ("[0, inf)", "0.01"),
    "beta_1": ("[0, 1)", "0.9"),
    "beta_2": ("[0, 1)", "0.999"),
    "momentum": ("[0, 1)", "0.9"),
    "epsilon": ("[0, inf)", "1e-6"),
    "trust_coefficient": ("[0, inf)", "0.001"),
    "delta": ("[0, inf)", "0.1"),
    "wd_ratio": ("[0, 1]", "0.1"),
    "ema_momentum": ("[0, 1]", "0.99"),
    "loss_scale_factor": ("[1e-30, inf)", "1024.0"),
    "clipnorm": ("[0, inf)", "1.0"),
    "clipvalue": ("[0, inf)", "1.0"),
    "global_clipnorm": ("[0, inf)", "1.0"),
    "smoothing": ("[0, 1)", "0.99"),
    "scale": ("[1, inf)", "8"),
    "form['fallback_lr_scale']": ("[0, inf)", "1.0"),
}

MAX_WINDOW_STEPS = 2**20  # the largest number of gradient norms in the window of `on_spike`

MAX_STEPS = 2**31 - 1  # Keras counts steps in an int32, except on TensorFlow

CHOICES = {
    "weight_decay_mode": ("update", "decoupled"),
    "form['momentum']": ("inside", "outside", "mixed"),
    "form['denominator']": ("sum_of_norms", "norm_of_sum", "norm_of_update"),
    "form['update_scale']": ("rms", "shape"),
    "form['coefficients']": (*COEFFICIENTS,),
    "form['renewal']": ("cholesky", "qr"),
    "form['norm']": ("constant",),
    "form['heads']": ("each",),
    "dtypes['slots']": ("float32", "bfloat16"),
    "dtypes['masters']": ("float32",),
    "dtypes['products']": ("float32", "bfloat16"),
    "on_nonfinite": ("skip", "raise", "propagate"),
    "method": ("decentlam", "dmsgd", "dmsgd_awc", "dsgd"),
    "kind": ("linear", "polynomial", "exponential", "constant"),
    "handover": ("continuous", "drop"),
    "decay": ("constant", "multi_step", "polynomial"),
}


# Name of an argument -> what other packages say -> the value that means the same here.
_VALUES_ELSEWHERE = {
    "weight_decay_mode": {
        "adamw": "decoupled", "keras": "decoupled", "outside": "decoupled", "paper": "update",
        "inside": "update", "lamb": "update",
    },
    "form['momentum']": {
        "heavy": "inside", "heavy_ball": "inside", "classic": "inside", "paper": "inside",
        "keras": "inside", "torch": "outside", "popular": "outside", "timm": "mixed",
        "larc": "mixed", "apex": "mixed",
    },
    "form['update_scale']": {
        "match_rms_adamw": "rms", "moonlight": "rms", "keras": "rms", "original": "shape",
        "torch": "shape", "optax": "shape",
    },
    "form['coefficients']": {"newtonschulz5": "jordan", "default": "jordan"},
    "dtypes['slots']": {"bf16": "bfloat16", "half": "bfloat16", "fp32": "float32"},
    "dtypes['masters']": {"fp32": "float32"},
    "dtypes['products']": {"bf16": "bfloat16", "fp32": "float32"},
    "on_nonfinite": {"ignore": "propagate", "error": "raise", "none": "propagate"},
}  # fmt: skip
# What other packages say -> the key, of whichever dict has it, that means the same here.
_KEYS_ELSEWHERE = {
    "ns_steps": "newton_schulz_steps", "backend_steps": "newton_schulz_steps",
    "steps": "newton_schulz_steps", "ns_coefficients": "coefficients", "ns_coeffs": "coefficients",
    "adam_lr_ratio": "fallback_lr_scale", "adamw_lr_ratio": "fallback_lr_scale",
    "adjust_lr_fn": "update_scale", "scale": "update_scale", "per_head_muon": "heads",
    "trust_clip": "clip", "larc": "clip", "clamp_value": "weight_norm", "lr": "rate",
    "learning_rate": "rate", "lr_mult": "rate", "lr_scale": "rate", "lr_multiplier": "rate",
    "multiplier": "rate", "mu_dtype": "slots", "accumulator_dtype": "slots", "state": "slots",
    "master_weights": "masters", "ratio": "trust_ratio",
}  # fmt: skip
# Key -> what a suggestion to use it adds about it.
_EXPLANATIONS = {"rate": ", a factor of the optimizer's rate"}
# The least similarity, as `difflib` computes it, of a misspelt name and the right one.
MIN_SIMILARITY = 0.75


def number(name: str, value, interval: str = "") -> float:
    """Returns the value as a finite float.

    Args:
        name: The name of the argument.
        value: Its value.
        interval: The interval that it has to lie in, such as "(0, inf)". Defaults to that of the
            name in `RANGES`.

    Raises:
        TypeError: if the value is not a number.
        ValueError: if it is outside the interval.
    """
    example = ""
    if not interval:
        interval, example = RANGES[name]
        example = f" Try {name}={example}."
    try:
        as_float = to_float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name} must be a number in {interval}, not {value!r}.{example}"
        ) from error
    low, high = map(float, interval[1:-1].split(","))
    is_above_low = as_float > low or (interval[0] == "[" and as_float == low)
    is_below_high = as_float < high or (interval[-1] == "]" and as_float == high)
    if not (is_above_low and is_below_high):
        raise ValueError(f"{name} must be a number in {interval}, but it is {value!r}.{example}")
    return as_float


def to_float(value) -> float:
    """Returns the value as a float; inf or -inf for an integer beyond the largest float.

    Raises:
        TypeError: if the value is no number. Strings, bytes and bools are not accepted either,
            although Python's `float` converts them.
    """
    if isinstance(value, (str, bytes, bytearray, bool)):
        raise TypeError(f"a {type(value).__name__} is no number")
    try:
        return float(value)
    except OverflowError:  # an integer beyond the largest float
        return math.inf if value > 0 else -math.inf


def choice(name: str, value) -> str:
    """Returns the value if it is one of the values that the argument of this name may have.

    Args:
        name: The name of the argument, a key of `CHOICES`.
        value: Its value.

    Raises:
        ValueError: if it is not one of these values; the error lists them, and names the one that
            was probably meant.
    """
    if not isinstance(value, str) or value not in CHOICES[name]:
        choices_text = ", ".join(map(repr, CHOICES[name]))
        suggestion = _suggestion(value, CHOICES[name], _VALUES_ELSEWHERE.get(name, {}))
        raise ValueError(f"{name} must be one of {choices_text}, not {value!r}.{suggestion}")
    return value


def _suggestion(value, candidates: Collection[str], elsewhere: Mapping[str, str]) -> str:
    """Returns " Did you mean ...?" with the name that a wrong one stands for; "" if there is none.

    Args:
        value: The wrong name, or a value that is no name.
        candidates: The right names.
        elsewhere: What other packages say -> one of the right names.
    """
    if not isinstance(value, str):
        return ""
    text = value.lower()
    match = elsewhere.get(text)
    if match not in candidates:
        parts = [name for name in candidates if len(text) > 2 and text in name]
        match = next(iter(difflib.get_close_matches(text, candidates, 1, MIN_SIMILARITY)), None)
        match = match or (parts[0] if len(parts) == 1 else None)
    return f" Did you mean {match!r}{_EXPLANATIONS.get(match, '')}?" if match else ""


def bounds(name: str, value) -> Interval:
    """Returns bounds as a pair (low, high) of floats, each None if there is no such bound.

    If the value is None, the result is None.

    Args:
        name: The name of the argument.
        value: Its value.

    Raises:
        TypeError: if the value is neither None nor a pair of numbers or None.
        ValueError: unless 0 <= low <= high.
    """
    if value is None:
        return None
    try:
        low, high = (None if bound is None else to_float(bound) for bound in value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name} must be None or two numbers such as (0.01, 10.0), of which None is open, not "
            f"{value!r}."
        ) from error
    if not 0 <= (0.0 if low is None else low) <= (math.inf if high is None else high):
        raise ValueError(f"{name} must satisfy 0 <= low <= high, but it is {value!r}.")
    return low, high


def coefficients(name: str, value) -> Coefficients:
    """Checks Muon's Newton-Schulz coefficients, and returns numbers as tuples of floats.

    The name of a preset is returned as it is.

    Args:
        name: The name of the argument.
        value: The name of a preset, three numbers a, b and c, or a list with three numbers for each
            Newton-Schulz step.

    Raises:
        TypeError: if the value is none of these.
        ValueError: if there is no preset of this name, or if a number is not finite.
    """
    if isinstance(value, str):
        return choice(name, value)
    rows = value if _is_list_of_lists(value) else [value]
    if not all(isinstance(row, (list, tuple)) and len(row) == 3 for row in rows):
        choices_text = ", ".join(map(repr, CHOICES[name]))
        raise TypeError(
            f"{name} must be one of {choices_text}, three numbers a, b and c, or a list with three "
            f"for each step, not {value!r}."
        )
    triples = [_triple(name, row) for row in rows]
    return tuple(triples) if rows is value else triples[0]


def _triple(name, row) -> Triple:
    """Returns three numbers as floats; raises an error if one of them is no finite number."""
    a, b, c = (number(f"A number of {name}", item, "(-inf, inf)") for item in row)
    return a, b, c


def _is_list_of_lists(value):
    """Returns whether the value is a list of lists, or of tuples."""
    lists = (list, tuple)
    return isinstance(value, lists) and bool(value) and isinstance(value[0], lists)


def flag(name: str, value) -> bool:
    """Returns the value if it is a bool.

    Args:
        name: The name of the argument.
        value: Its value.

    Raises:
        TypeError: if it is not a bool.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}.")
    return value


def at_most_one(arguments: Mapping[str, object]) -> None:
    """Checks that at most one of several arguments is set, that is, not None.

    Args:
        arguments: Name of an argument -> its value.

    Raises:
        ValueError: if more than one is set.
    """
    values = {name: value for name, value in arguments.items() if value is not None}
    if len(values) > 1:
        values_text = " and ".join(f"{name}={value!r}" for name, value in values.items())
        raise ValueError(
            f"At most one of {', '.join(arguments)} can be set, but got {values_text}."
        )


def integer(name: str, value, minimum: int = 1, maximum: float = MAX_STEPS) -> int:
    """Returns the value as an int.

    Args:
        name: The name of the argument.
        value: Its value.
        minimum: The smallest value that it may have. Defaults to 1.
        maximum: The largest value that it may have. Defaults to 2^31 - 1.

    Raises:
        TypeError: if it is not an integer.
        ValueError: if it is a bool, below `minimum` or above `maximum`.
    """
    try:
        as_integer = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name} must be a whole number >= {minimum}, not {value!r}.") from error
    if isinstance(value, bool) or as_integer < minimum:
        raise ValueError(f"{name} must be a whole number >= {minimum}, not {value!r}.")
    if as_integer > maximum:
        raise ValueError(f"{name} must be a whole number up to {maximum:,}, not {as_integer:,}.")
    return as_integer


# Kind of a hyper-parameter, a value of the dict `HYPER` in the file of a rule -> the function that
# checks the hyper-parameter.
CHECK_OF_KIND: dict[Any, Callable[[str, Any], Any]] = {
    float: number,
    int: integer,
    bool: flag,
    str: choice,
    int | None: lambda name, value: None if value is None else integer(name, value),
    str | None: lambda name, value: None if value is None else choice(name, value),
    Coefficients: coefficients,
    Interval: bounds,
}


def hyperparameter(name: str, value, kind):
    """Checks the value of a hyper-parameter, and returns the value to store.

    Args:
        name: The name of the hyper-parameter.
        value: Its value. If the kind is a dataclass, a dict from fields to values, an instance of
            the dataclass, or None for all defaults.
        kind: A key of `CHECK_OF_KIND`; the interval of a number, such as "[0, 1)"; the `range` of
            an integer; or a dataclass, in which the type of each field is such a kind.

    Returns:
        The checked value; an instance of the dataclass if the kind is a dataclass.

    Raises:
        TypeError: if the value, or an entry of the dict, has the wrong type.
        ValueError: if it is out of range, or if the dict has an unknown key.
    """
    if isinstance(kind, str):  # an interval
        return number(name, value, kind)
    if isinstance(kind, range):
        return integer(name, value, kind.start, kind.stop - 1)
    if kind in CHECK_OF_KIND:
        return CHECK_OF_KIND[kind](name, value)
    fields = {field.name: field.type for field in dataclasses.fields(kind)}
    value = vars(value) if isinstance(value, kind) else value
    entries = _check_keys(name, {} if value is None else value, fields).items()
    return kind(
        **{key: hyperparameter(f"{name}[{key!r}]", entry, fields[key]) for key, entry in entries}
    )


def _check_keys(name, value, keys: Collection[str]) -> Mapping:
    """Returns the value if it is a dict that has only some of the given keys.

    Raises `TypeError` if it is not a dict, and `ValueError` if it has another key.
    """
    keys_text = ", ".join(map(repr, keys))
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} takes a dict with some of the keys {keys_text}, not {value!r}.")
    if unknown := [key for key in value if key not in keys]:
        suggestion = _suggestion(unknown[0], keys, _KEYS_ELSEWHERE)
        raise ValueError(f"{name} has no {unknown[0]!r}: its keys are {keys_text}.{suggestion}")
    return value


def float_dtype(path: str, dtype) -> None:
    """Checks that a variable holds real floating-point numbers, as an optimizer step needs.

    Args:
        path: The path of the variable.
        dtype: Its dtype.

    Raises:
        TypeError: if the dtype is not one of floating-point numbers.
    """
    name = str(getattr(dtype, "name", dtype))
    if "float" not in name:
        raise TypeError(
            f"{path} is {name}, and a step is taken in real numbers: leave it out of the variables "
            "that are trained, or keep a complex number as its real and its imaginary part."
        )


def text(name: str, value) -> str:
    """Returns the value if it is a string.

    Args:
        name: The name of the argument.
        value: Its value.

    Raises:
        TypeError: if it is not a string.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {value!r}, a {type(value).__name__}.")
    return value


def patterns(argument: str, value) -> tuple[str, ...] | None:
    """Returns a list of patterns as a tuple, or None if it is None.

    Args:
        argument: The name of the argument.
        value: A list of regexes, None, or the name of a preset if the argument takes presets.

    Raises:
        TypeError: if it is not a list of strings.
        ValueError: if one of them is not a valid regex.
    """
    if value is None:
        return None
    if isinstance(value, str) and value in PRESETS and argument in ARGUMENTS_WITH_PRESETS:
        return (value,)
    if isinstance(value, str) or not isinstance(value, Sequence):
        preset = _nearest_preset(argument, value)
        suggestion = f" Did you mean {preset or [value]!r}?" if isinstance(value, str) else ""
        raise TypeError(
            f"{argument} takes a list of regexes such as ['bias', 'layer_norm'], "
            f"not {value!r}.{suggestion}"
        )
    for pattern in value:
        if not isinstance(pattern, str):
            raise TypeError(
                f"{argument} takes a list of strings, but it holds {pattern!r}, "
                f"a {type(pattern).__name__}. Write each regex as a string."
            )
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(
                f"{argument} holds {repr(pattern):.200}, which is not a regular expression: "
                f"{error}. To match it as it stands, write {repr(re.escape(pattern)):.200}."
            ) from error
    return tuple(value)


def _nearest_preset(argument, value) -> str | None:
    """Returns the name of the preset that a string probably stands for; None if there is none.

    The words of the string may be in another order, as in "bias_and_norm".
    """
    if argument not in ARGUMENTS_WITH_PRESETS or not isinstance(value, str):
        return None
    presets = {_sorted_words(preset): preset for preset in PRESETS}
    # The similarity, as `difflib` computes it, is above 0.7 for "biases_and_norms" and "norm_bias",
    # and below for the path "layer_norm/bias".
    close = difflib.get_close_matches(_sorted_words(value), presets, 1, 0.7)
    return presets[close[0]] if close else None


def _sorted_words(text):
    """Returns the words of a text in alphabetical order, joined by underscores."""
    return "_".join(sorted(re.findall("[a-z]+", text.lower())))


def treatments(name: str, value, keys: Sequence[str]) -> dict[str, dict[str, Any]] | None:
    """Checks an optimizer's `treatments` argument and returns it as a dict, or None if it is None.

    Args:
        name: The name of the argument.
        value: Dict from a regex to a dict from a key to its value.
        keys: The keys that the optimizer allows, such as "rate".

    Raises:
        TypeError: if a dict, or a value in it, has the wrong type.
        ValueError: for an invalid regex, an unknown key, or a value out of its range.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise TypeError(
            f"{name} takes a dict from a regex to a dict, as {{'^encoder/': {{'rate': 0.1}}}}, "
            f"not {value!r}."
        )
    patterns(name, list(value))
    checked_treatments = {}
    for pattern, entries in value.items():
        argument = f"{name}[{pattern!r}]"
        checked_entries = _check_keys(argument, entries, keys).items()
        checked_treatments[pattern] = {
            key: _CHECK_OF_TREATMENT_KEY[key](f"{argument}[{key!r}]", entry)
            for key, entry in checked_entries
        }
    return checked_treatments


def _slices(name, value) -> tuple[int, int | None]:
    """Checks a "slices" entry of the user's `treatments`; returns (axis, number of blocks on it).

    The number is None if each index of the axis is a block. Raises TypeError for another form, and
    ValueError for less than one block.
    """
    pair = list(value) if isinstance(value, (list, tuple)) else [value]
    axis, blocks = (*pair, None, None)[:2]
    if len(pair) > 2 or not (_is_integer(axis) and (blocks is None or _is_integer(blocks))):
        raise TypeError(f"{name} must be an axis or [axis, blocks], not {value!r}.")
    if blocks is not None and blocks < 1:
        raise ValueError(f"{name} asks for {blocks} blocks; 1 is the least.")
    return int(axis), None if blocks is None else int(blocks)


def _rows(name, value) -> tuple[int, ...] | None:
    """Checks a "rows" entry of the user's `treatments`; returns the axes that are rows of a matrix.

    None, which says that the variable is no matrix, is returned as it is. Raises TypeError for
    another form.
    """
    axes = list(value) if isinstance(value, (list, tuple)) else [value]
    if value is not None and not all(map(_is_integer, axes or [None])):
        raise TypeError(
            f"{name} must be an axis, a list of axes, or None for what is no matrix, not {value!r}."
        )
    return None if value is None else tuple(map(int, axes))


def _heads(name, value) -> tuple[int, int | None] | None:
    """Checks a "heads" entry of the user's `treatments`; returns (axis, number of heads on it).

    The number is None if each index of the axis is a head. A value of None, which says that all
    heads are one matrix, is returned as it is.
    """
    return None if value is None else _slices(name, value)


# Key of the user's `treatments` -> the function that checks its value.
_CHECK_OF_TREATMENT_KEY: dict[str, Callable[[str, Any], Any]] = {
    "rate": functools.partial(number, interval="[0, inf)"),
    "slices": _slices,
    "join": flag,
    "rows": _rows,
    "heads": _heads,
    "depthwise": flag,
}


def accumulation(name: str, value) -> int | dict[int, int]:
    """Checks `gradient_accumulation_steps`, the number of micro-batches of each optimizer step.

    Args:
        name: The name of the argument.
        value: The number of micro-batches; or a dict from an optimizer step to the number of
            micro-batches of each step from there on. The dict has step 0, and its numbers never
            become smaller.

    Returns:
        The number, also for a dict whose numbers are all equal; otherwise the dict, sorted by step.

    Raises:
        TypeError, ValueError: if a number or a step is not a whole number in its range.
        ValueError: for a dict without step 0, or with numbers that become smaller.
    """
    if not isinstance(value, Mapping):
        return integer(name, value)
    stages = {}
    for step, count in value.items():
        # In a dict from JSON, the steps are strings, because JSON allows no other keys.
        step = int(step) if isinstance(step, str) and step.isdecimal() else step
        step = integer(f"A step in {name}", step, minimum=0)
        stages[step] = integer(f"{name}[{step}]", count)
    stages = dict(sorted(stages.items()))
    counts = list(stages.values())
    if 0 not in stages or counts != sorted(counts):
        raise ValueError(
            f"{name} takes a number, or a dict from optimizer steps, 0 among them, to numbers that "
            f"never become smaller, such as {{0: 1, 500: 2}}, not {value!r}."
        )
    return stages if counts[0] < counts[-1] else counts[0]


def spikes(name: str, value) -> tuple[int, float] | None:
    """Checks an optimizer's `on_spike` argument, which says which gradient norms are spikes.

    Args:
        name: The name of the argument.
        value: None, "skip" for the defaults, or [window, deviations].

    Returns:
        (number of steps in the window, number of standard deviations), or None for None.

    Raises:
        TypeError, ValueError: if the value is something else, or a number is out of its range.
    """
    if value is None:
        return None
    pair = (
        (DEFAULT_WINDOW, DEFAULT_DEVIATIONS)
        if isinstance(value, str) and value == "skip"
        else value
    )
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        raise TypeError(
            f"{name} must be None, 'skip' or [window, deviations] such as "
            f"[{DEFAULT_WINDOW}, {DEFAULT_DEVIATIONS}], not {value!r}."
        )
    window, deviations = pair
    return (
        integer(f"The window of {name}", window, minimum=2, maximum=MAX_WINDOW_STEPS),
        number(f"The number of deviations of {name}", deviations, "(0, inf)"),
    )


def _is_integer(value):
    """Returns whether the value is a whole number, which may be NumPy's, and not a bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
