"""The framework-independent half of migration: state and configs of other optimizers."""

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import Any

from tf_lamb.api import frontends
from tf_lamb.api.migration import peers
from tf_lamb.api.migration.source import MigrationReport, Source, prepare
from tf_lamb.api.noise.adascale import AdaScale
from tf_lamb.api.noise.measured import MeasureNoise
from tf_lamb.api.optimizers import named
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.api.variables import names_of, step_of, unwrapped


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
            built for the model's trainable variables. It keeps its own arguments.
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
    inner = unwrapped(source)
    if isinstance(source, (str, os.PathLike)):
        paths = names_of(model.trainable_variables)
        found = frontend.checkpoints().read(source, paths, weights)
    elif isinstance(inner, Layerwise):
        found = _of_ours(source, inner)
    else:
        found = _of_another(inner)
    around = _arguments_around(measuring)
    kept = found.within(around)
    report, states, values = prepare(
        kept, optimizer, model, weights=weights, rename=rename, fresh=fresh, around=around
    )
    if around:
        measuring.build(model.trainable_variables)
    scalars = dict(kept.scalars)
    left = named.continue_from(optimizer, model, kept.step, states, values, scalars)
    if around:
        measuring.continue_from(dict(kept.measured))
    # AdaScale reads the schedule at steps of the base batch: as often as its gain says.
    is_read_by_gain = isinstance(measuring, AdaScale)
    times = 1 if is_read_by_gain else peers.times_slower(kept.beyond, optimizer.get_config())
    optimizer._tell_of_slower_schedule(times)
    return dataclasses.replace(report, left_behind=found.left_behind(left, around))


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


def _of_ours(source, inner) -> Source:
    """The source that an optimizer of this package is, of either Keras, with what is around it."""
    name = f"{type(inner).__module__.rpartition('.')[0]}.{type(inner).__name__}"
    if inner.plan is None:
        raise ValueError(f"{name} has no slots before it is built: train it first.")
    state, measuring = named.of(inner), unwrapped(source, MeasureNoise)
    has_averages = named.has_averages(inner)
    is_measured = measuring is not inner and measuring._state is not None
    return Source(
        origin=name,
        family=type(inner).__name__,
        step=step_of(inner),
        slots={part.name: _begun(part, has_averages) for part in state.parts},
        arguments=inner.get_config(),
        scalars=_values({k: v for k, v in state.scalars.items() if k not in _NOT_CONTINUED}),
        measured=_values(measuring._named_state().scalars) if is_measured else {},
        around=_arguments_around(measuring),
    )


_NOT_CONTINUED = ("iterations", "learning_rate")  # the step by itself; an argument


def _values(variables):
    return {name: variable.numpy() for name, variable in variables.items()}


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


def _arguments_around(optimizer) -> dict[str, Any]:
    """What decides the meaning of what a MeasureNoise or an AdaScale measures; empty for others."""
    if not isinstance(optimizer, MeasureNoise):
        return {}
    around = {"kind": optimizer.saved_kind, "groups": list(optimizer.group_names)}
    if isinstance(optimizer, AdaScale):
        config = optimizer.get_config()
        around |= {name: config[name] for name in ("scale", "averaging", "preconditioned")}
    return around
