"""The way in: another optimizer's state in our words, and what changes when we continue it.

Readers fill a `Source`; `prepare` checks all of it and says what to assign, before
any variable is touched. Arrays pass through untouched.
"""

import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from tf_lamb.api.migration import peers
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.api.variables import names_of
from tf_lamb.core.patterns import model_name


def match(
    origin: str,
    wanted: Mapping[str, Mapping[str, tuple]],
    found: Mapping[str, Mapping[str, Any]],
    rename: Mapping[str, str],
) -> dict[str, str]:
    """Path -> name in the source, for every path that is wanted, or one error.

    Names are compared as they are, then without the name of the model, which differs between a
    functional and a subclassed model. Every part that is wanted of a path, with its shape, must be
    there.
    """
    short = _short(found)
    lookup = {short[name]: name for name in found} | {name: name for name in found}
    result = {}
    for path, own in _short(wanted).items():
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
    hint = f"pass rename={{{path!r}: {alike[0]!r}}}" if alike else "say so with rename={path: name}"
    asked = f" under the name {name!r}" if name else ""
    begins = f" If the source never updated it, pass fresh=[{path!r}]: it then begins at zero."
    fresh = "" if part == "weight" else begins
    return (
        f"{origin} holds no {part!r} of {path!r}, shape {shape}{asked}; it has "
        f"{', '.join(map(repr, list(found)[:3]))} and so on. If the variable has another name "
        f"there, {hint}.{fresh} Nothing was changed."
    )


def _short(names: Iterable[str]) -> dict[str, str]:
    """Name -> the same without the name of the model."""
    names = list(names)
    root = model_name(names)
    return {name: name.removeprefix(root) for name in names}


@dataclasses.dataclass(frozen=True)
class Source:
    """The state of an optimizer, as a reader found it.

    Attributes:
        origin: what was read, in words.
        family: the class of ours that continues it, such as "LAMB".
        step: how many steps it has made.
        slots: name of a variable -> our name of a slot -> array.
        arguments: its arguments in our words; what the source does not say is left out.
        unsaid: arguments that it had and the source does not say.
        weights: name of a variable -> array, or None where the source holds no weights.
        beyond: arguments that we do not have, in its own words.
        scalars: of one of ours, what there is once, by its name in a file.
        measured: what a MeasureNoise around it has measured, by its name in a file.
        around: what decides the meaning of that: "kind", "groups", and arguments of an AdaScale.
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
    measured: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    around: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_peer(cls, peer: peers.Peer, step: int, slots, source_config, **more):
        """Makes the source from a peer's own names; `more` are attributes as they are."""
        arguments = peer.arguments(source_config)
        ours = {
            variable: {peer.slots[slot]: value for slot, value in values.items()}
            for variable, values in slots.items()
        }
        unsaid = peer.unsaid(arguments)
        found = cls(peer.title, peer.family, step, ours, arguments, unsaid)
        return dataclasses.replace(found, **more)

    def within(self, around: Mapping[str, Any]) -> "Source":
        """The source as an optimizer goes on from it that has this around it, as `around` has it.

        What is measured of an update begins with the update; so the parts of one that has begun
        go on where all of them have been measured alike, or none is.
        """
        names = ("kind", "groups", "preconditioned")
        if [self.around.get(name) for name in names] == [around.get(name) for name in names]:
            return self
        measured = {}
        if around.get("kind") == "adascale":  # a step of another was one of the base batch
            steps = {k: v for k, v in self.measured.items() if k in ("step", "fraction")}
            measured = steps or {"step": self.step}
        alone = dataclasses.replace(self, measured=measured)
        if not around:
            return alone
        slots = {variable: _of_updates(kept) for variable, kept in self.slots.items()}
        return dataclasses.replace(alone, slots=slots, scalars=_of_updates(self.scalars))

    def left_behind(self, names: Iterable[str], around: Mapping[str, Any]) -> tuple[str, ...]:
        """What does not go on, in words, of these names of what has no place.

        Args:
            names: of scalars, and of what is kept of a variable.
            around: see `within`.
        """
        own = self.within(around)
        names = {*names, *(set(self.scalars) - set(own.scalars))}
        begun = {name for name in names if name not in self.scalars or self.scalars[name].any()}
        lost = [f"{what}: {way}" for key, (what, way) in _LEFT.items() if _any(key, begun)]
        measured = (value.any() for name, value in self.measured.items() if name != "gain")
        if own is not self and any(measured):
            lost.append("what is measured: the same wrapper around, with its groups, continues it")
        return tuple(lost)


# By the beginning of a name: what it is, and what continues it.
_LEFT = {
    "master": ("the float32 masters", "dtypes={'masters': 'float32'} continues them"),
    "gradient_norms": ("the norms that on_spike knows", "a window as long continues them"),
    "micro_step": (
        "the micro-batches of an update that has begun",
        "the same gradient_accumulation_steps, and what is around, continue them",
    ),
}  # fmt: skip


def _any(beginning, names):
    return any(name.startswith(beginning) for name in names)


def _of_updates(values):
    """Without what belongs to a part of an update."""
    return {k: v for k, v in values.items() if not k.startswith(("accumulator", "micro_step"))}


@dataclasses.dataclass(frozen=True)
class MigrationReport:
    """The outcome of a migration; `print` shows it as text.

    Attributes:
        origin: where the state came from.
        optimizer: the class that continues it.
        step: the step that it continues after.
        matched: path of a variable -> its name in the source.
        fresh: paths that begin at zero, as they were asked to.
        left_over: names that the source has state for and the optimizer has not.
        left_behind: what the source keeps besides and the optimizer has no place for, in words.
        averages: the fate of averaged weights (`use_ema`); empty where neither side has any.
        changes: argument -> its value there and here; the next steps differ by these.
        keep: the arguments that would keep the behaviour.
        unsaid: arguments that the source does not hold, to be checked by eye.
        weights: how many weights were set, or None where they were left as they are.
    """

    origin: str
    optimizer: str
    step: int
    matched: Mapping[str, str]
    fresh: tuple[str, ...]
    left_over: tuple[str, ...]
    averages: str
    changes: Mapping[str, tuple[Any, Any]]
    keep: Mapping[str, Any]
    unsaid: tuple[str, ...]
    weights: int | None
    left_behind: tuple[str, ...] = ()

    def __str__(self):
        renamed = [f"{path} (there {name})" for path, name in self.matched.items() if path != name]
        total = len(self.matched) + len(self.fresh)
        weights = "left as they are" if self.weights is None else f"{self.weights} set"
        rows = [
            ("matched", f"{len(self.matched)} of {total} variables"),
            *(("", line) for line in renamed),
            ("fresh", ", ".join(self.fresh) or "none: no variable begins at zero"),
            ("left over", ", ".join(self.left_over) or "nothing in the source"),
            ("weights", weights),
            *([("averages", self.averages)] if self.averages else []),
            *(("left behind", text) for text in self.left_behind),
        ]
        for name, (there, here) in self.changes.items():
            there, here = peers.shown(there), peers.shown(here)
            rows.append(("changes", f"{name}: {there} there, {here} here"))
        if not self.changes and not self.left_behind:
            rows.append(("changes", "none that the source tells of"))
        if self.keep:
            pairs = ", ".join(f"{k}={v!r}" for k, v in self.keep.items())
            rows.append(("to keep it", f"{self.optimizer}(..., {pairs})"))
        if self.unsaid:
            rows.append(("check", f"the source does not hold {', '.join(self.unsaid)}"))
        head = f"{self.optimizer} continues {self.origin} after step {self.step:,}."
        return "\n".join([head, *(f"  {label:<11} {text}" for label, text in rows)])


def prepare(
    source: Source, optimizer: Layerwise, model, *, weights=False, rename=None, fresh=(), around=()
):  # fmt: skip
    """Checks a source against an optimizer and its model, and says what to assign.

    Args:
        source: from a reader.
        optimizer: one of ours, built or not.
        model: anything with `trainable_variables` and `weights`.
        weights: whether the weights of the model are wanted, too.
        rename: path of a variable -> its name in the source.
        fresh: paths that may begin at zero.
        around: of the optimizer, as a source has it.

    Returns:
        The report, path -> slot -> array, which is empty for a variable that begins at zero, and
        path -> array, the weights to set.

    Raises:
        ValueError: where anything does not fit; nothing has been changed then.
    """
    family, rename = type(optimizer).__name__, dict(rename or {})
    ours = optimizer.get_config()
    if source.family != family:
        raise ValueError(
            f"{source.origin} is {source.family}, and the optimizer is {family}: their slots mean "
            f"other things. Migrate it into tf_lamb's {source.family}. Nothing was changed."
        )
    theirs = peers.same_momentum(source.origin, source.arguments, ours)
    shapes = _shapes(model.trainable_variables)
    if not shapes:
        raise ValueError("The model has no trainable variables yet: call it on a batch first.")
    _known("fresh", fresh, shapes)
    known = shapes if not weights else _shapes(model.weights)
    _known("rename", rename, known)
    plan = optimizer.plan_for(model.trainable_variables)
    wanted = _slots_of(optimizer, plan, fresh)
    first = {path: dict([next(iter(slots.items()))]) for path, slots in wanted.items()}
    found = match(source.origin, first, source.slots, rename)
    if family in ("Muon", "SOAP"):
        there = {path: source.slots[name] for path, name in found.items()}
        peers.check_same_slots(family, source.origin, there, wanted, shapes)
        # The same variables, whatever patterns said so.
        theirs["exclude_from_layer_adaptation"] = ours["exclude_from_layer_adaptation"]
    match(source.origin, wanted, source.slots, rename)
    slots: dict[str, dict] = {path: {} for path in shapes}
    slots |= {path: dict(source.slots[name]) for path, name in found.items()}
    values = _weights(source, model, rename) if weights else {}
    changes = peers.changes(theirs, ours, _defaults(type(optimizer)), source.unsaid)
    changes |= peers.muon_changes(source.beyond, ours)
    changes |= peers.adascale_changes(source.around, dict(around))
    changes |= peers.counted_otherwise(source.beyond, ours)
    if family == "Muon":
        changes |= peers.other_rules(_of_fresh(source, plan, fresh, rename))
    report = MigrationReport(
        origin=source.origin,
        optimizer=family,
        step=source.step,
        matched=found,
        fresh=tuple(path for path in shapes if path in fresh),
        left_over=tuple(sorted(set(source.slots) - set(found.values()))),
        averages=_averages(source, ours),
        changes=changes,
        keep={
            name: there
            for name, (there, _) in changes.items()
            if name in ours and name != "learning_rate" and not peers.is_serialized(there)
        },
        unsaid=tuple(name for name in source.unsaid if name in ours),
        weights=len(values) if weights else None,
    )
    return report, slots, values


def _slots_of(optimizer, plan, fresh):
    """Path -> name of a slot -> its shape, of what does not begin at zero."""
    return {
        path: {
            slot.name: shape if slot.shape is None else slot.shape
            for slot in optimizer.slots_of(treatment, shape)
        }
        for path, treatment, shape in zip(plan.names, plan.treatments, plan.shapes, strict=True)
        if path not in fresh
    }


def _weights(source, model, rename):
    """Path -> array, of all weights of the model."""
    if source.weights is None:
        raise ValueError(
            f"{source.origin} holds no weights, so weights=True does not go with it. Copy them "
            "with model.set_weights(...), or leave the argument out. Nothing was changed."
        )
    parts = {name: {"weight": value} for name, value in source.weights.items()}
    wanted = {path: {"weight": shape} for path, shape in _shapes(model.weights).items()}
    names = match(source.origin, wanted, parts, rename)
    return {path: source.weights[name] for path, name in names.items()}


def _of_fresh(source, plan, fresh, rename):
    """Path of a variable that begins anew -> its slots in the source, and whether it is adapted."""
    there = {own: source.slots[name] for name, own in _short(source.slots).items()}
    names = {path: rename.get(path, own) for path, own in _short(plan.names).items()}
    return {
        path: (there[names[path]], treatment.adapt)
        for path, treatment in zip(plan.names, plan.treatments, strict=True)
        if path in fresh and names[path] in there
    }


def _averages(source, ours):
    are_there = any("average" in slots for slots in source.slots.values())
    if not ours["use_ema"]:
        if source.beyond.get("use_ema"):
            return "left behind: those of another package are not read"
        return "left behind: use_ema=True continues them" if are_there else ""
    if are_there:
        return "continue"
    waits = "has_averages" in source.scalars
    return "begin with the first update, as there" if waits else "begin with the weights"


def _shapes(variables) -> dict[str, tuple]:
    return {n: tuple(v.shape) for n, v in zip(names_of(variables), variables, strict=True)}


def _known(argument: str, paths: Iterable[str], known: Mapping[str, Any]):
    for path in paths:
        if path not in known:
            raise ValueError(
                f"{argument} names {path!r}, which is no variable of the model; it has "
                f"{', '.join(map(repr, list(known)[:3]))} and so on."
            )


def _defaults(cls: type) -> dict[str, Any]:
    return {name: each.default for name, each in inspect.signature(cls).parameters.items()}
