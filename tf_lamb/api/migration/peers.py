"""The state of another optimizer in our words, and whose of our variables each array is.

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
from tf_lamb.api.variables import numpy_of
from tf_lamb.core.patterns import exact, model_name

# Their word -> ours.
_WORDS = {
    "weight_decay_rate": "weight_decay", "eeta": "trust_coefficient", "adam_beta_1": "beta_1",
    "adam_beta_2": "beta_2", "adam_lr_ratio": "fallback_lr_scale",
    "ns_steps": "newton_schulz_steps",
}  # fmt: skip
SHARED = (
    "learning_rate", "beta_1", "beta_2", "epsilon", "momentum", "nesterov", "weight_decay",
    "clipnorm", "clipvalue", "global_clipnorm",
)  # fmt: skip
_NO_PART = ("name", "jit_compile", "shard_update")  # of what is computed
_OF_AVERAGES = ("ema_momentum", "ema_overwrite_frequency")
# What a peer lacks is no change of behaviour: around the formula, as the user has chosen it.
_AROUND = ("dtypes", "gradient_accumulation_steps", "loss_scale_factor", *_OF_AVERAGES)
OF_KERAS_3 = ("loss_scale_factor",)  # which ours has in Keras 3 alone


@dataclasses.dataclass(frozen=True)
class Peer:
    """One of those whose state we take in."""

    title: str
    family: str  # the class of ours that continues it
    slots: Mapping[str, str]  # its name of a slot -> ours
    has: tuple[str, ...]  # its arguments in our words; the key of one that is a dict behind a dot
    # Those that it has not, where it differs from our defaults.
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Those that slots or another line of the report tell of, and those that compute nothing.
    told: tuple[str, ...] = ("name",)

    def arguments(self, source_config: Mapping[str, Any]) -> dict[str, Any]:
        """The peer's arguments under our names."""
        words = {_WORDS.get(name, name): value for name, value in source_config.items()}
        result: dict[str, Any] = {}
        for name in (*self.has, *self.fixed):
            argument, _, key = name.rpartition(".")
            if name in self.fixed or key in words:
                place = result.setdefault(argument, {}) if argument else result
                place[key] = self.fixed[name] if name in self.fixed else plain(words[key])
        if "classic_momentum" in source_config:
            result["form"] = _FORMS["inside" if source_config["classic_momentum"] else "outside"]
        if (decay := plain(source_config.get("decay"))) and _is_number(result.get("learning_rate")):
            result["learning_rate"] = decayed(result["learning_rate"], decay)
        return result

    def unread(self, source_config: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that nothing here knows, with their values, in its own words."""
        words = {name.rpartition(".")[2] for name in self.has} | {*self.told}
        if not source_config.get("decay") or _is_number(source_config.get("learning_rate")):
            words.add("decay")  # none, or a schedule with the rate
        return {
            name: value
            for name, value in source_config.items()
            if _WORDS.get(name, name) not in words and value is not None
        }

    def unsaid(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """The arguments that it has and did not say."""
        return tuple(name for name in self.has if name.partition(".")[0] not in arguments)


@dataclasses.dataclass(frozen=True)
class Source:
    """The state of an optimizer, as a reader found it."""

    origin: str  # what was read, in words
    family: str  # the class of ours that continues it, such as "LAMB"
    step: int
    slots: Mapping[str, Mapping[str, Any]]  # of a variable: our name of a slot -> array
    arguments: Mapping[str, Any]  # in our words; what the source does not say is left out
    unsaid: tuple[str, ...] = ()  # arguments that it had and the source does not say
    weights: Mapping[str, Any] | None = None  # by name of a variable, where the source holds them
    # Arguments that we do not have, in its own words.
    beyond: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # What there is once, by its name in a file of ours.
    scalars: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Arguments and, by path, variables that nothing here knows: of a newer version, or a subclass.
    unread: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    others: tuple[str, ...] = ()

    @classmethod
    def of_peer(cls, peer: Peer, step: int, slots, source_config, **more):
        """Makes the source from a peer's own names; `more` are attributes as they are."""
        arguments = peer.arguments(source_config)
        ours = {
            variable: {peer.slots.get(slot, slot): value for slot, value in values.items()}
            for variable, values in slots.items()
        }
        unsaid = peer.unsaid(arguments)
        found = cls(peer.title, peer.family, step, ours, arguments, unsaid)
        return dataclasses.replace(found, unread=peer.unread(source_config), **more)

    def averaged(self, averages: Mapping[str, Any], momentum: float | None = None) -> "Source":
        """The source with averages of its weights, by variable, which another class has kept.

        Those of what has no slots have no place here, as of a batch normalization's statistics.
        """
        averages = dict(averages)
        slots = {
            variable: {**kept, "average": averages.pop(variable)} if variable in averages else kept
            for variable, kept in self.slots.items()
        }
        said: dict[str, Any] = {} if momentum is None else {"ema_momentum": momentum}
        return dataclasses.replace(
            self,
            slots=slots,
            arguments={**self.arguments, "use_ema": True, **said},
            unsaid=(*self.unsaid, *({"ema_momentum"} - said.keys())),
            scalars={**self.scalars, "has_averages": numpy_of(min(self.step, 1))},
            others=tuple(f"average of {name}" for name in averages),
        )

    def after_an_update(self) -> "Source":
        """The source without the micro-batches of an update that has begun."""
        slots = {variable: _of_updates(kept) for variable, kept in self.slots.items()}
        return dataclasses.replace(self, slots=slots, scalars=_of_updates(self.scalars))


def _of_updates(values):
    return {k: v for k, v in values.items() if not k.startswith(("accumulator", "micro_step"))}


def match(
    origin: str,
    wanted: Mapping[str, Mapping[str, tuple]],
    found: Mapping[str, Mapping[str, Any]],
    rename: Mapping[str, str],
) -> dict[str, str]:
    """Path -> name in the source, with the model's name or without, of every path; or one error."""
    short = without_model(found)
    lookup = {short[name]: name for name in found} | {name: name for name in found}
    result = {}
    for path, own in without_model(wanted).items():
        name = rename.get(path) or lookup.get(path) or lookup.get(own) or ""
        if name not in found:
            raise ValueError(_missing(origin, path, name, wanted, found, lookup))
        for part, own_shape in wanted[path].items():
            if part not in found[name]:
                raise ValueError(
                    f"{origin} is incomplete: it has no {part!r} of {path!r}, only "
                    f"{', '.join(found[name]) or 'nothing'}. Save it again. Nothing was changed."
                )
            shape = tuple(found[name][part].shape)
            if shape != own_shape:
                raise ValueError(
                    f"{part!r} of {path!r} has shape {shape} in {origin}, and {own_shape} in "
                    "this model: it is the state of another model. Build the model as it was "
                    "trained, or name the right variable with rename. Nothing was changed."
                )
        result[path] = name
    twice = [path for path, name in result.items() if list(result.values()).count(name) > 1]
    if twice:
        raise ValueError(
            f"{twice[0]!r} and {twice[1]!r} would both take {result[twice[0]]!r} of {origin}. "
            "Say which is which with rename. Nothing was changed."
        )
    return result


def _missing(origin, path, name, wanted, found, lookup):
    """Why a variable has no counterpart, and both ways out."""
    part, shape = next(iter(wanted[path].items()))
    taken = {lookup.get(other) for other in wanted}
    alike = [
        other
        for other, values in found.items()
        if other not in taken and any(tuple(v.shape) == shape for v in values.values())
    ]
    theirs = repr(alike[0]) if alike else "name"
    asked = f" under the name {name!r}" if name else ""
    begins = f" If the source never updated it, pass fresh=[{path!r}]: it then begins at zero."
    return (
        f"{origin} holds no {part!r} of {path!r}, shape {shape}{asked}; it has "
        f"{', '.join(map(repr, list(found)[:3]))} and so on. If the variable has another name "
        f"there, pass rename={{{path!r}: {theirs}}}.{'' if part == 'weight' else begins} Nothing "
        "was changed."
    )


def without_model(names: Iterable[str]) -> dict[str, str]:
    """Name -> the same without the name of the model."""
    names = list(names)
    root = model_name(names)
    return {name: name.removeprefix(root) for name in names}


def _is_number(value):
    return isinstance(value, (int, float))


_MOMENTS = {"m": "m", "v": "v"}
_OF_LEGACY = ("name", "is_legacy_optimizer")
_LARS = (
    "learning_rate", "momentum", "weight_decay", "trust_coefficient", "nesterov", "form",
    "clipnorm", "clipvalue", "global_clipnorm", *EXCLUSIONS,
)  # fmt: skip
ADDONS_LAMB = Peer("TensorFlow Addons LAMB", "LAMB", _MOMENTS, ADDONS_HAS, told=_OF_LEGACY)
# One class under one name, without its exclusion lists in the config: nothing tells them apart.
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

# A legacy config leaves them out where they are None.
NO_CLIPPING = {"clipnorm": None, "clipvalue": None, "global_clipnorm": None}

# Where the rate stands in Model Garden's LARS, classic or popular, and what its ratio divides by.
_FORMS = {
    "inside": {"momentum": "inside", "denominator": "norm_of_sum", "clip": False},
    "outside": {"momentum": "outside", "denominator": "norm_of_update", "clip": False},
}


def of_legacy(origin: str, name: str, slots, source_config) -> Peer:
    """The peer that wrote slots of these names, by an optimizer of this name; or an error."""
    slots, source_config = set(slots) - {"average"}, set(source_config)
    if slots == {"m", "v"} and not name.lower().startswith("adam"):
        if "weight_decay_rate" in source_config:
            return OLDER_LAMB
        if "weight_decay" in source_config:
            return ADDONS_LAMB
    if slots == {"momentum"} and ("eeta" in source_config or "momentum" not in source_config):
        return GARDEN_LARS  # legacy SGD has this slot, too, with the opposite sign
    raise ValueError(
        f"{origin} holds an optimizer named {name!r} with slots {sorted(slots)}, which is neither "
        "the LAMB of TensorFlow Addons or Model Garden nor Model Garden's LARS: those can be "
        "migrated. Start a new optimizer instead. Nothing was changed."
    )


def legacy_slots(named: Mapping[str, Any]) -> tuple[str, int, dict[str, dict[str, Any]]]:
    """Name, step, and variable -> slot -> value, of names such as `LAMB/dense/kernel/m:0`."""
    bare = {key.rpartition(":")[0] or key: value for key, value in named.items()}
    counter = next((key for key in bare if key == "iter" or key.endswith("/iter")), None)
    if counter is None:
        return "", 0, {}
    prefix = counter.removesuffix("iter")
    slots: dict[str, dict[str, Any]] = {}
    for key, value in bare.items():
        if key != counter:
            variable, _, slot = key.removeprefix(prefix).rpartition("/")
            slots.setdefault(variable, {})[slot] = value
    return prefix.strip("/").rpartition("/")[2], step_of(bare[counter]), slots


def step_of(counter) -> int:
    """The steps that a counter in a file says."""
    try:
        if (step := int(counter)) >= 0:
            return step
    except (TypeError, ValueError):
        pass
    shown = " ".join(repr(counter).split())
    raise ValueError(f"The step counter is {shown:.100}, no number of steps. Nothing was changed.")


def same_momentum(origin: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]):
    """A peer's arguments; the form of momentum that a checkpoint leaves open is taken from ours."""
    form, their_form = ((each.get("form") or {}).get("momentum") for each in (ours, theirs))
    if form is None:
        return dict(theirs)
    if form != their_form and (their_form or form not in _FORMS):
        way = repr(their_form) if their_form else "'inside' or 'outside'"
        raise ValueError(
            f"The velocity of {origin} cannot become one whose form has the momentum {form!r}: "
            f"past rates and ratios are part of it. Give form the momentum {way}, as it was "
            "trained. Nothing was changed."
        )
    return {"form": _FORMS.get(form), **theirs}


def changes(theirs, ours, defaults, unsaid) -> dict[str, tuple[Any, Any]]:
    """Argument -> its value there and here, wherever the two behave differently."""
    result = {}
    there = {k: v for k, v in defaults.items() if k not in (*unsaid, *_AROUND)} | dict(theirs)
    for name, here in ours.items():
        if name in _NO_PART or name not in there:
            continue
        if name in ("use_ema", *_OF_AVERAGES) and not there.get("use_ema"):
            continue  # new averages change no step of the source's; `averages` tells of them
        a, b = (_effect(name, value, each) for value, each in ((there[name], there), (here, ours)))
        if not _same(a, b):
            result[name] = (there[name], here)
    return result


def _effect(name, value, arguments):
    if name == "exclude_from_layer_adaptation" and value is None:
        value = arguments.get("exclude_from_weight_decay")
    if name in EXCLUSIONS:
        return sorted(value or ())
    if isinstance(value, Mapping) and not is_serialized(value):  # as good as not given, if empty
        return {key: each for key, each in value.items() if each is not None} or None
    return (value or 0.0) if name == "weight_decay" else value


def _same(a, b):
    """Whether two values of a config mean the same, in either Keras."""
    if all(isinstance(each, (int, float)) for each in (a, b)):
        return abs(a - b) <= 1e-6 * max(abs(a), abs(b))
    a, b = map(_bare, (a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if all(isinstance(each, (list, tuple)) for each in (a, b)):
        return len(a) == len(b) and all(map(_same, a, b))
    return a == b


def is_serialized(value) -> bool:
    """Whether it is an object of a config, such as a schedule."""
    return isinstance(value, Mapping) and {"class_name", "config"} <= value.keys()


def _bare(value):
    """A schedule by its class and its numbers: its package and its name are no part of it."""
    if not is_serialized(value) or not isinstance(value["config"], Mapping):
        return value
    kind = value.get("registered_name") or value["class_name"]
    own = {k: v for k, v in value["config"].items() if k != "name" and v is not None}
    return {"class_name": kind.rpartition(">")[2], **own}


def shown(value) -> str:
    """The value of an argument in a report; a schedule as it is written."""
    bare = _bare(value)
    if bare is value:
        return repr(value)
    kind = bare.pop("class_name")
    return f"{kind}({', '.join(f'{k}={shown(v)}' for k, v in bare.items())})"


# By the beginning of a name in a file: what it is, and what would continue it.
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
    """What names in a file stand for, with the name, and what would continue it."""
    lines, others = [], list(names)
    for beginning, (what, way) in _LEFT.items():
        # The sums of an update belong to its count, and averages to whether there are any.
        alike = {"micro_step": "accumulator", "average": "has_averages"}.get(beginning, beginning)
        if known := [name for name in others if name.startswith((beginning, alike))]:
            lines.append(f"{what} ({', '.join(known)}): {way}")
            others = [name for name in others if name not in known]
    return lines + others


def adascale_changes(
    there: Mapping[str, Any], here: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Argument of an AdaScale -> its value there and here, None where there is no AdaScale."""
    names = ("scale", "preconditioned")
    pairs = {f"AdaScale's {name}": (there.get(name), here.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if not _same(*pair)}


def other_rules(fresh: Mapping[str, tuple[Mapping[str, Any], bool]]) -> dict[str, tuple[str, str]]:
    """The rule of each variable that Muon orthogonalizes on one side alone.

    `fresh` has of a variable that begins anew its slots there, and whether it is a matrix here.
    """
    rules = {True: "Newton-Schulz", False: "AdamW"}
    both = {path: ("v" not in slots, is_matrix) for path, (slots, is_matrix) in fresh.items()}
    return {
        f"the rule of {path}": (rules[there], rules[here])
        for path, (there, here) in both.items()
        if there != here
    }


_MUON_ALONE = {"rms_rate": 0.2, "muon_a": 3.4445, "muon_b": -4.7750, "muon_c": 2.0315}
KERAS_MUON = Peer(
    "keras.optimizers.Muon", "Muon", {"momentum": "m", "velocity": "v"},
    (*SHARED, "form.fallback_lr_scale", "form.newton_schulz_steps", "exclude_from_weight_decay",
     *_KERAS),
    {"form.update_scale": "rms"},
    # Which variables are matrices is told by their slots, the others by `muon_changes`.
    ("name", "exclude_layers", "exclude_embeddings", *_MUON_ALONE, "adam_weight_decay"),
)  # fmt: skip


def check_same_slots(
    family: str, origin: str, there: Mapping[str, Mapping[str, Any]],
    here: Mapping[str, Iterable[str]], shapes: Mapping[str, tuple],
):  # fmt: skip
    """Raises where a variable of Muon or SOAP has other slots there, which mean other things."""
    differ = [path for path, slots in there.items() if named.slots_of_rule(slots) != {*here[path]}]
    if not differ:
        return
    listed = ", ".join(map(repr, differ))
    if family == "SOAP":
        raise ValueError(
            f"{origin} keeps other bases than this SOAP, and second moments belong to them: "
            f"{listed}. Pass the same exclude_from_layer_adaptation, rows in treatments, "
            "max_precond_dim and form. Nothing was changed."
        )
    others = {path for path, slots in there.items() if "v" in slots}
    patterns = [exact(path) for path in shapes if path in others and len(shapes[path]) > 1]
    way = f"To go on as there, pass exclude_from_layer_adaptation={patterns}."
    if fresh := [path for path in differ if path not in others]:
        way += f" What is a matrix there alone begins at zero with fresh={fresh}."
    raise ValueError(
        f"{origin} orthogonalizes other variables than this Muon, and their slots mean other "
        f"things then: {listed}. {way} Nothing was changed."
    )


def muon_changes(
    source_config: Mapping[str, Any], ours: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Argument of Keras's Muon that ours does not have -> its value there, and what is here."""
    here = dict(_MUON_ALONE)
    if "adam_weight_decay" in source_config and not isinstance(ours["weight_decay"], Mapping):
        # Theirs decays at the whole rate what Adam steps.
        here["adam_weight_decay"] = ours["weight_decay"] * ours["form"]["fallback_lr_scale"]
    there = {
        name: (source_config[name] or 0.0, value)
        for name, value in here.items()
        if name in source_config
    }
    return {name: pair for name, pair in there.items() if not math.isclose(*pair, rel_tol=1e-6)}


def averaging_changes(
    source_config: Mapping[str, Any], ours: Mapping[str, Any]
) -> dict[str, tuple[str, str]]:
    """When the averages move in Keras and here, if both have them, and an update micro-batches."""
    several = (source_config.get("gradient_accumulation_steps") or 1) > 1
    if not (several and source_config.get("use_ema") and ours["use_ema"]):
        return {}
    return {"when the averages move": ("at each micro-batch", "at each update")}


def times_slower(source_config: Mapping[str, Any], ours: Mapping[str, Any]) -> int:
    """How many times slower the same schedule is here than in Keras, which counts micro-batches."""
    theirs = source_config.get("learning_rate")
    same = is_serialized(theirs) and _same(theirs, ours["learning_rate"])
    return (source_config.get("gradient_accumulation_steps") or 1) if same else 1
