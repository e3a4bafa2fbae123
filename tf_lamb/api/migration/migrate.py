"""Migration: the state of another optimizer goes on in one of ours.

Seam into Model Garden (tf-models-official 2.20.0): `_average_weights` and `_model_weights` of its
`ExponentialMovingAverage`.
"""

import contextlib
import dataclasses
import inspect
import os
from collections.abc import Iterable, Mapping
from typing import Any

from tf_lamb.api import frontends
from tf_lamb.api.migration import peers
from tf_lamb.api.migration.peers import Source, match
from tf_lamb.api.noise.adascale import AdaScale
from tf_lamb.api.noise.measured import MeasureNoise
from tf_lamb.api.optimizers import named
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.api.variables import names_of, numpy_of, step_of, unwrapped, wrappers_of
from tf_lamb.core.messages import warn


@dataclasses.dataclass(frozen=True)
class MigrationReport:
    """The outcome of a migration; `print` shows it as text."""

    origin: str  # where the state came from
    optimizer: str  # the class that continues it
    step: int  # that it continues after
    matched: Mapping[str, str]  # path of a variable -> its name in the source
    fresh: tuple[str, ...]  # paths that begin at zero, as they were asked to
    left_over: tuple[str, ...]  # names that the source has state for and the optimizer has not
    left_behind: tuple[str, ...]  # what else has no place here, by its name in a file
    averages: str  # how averaged weights (`use_ema`) go on; empty where the optimizer has none
    changes: Mapping[str, tuple[Any, Any]]  # argument -> its value there, and here
    keep: Mapping[str, Any]  # the arguments that would keep the behaviour
    unsaid: tuple[str, ...]  # arguments that the source does not hold, to be checked by eye
    weights: int | None  # how many were set; None where they were left as they are

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
            *(("left behind", text) for text in peers.in_words(self.left_behind)),
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


def migrate(
    source: Any, optimizer: Any, model: Any, *, weights: bool = False,
    rename: Mapping[str, str] | None = None, fresh: Iterable[str] = (),
) -> MigrationReport:  # fmt: skip
    """Continues the state of another optimizer: its moments, its step, and all that it keeps.

    The function reads and checks everything before it changes anything. If something does not
    fit, one error names the variable and what to do, and nothing has changed.

    Args:
        source: The source of the state: the path of a `tf.train.Checkpoint` (its prefix, or its
            folder), of a SavedModel or of an HDF5 file, written with LAMB of TensorFlow Addons,
            or LAMB or LARS of Model Garden; of Model Garden such an optimizer itself;
            a `keras.optimizers.Lamb` or `Muon`; or an optimizer of this package, of
            either Keras.
        optimizer: An optimizer of this package, for example `tf_lamb.LAMB(...)`. If needed, it is
            built for the model's trainable variables. It keeps its own arguments. Of a
            `MultiOptimizer` pass each part, once the whole is built.
        model: The model that the optimizer trains, with its variables built.
        weights: Whether to set the model's weights from the file. Defaults to False: the
            weights do not change.
        rename: Dict from the path of a variable to its name in the source, if the names differ
            by more than the name of the model. Defaults to None.
        fresh: Paths of variables that the source never updated; their state starts at zero.
            Defaults to none.

    Returns:
        A report; print it. It lists the matched and unmatched variables, what has no place in
        the new optimizer, the changes of behaviour, and the arguments that would avoid them.

    Raises:
        ValueError: if the source is damaged, has no slots, or belongs to another model or
            family.
        FileNotFoundError: if the path does not exist.
        TypeError: for another kind of source or optimizer.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    >>> old, new = tf_lamb.LARS(0.1, momentum=0.9), tf_lamb.LARS(0.1, momentum=0.8)
    >>> old.build(model.trainable_variables)
    >>> print(tf_lamb.migrate(old, new, model))
    LARS continues tf_lamb.keras.LARS after step 0...
    """
    measuring = unwrapped(optimizer, MeasureNoise)
    optimizer = unwrapped(measuring)
    if not isinstance(optimizer, Layerwise):
        raise TypeError(
            "migrate continues with an optimizer of tf_lamb, not with a "
            f"{type(optimizer).__module__}.{type(optimizer).__name__}."
        )
    frontend, of_model = frontends.of(optimizer), frontends.of(model)
    if frontend is not of_model:
        raise TypeError(
            f"The optimizer is of {frontend.host.__name__}, and the model of "
            f"{of_model.host.__name__}: take the optimizer of tf_lamb.{of_model.host.__name__}."
        )
    inner, before = unwrapped(source), unwrapped(source, MeasureNoise)
    trained = _trained_by(measuring, optimizer, model)
    if isinstance(source, (str, os.PathLike)):
        found = frontend.checkpoints().read(source, names_of(trained), weights)
    elif isinstance(inner, Layerwise):
        found = _of_ours(inner)
    else:
        found = _of_another(inner)
    if not isinstance(source, (str, os.PathLike)):
        found = _with_averages(found, wrappers_of(source))
    goes_on = _measuring(before) == _measuring(measuring)
    kept = found if goes_on else found.after_an_update()  # its parts have been measured otherwise
    report, states, values = _prepared(
        kept, optimizer, trained, model, weights, dict(rename or {}), tuple(fresh)
    )
    if measuring is not optimizer:
        measuring.build(trained)
    scalars = dict(kept.scalars)
    left = named.continue_from(
        optimizer, trained, model.weights, kept.step, states, values, scalars
    )
    left |= (found.scalars.keys() - scalars.keys()) | {*found.others}
    measured = {} if before is inner else _values(before._named_state().scalars)
    if measuring is not optimizer:
        measuring.continue_from(measured if goes_on else _steps(measured, kept, measuring))
    if not goes_on and any(value.any() for name, value in measured.items() if name != "gain"):
        left.add("measured")
    times = peers.times_slower(kept.beyond, optimizer.get_config())
    if times > 1 and not isinstance(measuring, AdaScale):
        warn(
            f"{optimizer.name}: the learning rate's schedule is {times} times slower than in "
            f"{found.origin}, which read it at micro-batches: divide its steps by {times}."
        )
    begun = (name for name in left if name not in found.scalars or found.scalars[name].any())
    changes = report.changes | peers.adascale_changes(_of_adascale(before), _of_adascale(measuring))
    return dataclasses.replace(report, left_behind=tuple(sorted(begun)), changes=changes)


def _trained_by(outer, optimizer, model) -> list:
    """The variables of a model that an optimizer steps; a part of a `MultiOptimizer` has its own.

    Args:
        outer: The optimizer, or what measures around it.
        optimizer: The optimizer inside.
        model: With an optimizer, if it is compiled.
    """
    parts = getattr(unwrapped(getattr(model, "optimizer", None)), "optimizers", ())
    if not any(outer is part for part in parts):
        return model.trainable_variables
    if optimizer.plan is None:
        raise ValueError(
            f"{optimizer.name} is a part of {model.optimizer.name}, which gives it its variables: "
            "call model.optimizer.build(model.trainable_variables) first. Nothing was changed."
        )
    known = {id(variable) for variable in optimizer._guard.weights}
    return [variable for variable in model.trainable_variables if id(variable) in known]


def _of_another(source) -> Source:
    """The source that an optimizer of another package is."""
    with contextlib.suppress(TypeError):
        if found := frontends.of(source).state_of(source):
            return found
    raise TypeError(
        "source must be the path of a checkpoint or of an HDF5 file, a keras.optimizers.Lamb or "
        "Muon, a legacy LAMB or LARS of Model Garden, or an optimizer of tf_lamb, not "
        f"{source!r:.80}."
    )


def _with_averages(found: Source, wrappers) -> Source:
    """The source with what Model Garden's `ExponentialMovingAverage` around it has kept."""
    wrapper = next((each for each in wrappers if getattr(each, "_average_weights", None)), None)
    if wrapper is None:
        return found
    config = wrapper.get_config()
    values = map(numpy_of, wrapper._average_weights)
    averages = zip(names_of(wrapper._model_weights), values, strict=True)
    found = found.averaged(dict(averages), config["average_decay"])
    # Its momentum grows with the step; ours does not.
    dynamic = {"dynamic_decay": True} if config["dynamic_decay"] else {}
    return dataclasses.replace(found, unread={**found.unread, **dynamic})


def _of_ours(source) -> Source:
    """The source that an optimizer of this package is, of either Keras."""
    name = f"{type(source).__module__.rpartition('.')[0]}.{type(source).__name__}"
    if source.plan is None:
        raise ValueError(f"{name} has no slots before it is built: train it first.")
    state, has_averages = named.of(source), named.has_averages(source)
    once = {k: v for k, v in state.scalars.items() if k not in ("iterations", "learning_rate")}
    return Source(
        origin=name,
        family=type(source).__name__,
        step=step_of(source),
        slots={part.name: _begun(part, has_averages) for part in state.parts},
        arguments=source.get_config(),
        scalars=_values(once),
    )


def _values(variables):
    return {name: numpy_of(variable) for name, variable in variables.items()}


def _begun(part, has_averages):
    """What is kept of a variable, without averages that wait and without zeros beside the slots."""
    kept = _values(part.kept)
    if not has_averages:
        kept.pop("average", None)
    slots = named.slots_of_rule(kept) | {"average"}
    begun = {name: value for name, value in kept.items() if name in slots or value.any()}
    # Of replicas with sums of their own, the first axis.
    return {
        name: value.sum(axis=0) if name not in slots and value.ndim > len(part.shape) else value
        for name, value in begun.items()
    }


def _measuring(optimizer) -> tuple:
    """What decides the meaning of what a MeasureNoise or an AdaScale measures; empty for others."""
    if not isinstance(optimizer, MeasureNoise):
        return ()
    preconditioned = optimizer.get_config().get("preconditioned")
    return optimizer.saved_kind, preconditioned


def _of_adascale(optimizer) -> dict[str, Any]:
    """The arguments of an AdaScale; none of another optimizer."""
    return optimizer.get_config() if isinstance(optimizer, AdaScale) else {}


def _steps(measured, source, measuring) -> dict[str, Any]:
    """What another measuring optimizer goes on with: AdaScale's schedule, at steps of the base."""
    if not isinstance(measuring, AdaScale):
        return {}
    steps = {name: value for name, value in measured.items() if name in ("step", "fraction")}
    return steps or {"step": source.step}


def _prepared(source, optimizer, trained, model, weights, rename, fresh):
    """The report, path -> slot -> array, path -> weight to set; raises for what does not fit."""
    family, ours = type(optimizer).__name__, optimizer.get_config()
    if source.family != family:
        raise ValueError(
            f"{source.origin} is {source.family}, and the optimizer is {family}: their slots mean "
            f"other things. Migrate it into tf_lamb's {source.family}. Nothing was changed."
        )
    theirs = peers.same_momentum(source.origin, source.arguments, ours)
    shapes = _shapes(trained)
    if not shapes:
        raise ValueError("The model has no trainable variables yet: call it on a batch first.")
    _known("fresh", fresh, shapes)
    _known("rename", rename, _shapes(model.weights) if weights else shapes)
    plan = optimizer.plan_for(trained)
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
    parameters = inspect.signature(type(optimizer)).parameters.values()
    defaults = {each.name: each.default for each in parameters}
    changes = peers.changes(theirs, ours, defaults, source.unsaid)
    changes |= peers.muon_changes(source.beyond, ours)
    changes |= peers.averaging_changes(source.beyond, ours)
    changes |= {name: (value, None) for name, value in source.unread.items()}
    if family == "Muon":
        changes |= peers.other_rules(_of_fresh(source, plan, fresh, rename))
    host = frontends.of(optimizer).host.__name__
    takes = ours.keys() - (() if host == "keras" else peers.OF_KERAS_3)
    report = MigrationReport(
        origin=source.origin,
        optimizer=family,
        step=source.step,
        matched=found,
        fresh=tuple(path for path in shapes if path in fresh),
        left_over=tuple(sorted(set(source.slots) - set(found.values()))),
        left_behind=(),
        averages=_averages(source, ours),
        changes=changes,
        keep={
            name: there
            for name, (there, _) in changes.items()
            if name in takes and name != "learning_rate" and not peers.is_serialized(there)
        },
        unsaid=tuple(name for name in source.unsaid if name in ours),
        weights=len(values) if weights else None,
    )
    return report, slots, values


def _of_fresh(source, plan, fresh, rename):
    """Path of a variable that begins anew -> its slots in the source, and whether it is adapted."""
    there = {own: source.slots[name] for name, own in peers.without_model(source.slots).items()}
    names = {path: rename.get(path, own) for path, own in peers.without_model(plan.names).items()}
    return {
        path: (there[names[path]], treatment.adapt)
        for path, treatment in zip(plan.names, plan.treatments, strict=True)
        if path in fresh and names[path] in there
    }


def _averages(source, ours):
    if not ours["use_ema"]:
        return ""
    if any("average" in slots for slots in source.slots.values()):
        return "continue"
    waits = "has_averages" in source.scalars
    return "begin with the first update, as there" if waits else "begin with the weights"


def _slots_of(optimizer, plan, fresh):
    """Path -> name of a slot -> its shape, of what does not begin at zero."""
    every = zip(plan.names, plan.shapes, optimizer.declared_by(plan), strict=True)
    return {
        path: {slot.name: shape if slot.shape is None else slot.shape for slot in declared}
        for path, shape, declared in every
        if declared and path not in fresh
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


def _shapes(variables) -> dict[str, tuple]:
    return {n: tuple(v.shape) for n, v in zip(names_of(variables), variables, strict=True)}


def _known(argument: str, paths: Iterable[str], known: Mapping[str, Any]):
    for path in paths:
        if path not in known:
            raise ValueError(
                f"{argument} names {path!r}, which is no variable of the model; it has "
                f"{', '.join(map(repr, list(known)[:3]))} and so on."
            )
