"""Translates the state of another optimizer to this package's names, and matches its variables.

Readers fill a `Source`. A `Peer` has the names of one package for slots and arguments. Arrays pass
through untouched.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from tf_lamb.api.optimizers import named
from tf_lamb.api.optimizers.lamb import ADDONS_HAS, decayed
from tf_lamb.api.optimizers.settings import EXCLUSIONS, plain
from tf_lamb.api.schedules import with_numbers
from tf_lamb.api.variables import numpy_of
from tf_lamb.core.patterns import exact, model_name
from tf_lamb.core.rules.muon import JORDAN, PRESETS

# Name of an argument in another package -> its name in this one.
_WORDS = {
    "weight_decay_rate": "weight_decay", "eeta": "trust_coefficient", "adam_beta_1": "beta_1",
    "adam_beta_2": "beta_2", "adam_lr_ratio": "fallback_lr_scale",
    "ns_steps": "newton_schulz_steps",
}  # fmt: skip
# Arguments that Keras's optimizers share with those of this package.
SHARED = (
    "learning_rate", "beta_1", "beta_2", "epsilon", "momentum", "nesterov", "weight_decay",
    "clipnorm", "clipvalue", "global_clipnorm",
)  # fmt: skip
# Arguments that do not change what is computed.
_NO_PART = ("name", "jit_compile", "shard_update")
_OF_AVERAGES = ("ema_momentum", "ema_overwrite_frequency")
# Arguments around the formula. If a peer lacks one, the user's choice is no change of behaviour.
_AROUND = ("dtypes", "gradient_accumulation_steps", "loss_scale_factor", *_OF_AVERAGES)
# Arguments that optimizers of this package have in Keras 3 alone.
OF_KERAS_3 = ("loss_scale_factor",)


@dataclasses.dataclass(frozen=True)
class Peer:
    """Describes an optimizer of another package whose state this package can continue.

    Attributes:
        title: Its name in reports and errors.
        family: The name of the class of this package that continues it.
        slots: Its name of a slot -> the name here.
        has: Its arguments, by their names here; a key of an argument that is a dict stands after a
            dot.
        fixed: Values of arguments that it does not have, where it differs from the defaults here.
        told: Arguments that its slots or another line of the report tell of, and those that compute
            nothing.
    """

    title: str
    family: str
    slots: Mapping[str, str]
    has: tuple[str, ...]
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    told: tuple[str, ...] = ("name",)

    def arguments(self, source_config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the peer's arguments under the names of this package."""
        config = {_WORDS.get(name, name): value for name, value in source_config.items()}
        result: dict[str, Any] = {}
        for name in (*self.has, *self.fixed):
            argument, _, key = name.rpartition(".")
            if name in self.fixed or key in config:
                target = result.setdefault(argument, {}) if argument else result
                target[key] = self.fixed[name] if name in self.fixed else plain(config[key])
        if "classic_momentum" in source_config:
            result["form"] = _FORMS["inside" if source_config["classic_momentum"] else "outside"]
        if source_config.keys() >= {*_COEFFICIENTS}:
            triple = [plain(source_config[name]) for name in _COEFFICIENTS]
            if not _same(triple, list(JORDAN)):
                result["form"]["coefficients"] = triple
        if (decay := plain(source_config.get("decay"))) and _is_number(result.get("learning_rate")):
            result["learning_rate"] = decayed(result["learning_rate"], decay)
        return result

    def unread(self, source_config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments that this package cannot interpret, by the peer's own names."""
        understood = {name.rpartition(".")[2] for name in self.has} | {*self.told}
        if not source_config.get("decay") or _is_number(source_config.get("learning_rate")):
            understood.add("decay")  # `arguments` uses it, or there is none
        return {
            name: value
            for name, value in source_config.items()
            if _WORDS.get(name, name) not in understood and value is not None
        }

    def unsaid(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """Returns the names of the peer's arguments that are missing in `arguments`."""
        return tuple(name for name in self.has if name.partition(".")[0] not in arguments)


@dataclasses.dataclass(frozen=True)
class Source:
    """Holds the state of an optimizer, as a reader found it.

    Attributes:
        origin: What was read, in words.
        family: The name of the class of this package that continues it, such as "LAMB".
        step: The number of optimizer steps done.
        slots: Name of a variable -> name of a slot, as here -> array.
        arguments: The optimizer's arguments, by their names here; those that the source does not
            hold are left out.
        unsaid: Arguments that the optimizer had and the source does not hold.
        weights: Name of a variable -> array; None if the source holds no weights.
        beyond: All arguments of the source, by their own names.
        scalars: State that belongs to no single variable, by its name in a file of this package.
        unread: Arguments and, by path, variables that this package cannot interpret: those of a
            newer version, or of a subclass.
        others: Descriptions of further state that has no place here.
    """

    origin: str
    family: str
    step: int
    slots: Mapping[str, Mapping[str, Any]]
    arguments: Mapping[str, Any]
    unsaid: tuple[str, ...] = ()
    weights: Mapping[str, Any] | None = None
    beyond: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    scalars: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    unread: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    others: tuple[str, ...] = ()

    @classmethod
    def of_peer(cls, peer: Peer, step: int, slots, source_config, **more):
        """Makes the source from a peer's own names.

        Args:
            peer: The optimizer that the state is of.
            step: The number of optimizer steps done.
            slots: Name of a variable -> the peer's name of a slot -> array.
            source_config: The peer's arguments, by its own names.
            more: Further attributes of the source, as they are.
        """
        arguments = peer.arguments(source_config)
        renamed = {
            variable: {peer.slots.get(slot, slot): value for slot, value in values.items()}
            for variable, values in slots.items()
        }
        unsaid = peer.unsaid(arguments)
        source = cls(peer.title, peer.family, step, renamed, arguments, unsaid)
        return dataclasses.replace(source, unread=peer.unread(source_config), **more)

    def averaged(self, averages: Mapping[str, Any], momentum: float | None = None) -> "Source":
        """Returns the source with averages of its weights, which another class has kept.

        Averages of variables without slots, such as the statistics of a batch normalization, have
        no place here; `others` names them.

        Args:
            averages: Name of a variable -> its average.
            momentum: The momentum of the averages. Defaults to None: not known.
        """
        averages = dict(averages)
        slots = {
            variable: {**values, "average": averages.pop(variable)}
            if variable in averages
            else values
            for variable, values in self.slots.items()
        }
        momentum_argument: dict[str, Any] = {} if momentum is None else {"ema_momentum": momentum}
        return dataclasses.replace(
            self,
            slots=slots,
            arguments={**self.arguments, "use_ema": True, **momentum_argument},
            unsaid=(*self.unsaid, *({"ema_momentum"} - momentum_argument.keys())),
            scalars={**self.scalars, "has_averages": numpy_of(min(self.step, 1))},
            others=tuple(f"average of {name}" for name in averages),
        )

    def after_an_update(self) -> "Source":
        """Returns the source without the micro-batches of an update that has begun."""
        slots = {variable: _of_updates(values) for variable, values in self.slots.items()}
        return dataclasses.replace(self, slots=slots, scalars=_of_updates(self.scalars))


def _of_updates(values):
    """Returns the values that are not sums of micro-batches, nor their count."""
    return {
        name: value
        for name, value in values.items()
        if not name.startswith(("accumulator", "micro_step"))
    }


def match(
    origin: str,
    wanted: Mapping[str, Mapping[str, tuple]],
    found: Mapping[str, Mapping[str, Any]],
    rename: Mapping[str, str],
) -> dict[str, str]:
    """Matches each variable with its name in the source, with or without the model's name.

    Args:
        origin: The source in words, for errors.
        wanted: Path of a variable -> name of a slot -> shape; all of it has to be found.
        found: Name of a variable in the source -> name of a slot -> array.
        rename: Path of a variable -> its name in the source, which goes before other matches.

    Returns:
        Path of a variable -> its name in the source, for all paths of `wanted`.

    Raises:
        ValueError: if a variable or a slot is missing, a shape differs, or two variables match one
            name.
    """
    short_names = without_model(found)
    lookup = {short_names[name]: name for name in found} | {name: name for name in found}
    result = {}
    for path, short_name in without_model(wanted).items():
        name = rename.get(path) or lookup.get(path) or lookup.get(short_name) or ""
        if name not in found:
            raise ValueError(_missing(origin, path, name, wanted, found, lookup))
        for slot, expected_shape in wanted[path].items():
            if slot not in found[name]:
                raise ValueError(
                    f"{origin} is incomplete: it has no {slot!r} of {path!r}, only "
                    f"{', '.join(found[name]) or 'nothing'}. Save it again. Nothing was changed."
                )
            shape = tuple(found[name][slot].shape)
            if shape != expected_shape:
                raise ValueError(
                    f"{slot!r} of {path!r} has shape {shape} in {origin}, and {expected_shape} in "
                    "this model: it is the state of another model. Build the model as it was "
                    "trained, or name the right variable with rename. Nothing was changed."
                )
        result[path] = name
    shared = [path for path, name in result.items() if list(result.values()).count(name) > 1]
    if shared:
        raise ValueError(
            f"{shared[0]!r} and {shared[1]!r} would both take {result[shared[0]]!r} of {origin}. "
            "Say which is which with rename. Nothing was changed."
        )
    return result


def _missing(origin, path, name, wanted, found, lookup):
    """Explains that a variable has no counterpart, and both ways out."""
    slot, shape = next(iter(wanted[path].items()))
    matched_names = {lookup.get(candidate) for candidate in wanted}
    candidates = [
        candidate
        for candidate, values in found.items()
        if candidate not in matched_names
        and any(tuple(array.shape) == shape for array in values.values())
    ]
    example = repr(candidates[0]) if candidates else "name"
    detail = f" under the name {name!r}" if name else ""
    advice = f" If the source never updated it, pass fresh=[{path!r}]: it then begins at zero."
    return (
        f"{origin} holds no {slot!r} of {path!r}, shape {shape}{detail}; it has "
        f"{', '.join(map(repr, list(found)[:3]))} and so on. If the variable has another name "
        f"there, pass rename={{{path!r}: {example}}}.{'' if slot == 'weight' else advice} Nothing "
        "was changed."
    )


def without_model(names: Iterable[str]) -> dict[str, str]:
    """Returns each name -> the same name without the name of the model."""
    names = list(names)
    root = model_name(names)
    return {name: name.removeprefix(root) for name in names}


def _is_number(value):
    """Returns whether a value is an int or a float."""
    return isinstance(value, (int, float))


_MOMENTS = {"m": "m", "v": "v"}
_OF_LEGACY = ("name", "is_legacy_optimizer")
_LARS = (
    "learning_rate", "momentum", "weight_decay", "trust_coefficient", "nesterov", "form",
    "clipnorm", "clipvalue", "global_clipnorm", *EXCLUSIONS,
)  # fmt: skip
ADDONS_LAMB = Peer("TensorFlow Addons LAMB", "LAMB", _MOMENTS, ADDONS_HAS, told=_OF_LEGACY)
# Both have one class name, and no exclusion lists in the config, so nothing tells them apart.
OLDER_LAMB = Peer(
    "LAMB of Model Garden or of TensorFlow Addons before 0.16", "LAMB", _MOMENTS, ADDONS_HAS,
    told=_OF_LEGACY,
)  # fmt: skip
GARDEN_LARS = Peer(
    "Model Garden LARS", "LARS", {"momentum": "v"}, _LARS, told=(*_OF_LEGACY, "classic_momentum")
)
_KERAS = ("use_ema", *_OF_AVERAGES, "loss_scale_factor", "gradient_accumulation_steps")
KERAS_LAMB = Peer(
    "keras.optimizers.Lamb", "LAMB", {"momentum": "m", "velocity": "v"},
    (*ADDONS_HAS[:-1], *_KERAS),
    {"weight_decay_mode": "decoupled", "exclude_from_layer_adaptation": []},
)  # fmt: skip

# The arguments that a legacy config leaves out where they are None.
NO_CLIPPING = {"clipnorm": None, "clipvalue": None, "global_clipnorm": None}

# The `form` of Model Garden's LARS, classic ("inside") or popular: where the learning rate stands,
# and what the trust ratio divides by.
_FORMS = {
    "inside": {"momentum": "inside", "denominator": "norm_of_sum", "clip": False},
    "outside": {"momentum": "outside", "denominator": "norm_of_update", "clip": False},
}


def of_legacy(origin: str, name: str, slots, source_config) -> Peer:
    """Returns the peer that wrote a legacy optimizer's state.

    Args:
        origin: The source in words, for the error.
        name: The name of the optimizer.
        slots: The names of its slots.
        source_config: The names of its arguments.

    Raises:
        ValueError: if it is no LAMB of TensorFlow Addons or Model Garden, and no LARS of the
            latter.
    """
    slots, source_config = set(slots) - {"average"}, set(source_config)
    if slots == {"m", "v"} and not name.lower().startswith("adam"):
        if "weight_decay_rate" in source_config:
            return OLDER_LAMB
        if "weight_decay" in source_config:
            return ADDONS_LAMB
    if slots == {"momentum"} and ("eeta" in source_config or "momentum" not in source_config):
        return GARDEN_LARS  # not SGD, whose slot of this name has the opposite sign
    raise ValueError(
        f"{origin} holds an optimizer named {name!r} with slots {sorted(slots)}, which is neither "
        "the LAMB of TensorFlow Addons or Model Garden nor Model Garden's LARS: those can be "
        "migrated. Start a new optimizer instead. Nothing was changed."
    )


def legacy_slots(named: Mapping[str, Any]) -> tuple[str, int, dict[str, dict[str, Any]]]:
    """Splits names such as `LAMB/dense/kernel/m:0` into optimizer, variable and slot.

    Args:
        named: Name in the file -> array.

    Returns:
        The name of the optimizer, its step, and variable -> slot -> array. They are "", 0 and an
        empty dict if no name is that of a step counter.

    Raises:
        ValueError: if the step counter is no number of steps.
    """
    values = {key.rpartition(":")[0] or key: value for key, value in named.items()}
    counter = next((key for key in values if key == "iter" or key.endswith("/iter")), None)
    if counter is None:
        return "", 0, {}
    prefix = counter.removesuffix("iter")
    slots: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        if key != counter:
            variable, _, slot = key.removeprefix(prefix).rpartition("/")
            slots.setdefault(variable, {})[slot] = value
    return prefix.strip("/").rpartition("/")[2], step_of(values[counter]), slots


def step_of(counter) -> int:
    """Returns the number of steps in a counter that was read from a file.

    Raises:
        ValueError: if it is no number, or less than 0.
    """
    try:
        if (step := int(counter)) >= 0:
            return step
    except (TypeError, ValueError):
        pass
    text = " ".join(repr(counter).split())
    raise ValueError(f"The step counter is {text:.100}, no number of steps. Nothing was changed.")


def same_momentum(origin: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]):
    """Returns a peer's arguments; ours give the form of momentum that the source does not hold.

    Args:
        origin: The source in words, for the error.
        theirs: The peer's arguments, by their names here.
        ours: The arguments of the optimizer that continues it.

    Raises:
        ValueError: if the two have different forms of momentum.
    """
    form, source_form = (
        (arguments.get("form") or {}).get("momentum") for arguments in (ours, theirs)
    )
    if form is None:
        return dict(theirs)
    if form != source_form and (source_form or form not in _FORMS):
        remedy = repr(source_form) if source_form else "'inside' or 'outside'"
        raise ValueError(
            f"The velocity of {origin} cannot become one whose form has the momentum {form!r}: "
            f"past rates and ratios are part of it. Give form the momentum {remedy}, as it was "
            "trained. Nothing was changed."
        )
    return {"form": _FORMS.get(form), **theirs}


def changes(theirs, ours, defaults, unsaid) -> dict[str, tuple[Any, Any]]:
    """Returns argument -> (value in the source, value in ours), where the two behave differently.

    Args:
        theirs: The source's arguments, by their names here.
        ours: The arguments of the optimizer that continues it.
        defaults: Argument -> default of our optimizer, which holds if the source does not have the
            argument.
        unsaid: Arguments that the source does not hold; they are not compared.
    """
    result = {}
    source_values = {
        argument: default
        for argument, default in defaults.items()
        if argument not in (*unsaid, *_AROUND)
    } | dict(theirs)
    for name, own_value in ours.items():
        if name in _NO_PART or name not in source_values:
            continue
        if name in ("use_ema", *_OF_AVERAGES) and not source_values.get("use_ema"):
            continue  # new averages do not change the steps; the report's `averages` describes them
        source_effect, own_effect = (
            _effect(name, value, config)
            for value, config in ((source_values[name], source_values), (own_value, ours))
        )
        if not _same(source_effect, own_effect):
            result[name] = (source_values[name], own_value)
    return result


def _effect(name, value, arguments):
    """Returns a value such that equal results mean equal behaviour."""
    if name == "exclude_from_layer_adaptation" and value is None:
        value = arguments.get("exclude_from_weight_decay")
    if name in EXCLUSIONS:
        return sorted(value or ())
    if isinstance(value, Mapping) and not is_serialized(value):
        # An empty dict has the same effect as None.
        value = {key: entry for key, entry in value.items() if entry is not None} or None
        return _in_numbers(value) if value and "coefficients" in value else value
    return (value or 0.0) if name == "weight_decay" else value


def _in_numbers(form):
    """Returns the form of a Muon with three numbers for each step as its coefficients."""
    given = form["coefficients"]
    found = PRESETS[given] if isinstance(given, str) else given
    is_of_every_step = not isinstance(found[0], (list, tuple))
    steps = form.get("newton_schulz_steps", 5)
    return {**form, "coefficients": [found] * steps if is_of_every_step else found}


def _same(a, b):
    """Returns whether two values of a config mean the same, in either Keras."""
    if all(isinstance(value, (int, float)) for value in (a, b)):
        return abs(a - b) <= 1e-6 * max(abs(a), abs(b))
    a, b = map(_bare, map(with_numbers, (a, b)))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if all(isinstance(value, (list, tuple)) for value in (a, b)):
        return len(a) == len(b) and all(map(_same, a, b))
    return a == b


def is_serialized(value) -> bool:
    """Returns whether a value is a serialized object of a config, such as a schedule."""
    return isinstance(value, Mapping) and {"class_name", "config"} <= value.keys()


def _bare(value):
    """Reduces a serialized schedule to its class and numbers, without package and name."""
    if not is_serialized(value) or not isinstance(value["config"], Mapping):
        return value
    class_name = value.get("registered_name") or value["class_name"]
    numbers = {
        name: entry
        for name, entry in value["config"].items()
        if name != "name" and entry is not None
    }
    return {"class_name": class_name.rpartition(">")[2], **numbers}


def shown(value) -> str:
    """Formats the value of an argument for a report; a schedule as a call of its class."""
    value = with_numbers(value)
    bare = _bare(value)
    if bare is value:
        return repr(value)
    class_name = bare.pop("class_name")
    return f"{class_name}({', '.join(f'{name}={shown(entry)}' for name, entry in bare.items())})"


# The beginning of a name in a file -> (what the value is, what would continue it).
_LEFT = {
    "average": ("the averages of the weights", "use_ema=True continues them"),
    "master": ("the float32 masters", "dtypes={'masters': 'float32'} continues them"),
    "gradient_norms": ("the norms that on_spike knows", "a window as long continues them"),
    "micro_step": (
        "the micro-batches of an update that has begun",
        "the same gradient_accumulation_steps, with the same wrapper, continues them",
    ),
    "measured": ("what is measured", "the same wrapper around the optimizer continues it"),
}  # fmt: skip


def in_words(names: Iterable[str]) -> list[str]:
    """Describes state that is left behind, with its names in a file and what would continue it.

    Returns:
        One line for each kind of state, then the names of unknown kinds as they are.
    """
    lines, remaining = [], list(names)
    for beginning, (meaning, remedy) in _LEFT.items():
        # A micro-batch count comes with its sums, and averages with the flag that says they exist.
        companion = {"micro_step": "accumulator", "average": "has_averages"}.get(
            beginning, beginning
        )
        if matched := [name for name in remaining if name.startswith((beginning, companion))]:
            lines.append(f"{meaning} ({', '.join(matched)}): {remedy}")
            remaining = [name for name in remaining if name not in matched]
    return lines + remaining


def adascale_changes(
    there: Mapping[str, Any], here: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Returns argument of an AdaScale -> (value in the source, value here), where the two differ.

    Args:
        there: The arguments of the source's AdaScale; empty if it has none.
        here: The arguments of the AdaScale that continues it; empty if there is none. A missing
            argument counts as None.
    """
    names = ("scale", "preconditioned")
    pairs = {f"AdaScale's {name}": (there.get(name), here.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if not _same(*pair)}


def other_rules(fresh: Mapping[str, tuple[Mapping[str, Any], bool]]) -> dict[str, tuple[str, str]]:
    """Returns the rules (source, here) of each variable that Muon orthogonalizes on one side alone.

    Args:
        fresh: Path of a variable that starts at zero -> (its slots in the source, whether it is a
            matrix here).
    """
    rules = {True: "Newton-Schulz", False: "AdamW"}
    is_matrix_pairs = {
        path: ("v" not in slots, is_matrix) for path, (slots, is_matrix) in fresh.items()
    }
    return {
        f"the rule of {path}": (rules[in_source], rules[in_ours])
        for path, (in_source, in_ours) in is_matrix_pairs.items()
        if in_source != in_ours
    }


# Arguments that only Keras's Muon has: those that form has as "coefficients", and one with the
# value that ours always uses.
_COEFFICIENTS = ("muon_a", "muon_b", "muon_c")
_MUON_ALONE = {"rms_rate": 0.2}
KERAS_MUON = Peer(
    "keras.optimizers.Muon", "Muon", {"momentum": "m", "velocity": "v"},
    (*SHARED, "form.fallback_lr_scale", "form.newton_schulz_steps", "exclude_from_weight_decay",
     *_KERAS),
    {"form.update_scale": "rms", "form.coefficients": "jordan", "form.norm": None,
     "form.heads": None},
    # Slots tell which variables are matrices; `muon_changes` compares the other arguments.
    ("name", "exclude_layers", "exclude_embeddings", *_COEFFICIENTS, *_MUON_ALONE,
     "adam_weight_decay"),
)  # fmt: skip


def check_same_slots(
    family: str, origin: str, there: Mapping[str, Mapping[str, Any]],
    here: Mapping[str, Iterable[str]], shapes: Mapping[str, tuple],
):  # fmt: skip
    """Checks that the variables of a Muon or SOAP have the same slots in the source and here.

    Other slots mean other things: Muon's tell which variables it orthogonalizes, SOAP's its bases.

    Args:
        family: "Muon" or "SOAP".
        origin: The source in words, for the error.
        there: Path of a variable -> its slots in the source.
        here: Path of a variable -> the names of its slots here.
        shapes: Path of a variable -> its shape.

    Raises:
        ValueError: if the slots of a variable differ.
    """
    differing = [
        path for path, slots in there.items() if named.slots_of_rule(slots) != {*here[path]}
    ]
    if not differing:
        return
    listed = ", ".join(map(repr, differing))
    if family == "SOAP":
        raise ValueError(
            f"{origin} keeps other bases than this SOAP, and second moments belong to them: "
            f"{listed}. Pass the same exclude_from_layer_adaptation, rows in treatments, "
            "max_precond_dim and form. Nothing was changed."
        )
    elementwise = {path for path, slots in there.items() if "v" in slots}
    patterns = [exact(path) for path in shapes if path in elementwise and len(shapes[path]) > 1]
    remedy = f"To go on as there, pass exclude_from_layer_adaptation={patterns}."
    if new_matrices := [path for path in differing if path not in elementwise]:
        remedy += f" What is a matrix there alone begins at zero with fresh={new_matrices}."
    raise ValueError(
        f"{origin} orthogonalizes other variables than this Muon, and their slots mean other "
        f"things then: {listed}. {remedy} Nothing was changed."
    )


def muon_changes(
    source_config: Mapping[str, Any], ours: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Returns argument that only Keras's Muon has -> (value in the source, value that ours uses).

    Args:
        source_config: The arguments of Keras's Muon, by its own names.
        ours: The arguments of our Muon.

    Returns:
        The arguments whose values differ.
    """
    own_values = dict(_MUON_ALONE)
    if "adam_weight_decay" in source_config and not isinstance(ours["weight_decay"], Mapping):
        # Keras decays the variables that Adam steps at the whole learning rate.
        own_values["adam_weight_decay"] = ours["weight_decay"] * ours["form"]["fallback_lr_scale"]
    value_pairs = {
        name: (source_config[name] or 0.0, value)
        for name, value in own_values.items()
        if name in source_config
    }
    return {
        name: pair for name, pair in value_pairs.items() if not math.isclose(*pair, rel_tol=1e-6)
    }


def averaging_changes(
    source_config: Mapping[str, Any], ours: Mapping[str, Any]
) -> dict[str, tuple[str, str]]:
    """Returns when the averages move in Keras and here, if that differs.

    It differs if both keep averages and the source accumulates micro-batches.

    Args:
        source_config: The source's arguments, by its own names.
        ours: The arguments of the optimizer that continues it.
    """
    accumulates = (source_config.get("gradient_accumulation_steps") or 1) > 1
    if not (accumulates and source_config.get("use_ema") and ours["use_ema"]):
        return {}
    return {"when the averages move": ("at each micro-batch", "at each update")}


def times_slower(source_config: Mapping[str, Any], ours: Mapping[str, Any]) -> int:
    """Returns how many times slower the same learning rate schedule is here than in Keras.

    Keras reads a schedule at micro-batches, this package at updates. The result is 1 if the two
    schedules are not the same.

    Args:
        source_config: The source's arguments, by its own names.
        ours: The arguments of the optimizer that continues it.
    """
    source_rate = source_config.get("learning_rate")
    is_same_schedule = is_serialized(source_rate) and _same(source_rate, ours["learning_rate"])
    return (source_config.get("gradient_accumulation_steps") or 1) if is_same_schedule else 1
