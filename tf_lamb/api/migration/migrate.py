"""Contains `migrate`, which copies the state of another optimizer into one of this package.

The source is the other optimizer, or a file that it was saved in. "Here" means in this package.

This module uses private API: `_average_weights` and `_model_weights` of the class
`ExponentialMovingAverage` in Model Garden (tf-models-official 2.20.0).
"""

import contextlib
import dataclasses
import inspect
import os
from collections.abc import Iterable, Mapping
from typing import Any

from tf_lamb.api import frontends
from tf_lamb.api.migration import peers
from tf_lamb.api.migration.changes import (
    adascale_changes,
    argument_changes,
    averaging_changes,
    is_serialized,
    muon_changes,
    rule_changes,
    schedule_slowdown,
    value_text,
)
from tf_lamb.api.migration.peers import Source, match
from tf_lamb.api.noise.adascale import AdaScale
from tf_lamb.api.noise.measured import MeasureNoise
from tf_lamb.api.optimizers import named
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.api.variables import names_of, numpy_of, step_of, unwrapped, wrappers_of
from tf_lamb.core.messages import warn


@dataclasses.dataclass(frozen=True)
class MigrationReport:
    """Holds the outcome of a migration; `print` shows it as text.

    Attributes:
        origin: The source of the state, in words.
        optimizer: The name of the class that continues the state.
        step: The number of optimizer steps that the source has made.
        matched: Path of a variable -> its name in the source.
        fresh: Paths of the variables whose state starts at zero: those of the argument `fresh`.
        left_over: Names of variables in the source that match no variable of the optimizer, with
            those of `own_variables`.
        left_behind: Names of other state in the source that the optimizer has no variables for,
            such as moving averages. They are the names that this package uses in files.
        averages: How the moving averages of the weights (`use_ema`) begin or continue, in words;
            empty if the optimizer keeps none.
        changes: Argument -> (its value in the source, its value in the optimizer), where the two
            differ.
        keep: The arguments, with values, that would keep the source's behaviour.
        unsaid: Names of arguments whose values were not saved in the source, so that the user has
            to compare them.
        weights: The number of weights that were set; None if the weights were not touched.
        own_variables: Paths of variables in a checkpoint that are neither of the model nor of an
            optimizer, such as "step" of `tf.train.Checkpoint(step=...)`. They are not set.
    """

    origin: str
    optimizer: str
    step: int
    matched: Mapping[str, str]
    fresh: tuple[str, ...]
    left_over: tuple[str, ...]
    left_behind: tuple[str, ...]
    averages: str
    changes: Mapping[str, tuple[Any, Any]]
    keep: Mapping[str, Any]
    unsaid: tuple[str, ...]
    weights: int | None
    own_variables: tuple[str, ...] = ()

    def __str__(self):
        renamed = [f"{path} (there {name})" for path, name in self.matched.items() if path != name]
        total = len(self.matched) + len(self.fresh)
        weights = "left as they are" if self.weights is None else f"{self.weights} set"
        rows = [
            ("matched", f"{len(self.matched)} of {total} variables"),
            *(("", line) for line in renamed),
            ("fresh", ", ".join(self.fresh) or "none: no variable begins at zero"),
            *(("left over", text) for text in self._left_over_lines()),
            ("weights", weights),
            *([("averages", self.averages)] if self.averages else []),
            *(("left behind", text) for text in peers.dropped_state_lines(self.left_behind)),
        ]
        for name, (source_value, new_value) in self.changes.items():
            source_value, new_value = value_text(source_value), value_text(new_value)
            rows.append(("changes", f"{name}: {source_value} there, {new_value} here"))
        if not self.changes and not self.left_behind:
            rows.append(("changes", "none that the source tells of"))
        if self.keep:
            pairs = ", ".join(f"{argument}={value!r}" for argument, value in self.keep.items())
            rows.append(("to keep it", f"{self.optimizer}(..., {pairs})"))
        if self.unsaid:
            rows.append(("check", f"the source does not hold {', '.join(self.unsaid)}"))
        title = f"{self.optimizer} continues {self.origin} after step {self.step:,}."
        return "\n".join([title, *(f"  {label:<11} {text}" for label, text in rows)])

    def _left_over_lines(self) -> list[str]:
        """Returns what the report says of the variables in the source that were not used."""
        slot_owners = [name for name in self.left_over if name not in self.own_variables]
        lines = [", ".join(slot_owners)] if slot_owners else []
        if self.own_variables:
            objects = dict.fromkeys(path.partition("/")[0] for path in self.own_variables)
            restored = ", ".join(f"{name}=..." for name in objects)
            lines.append(
                f"{', '.join(self.own_variables)}: of your own, which "
                f"tf.train.Checkpoint({restored}) restores"
            )
        return lines or ["nothing in the source"]


def migrate(
    source: Any, optimizer: Any, model: Any, *, weights: bool = False,
    rename: Mapping[str, str] | None = None, fresh: Iterable[str] = (),
) -> MigrationReport:  # fmt: skip
    """Copies the state of another optimizer (slots, step and all else), so that training continues.

    The function reads and checks everything before it changes anything. If something does not fit,
    one error names the variable and what to do, and nothing has changed. It warns if a schedule of
    the learning rate is slower here, because it counts updates and not micro-batches.

    Args:
        source: The source of the state. It is the path of a `tf.train.Checkpoint` (its prefix, or
            its folder), of a SavedModel or of an HDF5 file, written with LAMB of TensorFlow
            Addons, or LAMB or LARS of Model Garden; or such an optimizer of Model Garden itself;
            or a `keras.optimizers.Lamb` or `Muon`; or an optimizer of this package, of either
            Keras.
        optimizer: An optimizer of this package, for example `tf_lamb.LAMB(...)`. If needed, it is
            built for the model's trainable variables. It keeps its own arguments. For a
            `MultiOptimizer`, build it first, then call this function for each of its parts.
        model: The model that the optimizer trains, with its variables built.
        weights: Whether to set the model's weights from the file. Defaults to False: the
            weights do not change.
        rename: Dict from the path of a variable to its name in the source, if the names differ
            by more than the name of the model. Defaults to None.
        fresh: Paths of variables that the source never updated; their state starts at zero.
            Defaults to none.

    Returns:
        A `MigrationReport`; print it. It lists the matched and unmatched variables, the state
        that has no place in the new optimizer, the changes of behaviour, and the arguments that
        would avoid them.

    Raises:
        ValueError: if the source is damaged, has no slots, or belongs to another model or to
            another optimizer, such as LARS where `optimizer` is LAMB.
        FileNotFoundError: if the path does not exist.
        TypeError: if the source or the optimizer is none of those above, or if the optimizer and
            the model are of different Kerases.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    >>> old, new = tf_lamb.LARS(0.1, momentum=0.9), tf_lamb.LARS(0.1, momentum=0.8)
    >>> old.build(model.trainable_variables)
    >>> print(tf_lamb.migrate(old, new, model))
    LARS continues tf_lamb.keras.LARS after step 0...
    """
    outer = unwrapped(optimizer, MeasureNoise)
    optimizer = unwrapped(outer)
    if not isinstance(optimizer, Layerwise):
        raise TypeError(
            "migrate continues with an optimizer of tf_lamb, not with a "
            f"{type(optimizer).__module__}.{type(optimizer).__name__}."
        )
    frontend, model_frontend = frontends.of(optimizer), frontends.of(model)
    if frontend is not model_frontend:
        raise TypeError(
            f"The optimizer is of {frontend.host.__name__}, and the model of "
            f"{model_frontend.host.__name__}: take the optimizer of "
            f"tf_lamb.{model_frontend.host.__name__}."
        )
    inner, source_wrapper = unwrapped(source), unwrapped(source, MeasureNoise)
    variables = _trained_variables(outer, optimizer, model)
    if isinstance(source, (str, os.PathLike)):
        source_state = frontend.checkpoints().read(source, names_of(variables), weights)
    elif isinstance(inner, Layerwise):
        source_state = _source_of_ours(inner)
    else:
        source_state = _source_of_other_package(inner)
    if not isinstance(source, (str, os.PathLike)):
        source_state = _with_wrapper_averages(source_state, wrappers_of(source))
    measures_alike = _measurement_kind(source_wrapper) == _measurement_kind(outer)
    # If the noise of gradients was measured in another way, or not at all, then the gradient sums
    # of an unfinished update were computed differently, and are left out.
    usable_state = source_state if measures_alike else source_state.without_unfinished_update()
    report, slots, weights_to_set = _prepare_migration(
        usable_state, optimizer, variables, model, weights, dict(rename or {}), tuple(fresh)
    )
    if outer is not optimizer:
        outer.build(variables)
    scalars = dict(usable_state.scalars)
    dropped = named.continue_from(
        optimizer, variables, model.weights, usable_state.step, slots, weights_to_set, scalars
    )
    dropped |= (source_state.scalars.keys() - scalars.keys()) | {*source_state.dropped_state}
    measured_state = (
        {} if source_wrapper is inner else _numpy_values(source_wrapper._named_state().scalars)
    )
    if outer is not optimizer:
        outer.continue_from(
            measured_state
            if measures_alike
            else _schedule_progress(measured_state, usable_state, outer)
        )
    if not measures_alike and any(
        value.any() for name, value in measured_state.items() if name != "gain"
    ):
        dropped.add("measured")
    slowdown = schedule_slowdown(usable_state.all_arguments, optimizer.get_config())
    if slowdown > 1 and not isinstance(outer, AdaScale):
        warn(
            f"{optimizer.name}: the learning rate's schedule is {slowdown} times slower than in "
            f"{source_state.origin}, which read it at micro-batches: divide its steps by "
            f"{slowdown}."
        )
    names_of_dropped = (
        name
        for name in dropped
        if name not in source_state.scalars or source_state.scalars[name].any()
    )
    changes = report.changes | adascale_changes(
        _adascale_config(source_wrapper), _adascale_config(outer)
    )
    return dataclasses.replace(report, left_behind=tuple(sorted(names_of_dropped)), changes=changes)


def _trained_variables(outer, optimizer, model) -> list:
    """Returns the variables of a model that an optimizer trains.

    A part of a `MultiOptimizer` trains only its own variables.

    Args:
        outer: The optimizer, or the `MeasureNoise` or `AdaScale` around it.
        optimizer: The optimizer without such a wrapper.
        model: The model, compiled with an optimizer or not.

    Raises:
        ValueError: if the optimizer is a part of a `MultiOptimizer` that is not built.
    """
    parts = getattr(unwrapped(getattr(model, "optimizer", None)), "optimizers", ())
    if not any(outer is part for part in parts):
        return model.trainable_variables
    if optimizer.plan is None:
        raise ValueError(
            f"{optimizer.name} is a part of {model.optimizer.name}, which gives it its variables: "
            "call model.optimizer.build(model.trainable_variables) first. Nothing was changed."
        )
    part_variable_ids = {id(variable) for variable in optimizer._planner.variables}
    return [variable for variable in model.trainable_variables if id(variable) in part_variable_ids]


def _source_of_other_package(source) -> Source:
    """Reads the state of an optimizer of another package into a `Source`.

    Raises TypeError if the object is not an optimizer that can be migrated.
    """
    with contextlib.suppress(TypeError):
        if source_state := frontends.of(source).migration_source(source):
            return source_state
    raise TypeError(
        "source must be the path of a checkpoint or of an HDF5 file, a keras.optimizers.Lamb or "
        "Muon, a legacy LAMB or LARS of Model Garden, or an optimizer of tf_lamb, not "
        f"{source!r:.80}."
    )


def _with_wrapper_averages(source: Source, wrappers) -> Source:
    """Adds to a source the moving averages that Model Garden's `ExponentialMovingAverage` keeps.

    If none of the wrappers is of that class, or it has no averages yet, the source is returned
    unchanged.

    Args:
        source: The `Source` of the optimizer inside the wrappers.
        wrappers: The wrappers around that optimizer.
    """
    wrapper = next(
        (candidate for candidate in wrappers if getattr(candidate, "_average_weights", None)), None
    )
    if wrapper is None:
        return source
    config = wrapper.get_config()
    values = map(numpy_of, wrapper._average_weights)
    averages = zip(names_of(wrapper._model_weights), values, strict=True)
    source = source.with_averages(dict(averages), config["average_decay"])
    # With `dynamic_decay=True`, the momentum of Model Garden's averages grows with the step. In
    # this package it is constant, so the report lists this argument as a change.
    dynamic = {"dynamic_decay": True} if config["dynamic_decay"] else {}
    return dataclasses.replace(source, unknown_arguments={**source.unknown_arguments, **dynamic})


def _source_of_ours(source) -> Source:
    """Reads the state of an optimizer of this package into a `Source`.

    Raises ValueError if the optimizer is not built, because it then has no state.
    """
    name = f"{type(source).__module__.rpartition('.')[0]}.{type(source).__name__}"
    if source.plan is None:
        raise ValueError(f"{name} has no slots before it is built: train it first.")
    state, has_averages = named.named_state(source), named.has_averages(source)
    scalars = {
        key: value
        for key, value in state.scalars.items()
        if key not in ("iterations", "learning_rate")
    }
    return Source(
        origin=name,
        family=type(source).__name__,
        step=step_of(source),
        slots={part.name: _started_state(part, has_averages) for part in state.parts},
        arguments=source.get_config(),
        scalars=_numpy_values(scalars),
    )


def _numpy_values(variables):
    """Converts a dict, name -> variable, to a dict, name -> NumPy array."""
    return {name: numpy_of(variable) for name, variable in variables.items()}


def _started_state(part, has_averages):
    """Returns name -> array of one variable's state, without arrays that were not used yet.

    The moving average is left out if no update has made averages. An array of zeros that is not a
    slot, such as an empty gradient sum, is left out, too. Gradient sums of single replicas are
    added up.

    Args:
        part: The `named.Part` of the variable, which holds the optimizer's arrays for it.
        has_averages: Whether an update has made averages of the weights.
    """
    values = _numpy_values(part.arrays)
    if not has_averages:
        values.pop("average", None)
    slots = named.slots_of_rule(values) | {"average"}
    started_values = {name: value for name, value in values.items() if name in slots or value.any()}
    # If each replica has its own gradient sum, the first axis of the array is the replicas.
    return {
        name: value.sum(axis=0) if name not in slots and value.ndim > len(part.shape) else value
        for name, value in started_values.items()
    }


def _measurement_kind(optimizer) -> tuple:
    """Returns how an optimizer measures the noise of gradients: (wrapper, is it preconditioned).

    Only a measurement of the same kind can be continued. The result is () for an optimizer that
    measures no noise.
    """
    if not isinstance(optimizer, MeasureNoise):
        return ()
    preconditioned = optimizer.get_config().get("preconditioned")
    return optimizer.saved_kind, preconditioned


def _adascale_config(optimizer) -> dict[str, Any]:
    """Returns the arguments of an AdaScale; an empty dict for any other optimizer."""
    return optimizer.get_config() if isinstance(optimizer, AdaScale) else {}


def _schedule_progress(measured_state, source, outer) -> dict[str, Any]:
    """Returns the state that `outer` takes over if the source measured noise in another way.

    `AdaScale` takes over the number of base batch steps, at which it reads the learning rate's
    schedule; the base batch is the batch that the rate was tuned for. `MeasureNoise` takes over
    nothing.

    Args:
        measured_state: Name -> array, of the state of the source's noise measurement.
        source: The `Source`. Its number of optimizer steps is used if `measured_state` has no
            number of base batch steps.
        outer: The `MeasureNoise` or `AdaScale` that continues the source.

    Returns:
        Name -> value; empty for `MeasureNoise`.
    """
    if not isinstance(outer, AdaScale):
        return {}
    steps = {name: value for name, value in measured_state.items() if name in ("step", "fraction")}
    return steps or {"step": source.step}


def _prepare_migration(source, optimizer, variables, model, weights, rename, fresh):
    """Prepares a migration: checks that the state fits, and changes nothing yet.

    Args:
        source: The `Source`.
        optimizer: The optimizer of this package, without wrappers.
        variables: The variables that it trains.
        model: The model.
        weights, rename, fresh: As in `migrate`.

    Returns:
        The report, the slots to set (path -> slot -> array), and the weights to set (path ->
        array).

    Raises:
        ValueError: if the state does not fit the optimizer or the model.
    """
    family, config = type(optimizer).__name__, optimizer.get_config()
    if source.family != family:
        raise ValueError(
            f"{source.origin} is {source.family}, and the optimizer is {family}: their slots mean "
            f"other things. Migrate it into tf_lamb's {source.family}. Nothing was changed."
        )
    arguments = peers.with_momentum_form(source.origin, source.arguments, config)
    shapes = _shapes_by_path(variables)
    if not shapes:
        raise ValueError("The model has no trainable variables yet: call it on a batch first.")
    _check_paths("fresh", fresh, shapes)
    _check_paths("rename", rename, _shapes_by_path(model.weights) if weights else shapes)
    plan = optimizer.plan_for(variables)
    slot_shapes = _slot_shapes(optimizer, plan, fresh)
    first_slots = {path: dict([next(iter(slots.items()))]) for path, slots in slot_shapes.items()}
    names_in_source = match(source.origin, first_slots, source.slots, rename)
    omitted = source.omitted_arguments
    if family in ("Muon", "SOAP"):
        in_source = {path: source.slots[name] for path, name in names_in_source.items()}
        peers.check_same_slots(family, source.origin, in_source, slot_shapes, shapes)
        # The slots are the same, so both optimizers exclude the same variables, even if they name
        # them by other patterns. The patterns need not be compared.
        arguments.pop("exclude_from_layer_adaptation", None)
        omitted = (*omitted, "exclude_from_layer_adaptation")
    match(source.origin, slot_shapes, source.slots, rename)
    slots: dict[str, dict] = {path: {} for path in shapes}
    slots |= {path: dict(source.slots[name]) for path, name in names_in_source.items()}
    weights_to_set = _weights_to_set(source, model, rename) if weights else {}
    parameters = inspect.signature(type(optimizer)).parameters.values()
    defaults = {parameter.name: parameter.default for parameter in parameters}
    changes = argument_changes(arguments, config, defaults, omitted)
    changes |= muon_changes(source.all_arguments, config)
    changes |= averaging_changes(source.all_arguments, config)
    changes |= {name: (value, None) for name, value in source.unknown_arguments.items()}
    if family == "Muon":
        changes |= rule_changes(_source_slots_of_fresh(source, plan, fresh, rename))
    host = frontends.of(optimizer).host.__name__
    accepted_names = config.keys() - (() if host == "keras" else peers.KERAS_3_ARGUMENTS)
    report = MigrationReport(
        origin=source.origin,
        optimizer=family,
        step=source.step,
        matched=names_in_source,
        fresh=tuple(path for path in shapes if path in fresh),
        left_over=(
            *sorted(set(source.slots) - set(names_in_source.values())),
            *source.own_variables,
        ),
        left_behind=(),
        averages=_averages_text(source, config),
        changes=changes,
        keep={
            name: in_source
            for name, (in_source, _) in changes.items()
            if name in accepted_names and name != "learning_rate" and not is_serialized(in_source)
        },
        unsaid=tuple(name for name in source.omitted_arguments if name in config),
        weights=len(weights_to_set) if weights else None,
        own_variables=source.own_variables,
    )
    return report, slots, weights_to_set


def _source_slots_of_fresh(source, plan, fresh, rename):
    """Finds the slots that the source has for the variables in `fresh`, which start at zero here.

    Args:
        source: The `Source`.
        plan: The plan of the optimizer.
        fresh, rename: As in `migrate`.

    Returns:
        Path of such a variable -> (its slots in the source, whether Muon orthogonalizes
        its update here).
    """
    source_slots = {
        short_name: source.slots[name]
        for name, short_name in peers.without_model(source.slots).items()
    }
    names = {
        path: rename.get(path, short_name)
        for path, short_name in peers.without_model(plan.names).items()
    }
    return {
        path: (source_slots[names[path]], treatment.adapt)
        for path, treatment in zip(plan.names, plan.treatments, strict=True)
        if path in fresh and names[path] in source_slots
    }


def _averages_text(source, config):
    """Returns, for the report, how the moving averages of the weights begin or continue.

    The result is "" if the new optimizer has no such averages, that is without `use_ema`.
    """
    if not config["use_ema"]:
        return ""
    if any("average" in slots for slots in source.slots.values()):
        return "continue"
    waits_for_update = "has_averages" in source.scalars
    return "begin with the first update, as there" if waits_for_update else "begin with the weights"


def _slot_shapes(optimizer, plan, fresh):
    """Returns a nested dict: path of a variable -> name of a slot -> shape of the slot.

    The paths in `fresh` are left out, because the state of these variables starts at zero.
    """
    variables = zip(plan.names, plan.shapes, optimizer.declare_slots(plan), strict=True)
    return {
        path: {slot.name: shape if slot.shape is None else slot.shape for slot in slots}
        for path, shape, slots in variables
        if slots and path not in fresh
    }


def _weights_to_set(source, model, rename):
    """Returns path -> array with a value for each weight of the model, from the `Source`.

    `rename` is a dict from paths of the model to names in the source. Raises ValueError if the
    source holds no weights.
    """
    if source.weights is None:
        raise ValueError(
            f"{source.origin} holds no weights, so weights=True does not go with it. Copy them "
            "with model.set_weights(...), or leave the argument out. Nothing was changed."
        )
    source_weights = {name: {"weight": value} for name, value in source.weights.items()}
    expected = {path: {"weight": shape} for path, shape in _shapes_by_path(model.weights).items()}
    names = match(source.origin, expected, source_weights, rename)
    return {path: source.weights[name] for path, name in names.items()}


def _shapes_by_path(variables) -> dict[str, tuple]:
    """Returns path -> shape of the variables."""
    return {
        path: tuple(variable.shape)
        for path, variable in zip(names_of(variables), variables, strict=True)
    }


def _check_paths(argument: str, paths: Iterable[str], by_path: Mapping[str, Any]):
    """Raises ValueError if an argument names a path that is not among the keys of `by_path`."""
    for path in paths:
        if path not in by_path:
            raise ValueError(
                f"{argument} names {path!r}, which is no variable of the model; it has "
                f"{', '.join(map(repr, list(by_path)[:3]))} and so on."
            )
