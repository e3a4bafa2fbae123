"""Translates the state of another optimizer to this package's names, and matches its variables.

`tf_lamb.keras` and `tf_lamb.tf_keras` read a checkpoint or an optimizer into a `Source`. A `Peer`
describes an optimizer class of another package: its names for slots and arguments. A slot is a
state array for one variable, such as Adam's m. "Here" means in this package. No array is changed.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from tf_lamb.api.migration.changes import AVERAGING_ARGUMENTS, MUON_CONSTANTS, is_same_value
from tf_lamb.api.optimizers import named
from tf_lamb.api.optimizers.lamb import ADDONS_ARGUMENTS, inverse_time_decay
from tf_lamb.api.optimizers.settings import EXCLUSIONS, round_to_seven_digits
from tf_lamb.api.variables import numpy_of
from tf_lamb.core.patterns import exact_pattern, model_name
from tf_lamb.core.rules.muon import JORDAN

# Name of an argument in another package -> its name in this one.
_NAMES_HERE = {
    "weight_decay_rate": "weight_decay", "eeta": "trust_coefficient", "adam_beta_1": "beta_1",
    "adam_beta_2": "beta_2", "adam_lr_ratio": "fallback_lr_scale",
    "ns_steps": "newton_schulz_steps",
}  # fmt: skip
# Arguments that the optimizers of Keras and of this package share.
SHARED_ARGUMENTS = (
    "learning_rate", "beta_1", "beta_2", "epsilon", "momentum", "nesterov", "weight_decay",
    "clipnorm", "clipvalue", "global_clipnorm",
)  # fmt: skip
# Arguments that optimizers of this package have for Keras 3, but not for tf_keras.
KERAS_3_ARGUMENTS = ("loss_scale_factor",)


@dataclasses.dataclass(frozen=True)
class Peer:
    """Describes an optimizer class of another package (the peer) whose state can be continued here.

    Attributes:
        title: The name of the peer in reports and errors.
        family: The name of the class of this package that continues its state.
        slots: Name of a slot in the peer -> its name in this package.
        argument_names: The arguments that the peer has, by their names in this package;
            "form.norm" is the key "norm" of the argument `form`.
        fixed_arguments: Argument that only this package has -> the value with which both packages
            compute the same. Arguments for which this is the default are left out.
        handled_elsewhere: Further arguments of the peer that `unknown_arguments` does not list.
            Their effect shows in the slots or in another line of the report, or they have no effect
            on the computed numbers. Defaults to ("name",).
    """

    title: str
    family: str
    slots: Mapping[str, str]
    argument_names: tuple[str, ...]
    fixed_arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    handled_elsewhere: tuple[str, ...] = ("name",)

    def arguments(self, source_config: Mapping[str, Any]) -> dict[str, Any]:
        """Translates the peer's arguments to those with which this package computes the same.

        The result has the names of this package, numbers that are rounded to seven digits, the
        `fixed_arguments`, and the `form` and the schedule that other arguments of the peer stand
        for. Arguments that this package does not know are left out.
        """
        config = {_NAMES_HERE.get(name, name): value for name, value in source_config.items()}
        result: dict[str, Any] = {}
        for name in (*self.argument_names, *self.fixed_arguments):
            argument, _, key = name.rpartition(".")
            if name in self.fixed_arguments or key in config:
                target = result.setdefault(argument, {}) if argument else result
                target[key] = (
                    self.fixed_arguments[name]
                    if name in self.fixed_arguments
                    else round_to_seven_digits(config[key])
                )
        if "classic_momentum" in source_config:
            result["form"] = _LARS_FORMS[
                "inside" if source_config["classic_momentum"] else "outside"
            ]
        if source_config.keys() >= {*_COEFFICIENT_ARGUMENTS}:
            triple = [round_to_seven_digits(source_config[name]) for name in _COEFFICIENT_ARGUMENTS]
            if not is_same_value(triple, list(JORDAN)):
                result["form"]["coefficients"] = triple
        if (decay := round_to_seven_digits(source_config.get("decay"))) and _is_number(
            result.get("learning_rate")
        ):
            result["learning_rate"] = inverse_time_decay(result["learning_rate"], decay)
        return result

    def unknown_arguments(self, source_config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments that this package does not know, by the peer's own names."""
        known_names = {name.rpartition(".")[2] for name in self.argument_names} | {
            *self.handled_elsewhere
        }
        if not source_config.get("decay") or _is_number(source_config.get("learning_rate")):
            known_names.add("decay")  # `arguments` has used it, or it is 0 or None
        return {
            name: value
            for name, value in source_config.items()
            if _NAMES_HERE.get(name, name) not in known_names and value is not None
        }

    def omitted_arguments(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """Returns the names of the peer's arguments that were not saved.

        Args:
            arguments: The result of `arguments`, without those that the peer's config lacks.
        """
        return tuple(
            name for name in self.argument_names if name.partition(".")[0] not in arguments
        )


@dataclasses.dataclass(frozen=True)
class Source:
    """Holds the state that was read from a checkpoint or an optimizer.

    Attributes:
        origin: What was read, as text for reports and errors, such as "the checkpoint
            'run/ckpt-1'".
        family: The name of the class of this package that can continue the state, such as "LAMB".
        step: The number of optimizer steps done.
        slots: Name of a variable -> name of a slot in this package -> array.
        arguments: The optimizer's arguments, by their names here. Those whose values were not saved
            are left out.
        omitted_arguments: Names of the optimizer's arguments whose values were not saved.
        weights: Name of a variable -> array; None if the source holds no weights.
        all_arguments: All arguments of the source, by their own names.
        scalars: State that does not belong to a single variable, by the keys that this package uses
            in files.
        unknown_arguments: Name -> value of arguments that this package does not know, such as those
            of a newer version or of a subclass.
        dropped_state: Names of further state that optimizers of this package have no variables for.
        own_variables: Paths of variables in a checkpoint that are neither of the trained model nor
            of an optimizer, such as "step" of `tf.train.Checkpoint(step=...)`.
    """

    origin: str
    family: str
    step: int
    slots: Mapping[str, Mapping[str, Any]]
    arguments: Mapping[str, Any]
    omitted_arguments: tuple[str, ...] = ()
    weights: Mapping[str, Any] | None = None
    all_arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    scalars: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    unknown_arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dropped_state: tuple[str, ...] = ()
    own_variables: tuple[str, ...] = ()

    @classmethod
    def from_peer(cls, peer: Peer, step: int, slots, source_config, **attributes):
        """Makes a `Source` from state and arguments that are under the peer's own names.

        Args:
            peer: The description of the optimizer that the state was read from.
            step: The number of optimizer steps done.
            slots: Name of a variable -> the peer's name of a slot -> array.
            source_config: The peer's arguments, by its own names.
            attributes: Further attributes of the `Source`, by name.
        """
        arguments = peer.arguments(source_config)
        renamed = {
            variable: {peer.slots.get(slot, slot): value for slot, value in values.items()}
            for variable, values in slots.items()
        }
        omitted = peer.omitted_arguments(arguments)
        source = cls(peer.title, peer.family, step, renamed, arguments, omitted)
        return dataclasses.replace(
            source, unknown_arguments=peer.unknown_arguments(source_config), **attributes
        )

    def with_averages(self, averages: Mapping[str, Any], momentum: float | None = None) -> "Source":
        """Returns a copy of the source with moving averages of weights from a wrapper.

        Averages of variables without slots, such as the statistics of batch normalization, cannot
        be continued here. They are listed in `dropped_state`.

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
            omitted_arguments=(
                *self.omitted_arguments,
                *({"ema_momentum"} - momentum_argument.keys()),
            ),
            scalars={**self.scalars, "has_averages": numpy_of(min(self.step, 1))},
            dropped_state=tuple(f"average of {name}" for name in averages),
        )

    def without_unfinished_update(self) -> "Source":
        """Returns a copy of the source without the gradient sums of an unfinished update."""
        slots = {
            variable: _without_micro_batches(values) for variable, values in self.slots.items()
        }
        return dataclasses.replace(self, slots=slots, scalars=_without_micro_batches(self.scalars))


def _without_micro_batches(values):
    """Returns `values` without gradient sums of micro-batches and the count of these."""
    return {
        name: value
        for name, value in values.items()
        if not name.startswith(("accumulator", "micro_step"))
    }


def match(
    origin: str,
    expected: Mapping[str, Mapping[str, tuple]],
    saved: Mapping[str, Mapping[str, Any]],
    rename: Mapping[str, str],
) -> dict[str, str]:
    """Finds the name of each variable in the source, and checks its slots and their shapes.

    A name matches the path of a variable if both are equal, or are equal without the model's name.

    Args:
        origin: What the state was read from, as text for the error, such as the path of a file.
        expected: Path of a variable here -> name of a slot -> shape. All must be in the source.
        saved: Name of a variable in the source -> name of a slot -> array.
        rename: Path of a variable -> its name in the source. It takes precedence over other
            matches.

    Returns:
        Path of a variable -> its name in the source, for all paths of `expected`.

    Raises:
        ValueError: if a variable or a slot is missing, a shape differs, or two variables match one
            name.
    """
    short_names = without_model(saved)
    names_by_alias = {short_names[name]: name for name in saved} | {name: name for name in saved}
    result = {}
    for path, short_name in without_model(expected).items():
        name = rename.get(path) or names_by_alias.get(path) or names_by_alias.get(short_name) or ""
        if name not in saved:
            raise ValueError(_no_match_message(origin, path, name, expected, saved, names_by_alias))
        for slot, shape_here in expected[path].items():
            if slot not in saved[name]:
                raise ValueError(
                    f"{origin} is incomplete: it has no {slot!r} of {path!r}, only "
                    f"{', '.join(saved[name]) or 'nothing'}. Save it again. Nothing was changed."
                )
            shape = tuple(saved[name][slot].shape)
            if shape != shape_here:
                raise ValueError(
                    f"{slot!r} of {path!r} has shape {shape} in {origin}, and {shape_here} in "
                    "this model: it is the state of another model. Build the model as it was "
                    "trained, or name the right variable with rename. Nothing was changed."
                )
        result[path] = name
    paths_of_same_name = [
        path for path, name in result.items() if list(result.values()).count(name) > 1
    ]
    if paths_of_same_name:
        raise ValueError(
            f"{paths_of_same_name[0]!r} and {paths_of_same_name[1]!r} would both take "
            f"{result[paths_of_same_name[0]]!r} of {origin}. Say which is which with rename. "
            "Nothing was changed."
        )
    return result


def _no_match_message(origin, path, name, expected, saved, names_by_alias):
    """Returns the message of the error for a variable that has no match in the source.

    It advises to pass `rename`, or `fresh` if the source never updated the variable.

    Args:
        origin: What the state was read from, as text for the error, such as the path of a file.
        path: The path of the variable.
        name: The name that was not found in the source; "" if there is none.
        expected, saved: As in `match`.
        names_by_alias: Name in the source, with or without the model's name -> name in the source.
    """
    slot, shape = next(iter(expected[path].items()))
    matched_names = {names_by_alias.get(candidate) for candidate in expected}
    candidates = [
        candidate
        for candidate, values in saved.items()
        if candidate not in matched_names
        and any(tuple(array.shape) == shape for array in values.values())
    ]
    example = repr(candidates[0]) if candidates else "name"
    detail = f" under the name {name!r}" if name else ""
    advice = f" If the source never updated it, pass fresh=[{path!r}]: it then begins at zero."
    return (
        f"{origin} holds no {slot!r} of {path!r}, shape {shape}{detail}; it has "
        f"{', '.join(map(repr, list(saved)[:3]))} and so on. If the variable has another name "
        f"there, pass rename={{{path!r}: {example}}}.{'' if slot == 'weight' else advice} Nothing "
        "was changed."
    )


def without_model(names: Iterable[str]) -> dict[str, str]:
    """Returns a dict from each name to the same name without the model's name at its beginning."""
    names = list(names)
    root = model_name(names)
    return {name: name.removeprefix(root) for name in names}


def _is_number(value):
    """Returns whether a value is an int or a float."""
    return isinstance(value, (int, float))


_MOMENT_SLOTS = {"m": "m", "v": "v"}
_LEGACY_ARGUMENTS = ("name", "is_legacy_optimizer")
_LARS_ARGUMENTS = (
    "learning_rate", "momentum", "weight_decay", "trust_coefficient", "nesterov", "form",
    "clipnorm", "clipvalue", "global_clipnorm", *EXCLUSIONS,
)  # fmt: skip
ADDONS_LAMB = Peer(
    "TensorFlow Addons LAMB",
    "LAMB",
    _MOMENT_SLOTS,
    ADDONS_ARGUMENTS,
    handled_elsewhere=_LEGACY_ARGUMENTS,
)
# Both packages call the class LAMB and leave exclusion lists out of its config. So the state does
# not tell which of the two packages it comes from.
OLDER_LAMB = Peer(
    "LAMB of Model Garden or of TensorFlow Addons before 0.16", "LAMB", _MOMENT_SLOTS,
    ADDONS_ARGUMENTS, handled_elsewhere=_LEGACY_ARGUMENTS,
)  # fmt: skip
GARDEN_LARS = Peer(
    "Model Garden LARS",
    "LARS",
    {"momentum": "v"},
    _LARS_ARGUMENTS,
    handled_elsewhere=(*_LEGACY_ARGUMENTS, "classic_momentum"),
)
_KERAS_ARGUMENTS = (
    "use_ema",
    *AVERAGING_ARGUMENTS,
    "loss_scale_factor",
    "gradient_accumulation_steps",
)
KERAS_LAMB = Peer(
    "keras.optimizers.Lamb", "LAMB", {"momentum": "m", "velocity": "v"},
    (*ADDONS_ARGUMENTS[:-1], *_KERAS_ARGUMENTS),
    {"weight_decay_mode": "decoupled", "exclude_from_layer_adaptation": []},
)  # fmt: skip

# Arguments that a legacy optimizer of Keras leaves out of its config if they are None.
NO_CLIPPING = {"clipnorm": None, "clipvalue": None, "global_clipnorm": None}

# Values of the argument `form` of our LARS that compute the same as Model Garden's LARS: "inside"
# with its `classic_momentum=True`, "outside" with False. They say whether the learning rate is
# inside the velocity, and which norm the trust ratio divides by.
_LARS_FORMS = {
    "inside": {"momentum": "inside", "denominator": "norm_of_sum", "clip": False},
    "outside": {"momentum": "outside", "denominator": "norm_of_update", "clip": False},
}


def legacy_peer(origin: str, name: str, slots, source_config) -> Peer:
    """Returns the `Peer` of a legacy Keras optimizer, recognized by its slots and arguments.

    An optimizer with the slots m and v is refused if its name begins with "adam". The `Peer`
    describes the optimizer's class, so that its state can be continued in this package.

    Args:
        origin: What the optimizer was read from, as text for the error, such as the path of a file.
        name: The name of the optimizer.
        slots: The names of its slots.
        source_config: The names of its arguments.

    Raises:
        ValueError: if it is neither a LAMB of TensorFlow Addons or Model Garden, nor a LARS of
            Model Garden.
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


def legacy_slots(arrays: Mapping[str, Any]) -> tuple[str, int, dict[str, dict[str, Any]]]:
    """Splits names such as `LAMB/dense/kernel/m:0` into optimizer, variable and slot.

    Args:
        arrays: Name in the file -> array.

    Returns:
        The name of the optimizer, its step, and variable -> slot -> array. They are "", 0 and an
        empty dict if the file has no step counter, named `iter`.

    Raises:
        ValueError: if the step counter is not a number, or is below 0.
    """
    values = {key.rpartition(":")[0] or key: value for key, value in arrays.items()}
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
        ValueError: if the counter is not a number, or is below 0.
    """
    try:
        if (step := int(counter)) >= 0:
            return step
    except (TypeError, ValueError):
        pass
    text = " ".join(repr(counter).split())
    raise ValueError(f"The step counter is {text:.100}, no number of steps. Nothing was changed.")


def with_momentum_form(
    origin: str, source_arguments: Mapping[str, Any], new_arguments: Mapping[str, Any]
):
    """Checks the form of momentum, and adds it to the peer's arguments if they lack it.

    The form says whether the velocity contains the learning rate ("inside") or is multiplied by it
    ("outside"). A checkpoint of Model Garden's LARS does not contain the form. The form of the
    optimizer here is then assumed for the source, too.

    Args:
        origin: What the state was read from, as text for the error, such as the path of a file.
        source_arguments: The peer's arguments, by their names here.
        new_arguments: The arguments of the optimizer that continues it.

    Returns:
        The peer's arguments, with the `form` of its momentum. They are unchanged if the optimizer
        here has no form of momentum.

    Raises:
        ValueError: if the two have different forms of momentum.
    """
    form, source_form = (
        (arguments.get("form") or {}).get("momentum")
        for arguments in (new_arguments, source_arguments)
    )
    if form is None:
        return dict(source_arguments)
    if form != source_form and (source_form or form not in _LARS_FORMS):
        remedy = repr(source_form) if source_form else "'inside' or 'outside'"
        raise ValueError(
            f"The velocity of {origin} cannot become one whose form has the momentum {form!r}: "
            f"past rates and ratios are part of it. Give form the momentum {remedy}, as it was "
            "trained. Nothing was changed."
        )
    return {"form": _LARS_FORMS.get(form), **source_arguments}


# Beginning of the name of saved state -> (what it is, which option of an optimizer continues it).
_KINDS_OF_STATE = {
    "average": ("the averages of the weights", "use_ema=True continues them"),
    "master": ("the float32 masters", "dtypes={'masters': 'float32'} continues them"),
    "gradient_norms": ("the norms that on_spike knows", "a window as long continues them"),
    "micro_step": (
        "the micro-batches of an update that has begun",
        "the same gradient_accumulation_steps, with the same wrapper, continues them",
    ),
    "measured": ("what is measured", "the same wrapper around the optimizer continues it"),
}  # fmt: skip


def dropped_state_lines(names: Iterable[str]) -> list[str]:
    """Describes saved state that the optimizer here has no variables for, and how to continue it.

    Args:
        names: The names of the state, as this package writes them to files.

    Returns:
        One line for each known kind of state, then the names of all other state.
    """
    lines, remaining = [], list(names)
    for prefix, (meaning, remedy) in _KINDS_OF_STATE.items():
        # The count `micro_step` is saved together with gradient sums, named `accumulator...`, and
        # averages are saved together with the flag `has_averages`.
        companion = {"micro_step": "accumulator", "average": "has_averages"}.get(prefix, prefix)
        if matched := [name for name in remaining if name.startswith((prefix, companion))]:
            lines.append(f"{meaning} ({', '.join(matched)}): {remedy}")
            remaining = [name for name in remaining if name not in matched]
    return lines + remaining


# Arguments that only Keras's Muon has. Our Muon has `form["coefficients"]` instead.
_COEFFICIENT_ARGUMENTS = ("muon_a", "muon_b", "muon_c")
KERAS_MUON = Peer(
    "keras.optimizers.Muon", "Muon", {"momentum": "m", "velocity": "v"},
    (*SHARED_ARGUMENTS, "form.fallback_lr_scale", "form.newton_schulz_steps",
     "exclude_from_weight_decay", *_KERAS_ARGUMENTS),
    {"form.update_scale": "rms", "form.coefficients": "jordan", "form.norm": None,
     "form.heads": None},
    # Arguments handled elsewhere: the slots show which variables Muon orthogonalizes, and
    # `muon_changes` compares the rest.
    ("name", "exclude_layers", "exclude_embeddings", *_COEFFICIENT_ARGUMENTS, *MUON_CONSTANTS,
     "adam_weight_decay"),
)  # fmt: skip


def check_same_slots(
    family: str, origin: str, source_slots: Mapping[str, Mapping[str, Any]],
    new_slots: Mapping[str, Iterable[str]], shapes: Mapping[str, tuple],
):  # fmt: skip
    """Checks that the variables of a Muon or SOAP have the same slots in the source and here.

    The slots of a variable show whether Muon orthogonalizes its update, and for which axes SOAP
    keeps a basis. If the slots differ, their arrays have different meanings.

    Args:
        family: "Muon" or "SOAP".
        origin: What the state was read from, as text for the error, such as the path of a file.
        source_slots: Path of a variable -> its slots in the source.
        new_slots: Path of a variable -> the names of its slots here.
        shapes: Path of a variable -> its shape.

    Raises:
        ValueError: if the slots of a variable differ.
    """
    differing = [
        path
        for path, slots in source_slots.items()
        if named.slots_of_rule(slots) != {*new_slots[path]}
    ]
    if not differing:
        return
    paths_text = ", ".join(map(repr, differing))
    if family == "SOAP":
        raise ValueError(
            f"{origin} keeps other bases than this SOAP, and second moments belong to them: "
            f"{paths_text}. Pass the same exclude_from_layer_adaptation, rows in treatments, "
            "max_precond_dim and form. Nothing was changed."
        )
    elementwise = {path for path, slots in source_slots.items() if "v" in slots}
    patterns = [
        exact_pattern(path) for path in shapes if path in elementwise and len(shapes[path]) > 1
    ]
    remedy = f"To go on as there, pass exclude_from_layer_adaptation={patterns}."
    if new_matrices := [path for path in differing if path not in elementwise]:
        remedy += f" What is a matrix there alone begins at zero with fresh={new_matrices}."
    raise ValueError(
        f"{origin} orthogonalizes other variables than this Muon, and their slots mean other "
        f"things then: {paths_text}. {remedy} Nothing was changed."
    )
