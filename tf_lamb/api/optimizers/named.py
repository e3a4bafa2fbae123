"""Saves and loads the state of an optimizer by name, not by position.

A file that Keras writes holds an array for each of these keys:

    iterations, learning_rate, ...      a scalar of the optimizer
    3:dense|kernel:m                    the slot (moment) m of the fourth variable, dense/kernel
    kind:lamb                           the update rule that wrote the state is in the key; the
                                        array is not used
    layout                              the text of `layout.Layout`: each variable's place in the
                                        model

Because each array is found by its key, an optimizer with other options, or on another backend,
can load the arrays that it has variables for. In a TensorFlow checkpoint the key of the slot above
is `m:3`, and the text of the layout is stored as the name of a node that holds no values.
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from tf_lamb.api.optimizers import layout as layouts
from tf_lamb.api.optimizers.frontend import (
    LayerwiseMembers,
    MeasuringMembers,
    SavedOptimizer,
    Variable,
)
from tf_lamb.api.variables import as_int, is_ours, names_of, step_of, unwrapped
from tf_lamb.core.messages import warn

_LAYOUT_KEY = "layout"
_NON_SLOT_PREFIXES = ("average", "master", "accumulator")  # prefixes of arrays that are no slots


class Part(NamedTuple):
    """Holds the optimizer's arrays for one variable.

    Attributes:
        name: The path of the variable, with a number added if several variables have that path.
        shape: The shape of the variable.
        arrays: The optimizer's arrays for the variable, by name: its slots (such as m and v), the
            moving average of the weight, the float32 master copy, the gradient accumulator.
        initial: Name of an array -> name of its initializer. Arrays without one begin as zeros.
    """

    name: str
    shape: tuple[int, ...]
    arrays: Mapping[str, Variable]
    initial: Mapping[str, str] = {}


class NamedState(NamedTuple):
    """Holds the variables that make up the state of an optimizer.

    Attributes:
        kind: The name of the update rule, such as "lamb", or of a wrapper such as AdaScale. Only
            state of the same kind is loaded.
        scalars: The variables that the optimizer has only once, such as `iterations`, by name.
        parts: The `Part` of each variable that the optimizer was built for, in the same order.
        layout: The places of the trained variables in their model. Defaults to an empty layout.
    """

    kind: str
    scalars: Mapping[str, Variable]
    parts: Sequence[Part]
    layout: layouts.Layout = layouts.Layout((), {})

    def variables(self) -> dict[str, Variable]:
        """Returns the variables by their names in checkpoints: `iterations`, `m:3`."""
        by_name = {
            f"{slot}:{position}": variable
            for position, part in enumerate(self.parts)
            for slot, variable in part.arrays.items()
        }
        return {**self.scalars, **by_name}

    def by_key(self) -> dict[str, Variable]:
        """Returns the variables by their keys in files: `iterations`, `3:dense|kernel:m`."""
        return dict(self.scalars) | {
            f"{position}:{_escape_path(part.name)}:{slot}": variable
            for position, part in enumerate(self.parts)
            for slot, variable in part.arrays.items()
        }


def name_with_micro_steps(name: str, steps: int | str) -> str:
    """Returns the name under which an array of an unfinished update is saved: `accumulator_of_4`.

    The name contains the number of micro-batches per update. So the array is not loaded into an
    optimizer that takes another number of them, where its sum would be wrong.

    Args:
        name: The name of the array, such as "accumulator".
        steps: The number of micro-batches per update; "growing" if it changes during training.
    """
    return f"{name}_of_{steps}"


def has_averages(optimizer) -> bool:
    """Returns whether an optimizer has made an update with moving averages of weights (`use_ema`).

    It reads a variable, and so waits for the device.
    """
    storage = getattr(optimizer, "_storage", None)
    return storage is not None and bool(
        storage.has_averages is not None and as_int(storage.has_averages)
    )


def named_state(optimizer: LayerwiseMembers) -> NamedState:
    """Returns the variables that are saved and loaded for an optimizer such as LAMB, by name."""
    kind, storage = optimizer.rule.name, optimizer._storage
    scalars = {"iterations": optimizer.iterations}
    # AdaScale replaces the learning rate by a schedule, whose `base` is the optimizer's own rate.
    rate = getattr(optimizer._learning_rate, "base", optimizer._learning_rate)
    if hasattr(rate, "assign"):
        scalars["learning_rate"] = rate
    if storage is None:
        return NamedState(kind, scalars, ())
    guard = optimizer._guard
    if guard.skip_counters:
        scalars["skipped_steps"] = guard.skip_counter
    if guard.window:
        scalars["spiked_steps"] = guard.spike_counter
        # The name contains the length of the window, so that saved norms are not loaded into a
        # window of another length.
        scalars[f"gradient_norms_of_{guard.window}"] = guard.norms
    parts = storage.parts()
    names, shapes = [part.name for part in parts], [part.shape for part in parts]
    layout = layouts.layout_of(optimizer, storage.weights, names, shapes)
    return NamedState(kind, {**scalars, **storage.scalars()}, parts, layout)


def measured_state(optimizer: MeasuringMembers) -> NamedState:
    """Returns the variables that are saved and loaded for MeasureNoise or AdaScale, by name.

    The optimizer inside saves and loads its own variables, which are not among them.
    """
    kind = optimizer.saved_kind
    scalars = dict(optimizer._meter.state)
    if not scalars:
        return NamedState(kind, {}, ())
    # These two count and sum the micro-batches of an unfinished update.
    for name in ("micro_step", "squares"):
        scalars[name_with_micro_steps(name, optimizer.micro_batches)] = scalars.pop(name)
    parts = [Part(name, (), {}) for name in optimizer._measured_names]
    return NamedState(kind, scalars, parts)


def continue_from(
    optimizer: LayerwiseMembers, variables: Sequence, model_variables: Sequence, step: int,
    states: dict, weights: dict, scalars: dict,
) -> set[str]:  # fmt: skip
    """Sets the state of an optimizer of this package, so that it continues after `step` steps.

    Slots and scalars that are missing in the arguments get their initial values.

    Args:
        optimizer: The optimizer, which is built here for `variables`.
        variables: The variables that it trains.
        model_variables: All variables of the model.
        step: The number of optimizer steps taken so far.
        states: For each trained variable, by path, a dict of its arrays by name: slots, average,
            master, accumulator.
        weights: The weights of the model's variables, by path.
        scalars: The values of the state's scalars, such as `has_averages`, by their keys in a file.

    Returns:
        The names of the given scalars and arrays for which the optimizer has no variable.
    """
    host = optimizer._host
    optimizer.build(variables)
    for name, variable in zip(names_of(model_variables), model_variables, strict=True):
        if name in weights:
            host.put(variable, weights[name])
    state = named_state(optimizer)
    dropped = set(scalars) - set(state.scalars)
    for path, variable in zip(names_of(variables), variables, strict=True):
        part = state.parts[optimizer._index_of(variable)]
        dropped |= set(states[path]) - set(part.arrays)
        values = {"average": variable, **states[path]}
        for name, target in part.arrays.items():
            value = values.get(name)
            if value is not None and tuple(value.shape) != tuple(target.shape):
                value = host.fit_to_shape(target, part, value)
            if value is None:
                value = host.initial_value(target, part.initial.get(name, "zeros"))
            host.put(target, value)
    # The loop above has set each average that is missing in `states` to its weight. `has_averages`
    # is 1 by default, so that the next update averages from there. If `scalars` has 0 for it, the
    # next update sets every average to the new weight.
    saved_scalars = {"has_averages": 1, **scalars, "iterations": step}
    for name, target in state.scalars.items():
        if name != "learning_rate":
            host.put(
                target,
                saved_scalars[name]
                if name in saved_scalars
                else host.initial_value(target, "zeros"),
            )
    record_load(optimizer)
    return dropped


def record_load(optimizer: Any) -> None:
    """Records, after a load, the loaded number of steps as the start of the next `fit`.

    At its end, `fit` warns if it took no step. The loaded steps must not count as steps of `fit`.
    """
    if is_ours(optimizer):  # `MeasureNoise` has no `_guard`; the optimizer that it wraps has one
        optimizer._guard.record_start(step_of(optimizer))


def variables_of_saved(
    name: str, state: NamedState, saved_layout: layouts.Layout
) -> dict[str, Variable]:
    """Returns the variables of an optimizer by the names that they have in a checkpoint.

    Args:
        name: The name of the optimizer, for the error.
        state: The state of the optimizer.
        saved_layout: The layout of the optimizer that wrote the checkpoint.

    Returns:
        Dict from a name, such as `m:3`, to a variable. The number is the position that the variable
        had in the optimizer that wrote the checkpoint.

    Raises:
        ValueError: if a variable cannot be matched to one in the checkpoint.
    """
    positions = _positions(name, saved_layout, state.layout)
    return dict(state.scalars) | {
        f"{slot}:{position}": variable
        for position, part in zip(positions, state.parts, strict=True)
        for slot, variable in part.arrays.items()
    }


def method_by_inner_class(kind: type | tuple, inside: Callable, default: Callable) -> Callable:
    """Makes a method for optimizer wrappers that calls one of two functions.

    Args:
        kind: A class of optimizers, or a tuple of classes.
        inside: The function to call if the wrapper has an instance of `kind` inside, also if that
            is inside another wrapper.
        default: The function to call for any other wrapper.

    Returns:
        The method. It passes its arguments on, the wrapper first.
    """

    def method(wrapper, *arguments, **keywords):
        implementation = inside if isinstance(unwrapped(wrapper, kind), kind) else default
        return implementation(wrapper, *arguments, **keywords)

    return method


def check_weight_count(name: str, weights: Sequence, *variables: Sequence) -> None:
    """Checks that `set_weights` got as many weights as an optimizer has variables.

    Args:
        name: The name of the optimizer.
        weights: The list of weights, which are set by position.
        *variables: One or several lists of variables. `weights` has to be as long as one of them.

    Raises:
        ValueError: if no list of variables is as long as `weights`.
    """
    if len(weights) not in map(len, variables):
        raise ValueError(
            f"{name} has {len(variables[0])} variables and was given {len(weights)} weights, which "
            "are of other options. Save the model or its weights in a file, which knows them by "
            "name."
        )


def save(
    state: NamedState, store: MutableMapping[str, Any], array: Callable[[Variable], Any]
) -> None:
    """Writes an optimizer's state into the store that Keras gives to `save_own_variables`.

    Args:
        state: The state.
        store: A mapping that receives an array by key.
        array: A function that returns the value of a variable as an array.
    """
    for key, variable in state.by_key().items():
        store[key] = array(variable)
    store[f"kind:{state.kind}"] = 1
    if state.layout.trained:
        store[_LAYOUT_KEY] = state.layout.to_array()


def load(
    optimizer: SavedOptimizer,
    store: Mapping[str, Any],
    array: Callable[[Any], Any],
    assign: Callable[[Variable, Any], Any],
) -> None:
    """Sets the state of an optimizer from a store that Keras has loaded.

    All arrays are read and matched to variables before the first variable is set, so that an error
    changes nothing. A warning says if nothing is loaded because the store or the optimizer has no
    state, or if a saved sum of gradients of micro-batches is dropped.

    Args:
        optimizer: An optimizer, `MeasureNoise` or `AdaScale`.
        store: The mapping from keys to saved arrays.
        array: A function that returns an entry of the store as an array.
        assign: A function that assigns a value to a variable.

    Raises:
        ValueError: if the state was saved by another rule, or for other layers, slots or shapes.
    """
    state, saved = optimizer._named_state(), _read_store(store, array)
    if reason := _nothing_loads_reason(state, saved):
        warn(
            f"Skipping variable loading for optimizer {optimizer.name!r}: {reason}. It begins at "
            "step 0."
        )
    else:
        pairs = _values_to_set(optimizer, state, saved)
        for variable, value in pairs:
            assign(variable, value)
    record_load(optimizer)


class _SavedState(NamedTuple):
    """Holds the keys under which a file has the state of an optimizer.

    The arrays themselves are read when they are needed.

    Attributes:
        store: The mapping from keys to entries.
        keys: The keys, in the order of the file.
        kinds: The names of the rules or wrappers that wrote the file; none if another package did.
        slots: For each position in the file, in ascending order, the path of the variable, and the
            keys of its arrays by name. Empty if the optimizer that wrote the file was not built.
        array: A function that returns an entry as an array.
    """

    store: Mapping[str, Any]
    keys: Sequence[str]
    kinds: Sequence[str]
    slots: Mapping[int, tuple[str, dict[str, str]]]
    array: Callable[[Any], Any]

    def value(self, key: str) -> Any:
        """Returns the array that the file has under a key."""
        return self.array(self.store[key])

    def layout(self) -> layouts.Layout | None:
        """Returns the `Layout` in the file, which says where each variable was in its model.

        The result is None if an older version of this package wrote the file.
        """
        return layouts.from_array(self.value(_LAYOUT_KEY)) if _LAYOUT_KEY in self.keys else None


def _read_store(store: Mapping[str, Any], array: Callable[[Any], Any]) -> _SavedState:
    """Returns the contents of a store as a `_SavedState`.

    Args:
        store: The mapping from keys to entries.
        array: A function that returns an entry as an array.
    """
    keys = list(store.keys())
    slots: dict[int, tuple[str, dict]] = {}
    for key in keys:
        position, _, path_and_slot = key.partition(":")
        if position.isdecimal():
            path, _, slot = path_and_slot.rpartition(":")
            slots.setdefault(int(position), (path, {}))[1][slot] = key
    kinds = [key.partition(":")[2] for key in keys if key.startswith("kind:")]
    return _SavedState(store, keys, kinds, dict(sorted(slots.items())), array)


def _nothing_loads_reason(state: NamedState, saved: _SavedState) -> str | None:
    """Returns why loading a file would change no variable of the optimizer, for a warning.

    The result is None if it would change at least one.
    """
    if not saved.keys:
        return "this file holds none"
    if not state.parts and (saved.slots or not state.scalars):
        return "it has no slots yet: build(model.trainable_variables) makes them"
    return None


def _values_to_set(
    optimizer: SavedOptimizer, state: NamedState, saved: _SavedState
) -> list[tuple[Variable, Any]]:
    """Returns pairs (variable of the optimizer, value to set).

    The value of a variable that is not in the file is its initial value. A learning rate that is
    not in the file is left out, so that it stays as it is.

    Args:
        optimizer: An optimizer, `MeasureNoise` or `AdaScale`.
        state: Its state.
        saved: The contents of the file.

    Raises:
        ValueError: if the saved state does not fit the optimizer.
    """
    name, host = optimizer.name, optimizer._host
    if saved.kinds != [state.kind]:
        writer = "another optimizer, or an older version, did"
        if saved.kinds:
            writer = f"{saved.kinds[0]} wrote it"
        raise _load_error(name, f"{state.kind} did not write this state, {writer}")
    keys_of_parts = _keys_of_parts(name, state, saved)
    pairs = []
    for scalar, target in state.scalars.items():
        if scalar in saved.keys:
            value = saved.value(scalar)
            if (shape := tuple(value.shape)) != tuple(target.shape):
                raise _load_error(
                    name, f"{scalar!r} has shape {shape} in it, and {tuple(target.shape)} here"
                )
            pairs.append((target, value))
        elif scalar != "learning_rate":
            pairs.append((target, host.initial_value(target, "zeros")))
    for part, keys in zip(state.parts, keys_of_parts, strict=True):
        for slot, target in part.arrays.items():
            if slot not in keys:
                pairs.append((target, host.initial_value(target, part.initial.get(slot, "zeros"))))
                continue
            value = saved.value(keys[slot])
            if (shape := tuple(value.shape)) != tuple(target.shape):
                value = host.fit_to_shape(target, part, value)
            if value is None:
                reason = f"{slot!r} of {part.name!r} has shape {shape} in it, and"
                raise _load_error(name, f"{reason} {tuple(target.shape)} here")
            pairs.append((target, value))
    for key in saved.keys:
        if "micro_step" in key and key not in state.scalars and int(saved.value(key)):
            warn(
                f"{name} was saved within an update, and takes another number of micro-batches "
                f"now: the {int(saved.value(key))} that were added up are dropped."
            )
    return pairs


def _keys_of_parts(name: str, state: NamedState, saved: _SavedState) -> Sequence[Mapping[str, str]]:
    """Returns, for each variable of the state, the keys of its arrays in the file, by slot.

    Args:
        name: The name of the optimizer, for the error.
        state: Its state.
        saved: The contents of the file.

    Raises:
        ValueError: if the file has other variables, or other slots of a variable.
    """
    if not saved.slots:
        return [{}] * len(state.parts)
    if (layout := saved.layout()) is not None:
        positions = _positions(name, layout, state.layout)
    else:
        positions = _positions_by_path(name, state, saved.slots, saved.store)
    # A variable that its layer overwrites, such as the scale of a float8 layer, has no slots. The
    # only array that a file may have for it is a gradient accumulator. Without accumulation the
    # file does not have its position.
    matched = [saved.slots.get(position, ("", {}))[1] for position in positions]
    for part, keys in zip(state.parts, matched, strict=True):
        if (saved_slots := slots_of_rule(keys)) != (own_slots := slots_of_rule(part.arrays)):
            saved_text, own_text = (
                ", ".join(sorted(slots)) or "nothing" for slots in (saved_slots, own_slots)
            )
            raise _load_error(
                name, f"it has {saved_text} of {part.name!r}, and {own_text} is kept here"
            )
    return matched


def _positions(name, saved_layout, own_layout):
    """Returns, for each variable of `own_layout`, its position in `saved_layout`.

    Raises ValueError, with `name` in the message, if a variable cannot be matched.
    """
    try:
        return layouts.match(saved_layout, own_layout)
    except layouts.Mismatch as error:
        raise _load_error(name, str(error)) from None


def _positions_by_path(name, state, saved_slots, store):
    """Returns, for each variable of the state, its position in an older file without a layout.

    `saved_slots` maps a position in the file to the path of a variable and the keys of its slots.
    """
    with_slots = {
        position: (path, keys)
        for position, (path, keys) in saved_slots.items()
        if slots_of_rule(keys)
    }
    shapes = [
        {slot: tuple(store[keys[slot]].shape) for slot in slots_of_rule(keys)}
        for _, keys in with_slots.values()
    ]
    own_shapes = [
        {slot: tuple(part.arrays[slot].shape) for slot in slots_of_rule(part.arrays)}
        for part in state.parts
    ]
    paths = [path.replace("|", "/") for path, _ in with_slots.values()]
    own_positions = [position for position, slots in enumerate(own_shapes) if slots]
    matched = _positions(
        name,
        layouts.layout_without_places(paths, shapes),
        layouts.layout_without_places(
            [state.parts[position].name for position in own_positions],
            [own_shapes[position] for position in own_positions],
        ),
    )
    without_slots = {
        path: position
        for position, (path, keys) in saved_slots.items()
        if position not in with_slots
    }
    positions = [without_slots.get(_escape_path(part.name), -1) for part in state.parts]
    for position, match in zip(own_positions, matched, strict=True):
        positions[position] = list(with_slots)[match]
    return positions


def slots_of_rule(names) -> set[str]:
    """Returns the names of arrays without those of averages, masters and accumulators.

    What remains are the slots of the update rule, such as m and v.
    """
    return {slot for slot in names if not slot.startswith(_NON_SLOT_PREFIXES)}


def _escape_path(path):
    """Replaces each `/` in the path of a variable by `|`, as in the keys of saved files."""
    return path.replace("/", "|")


def _load_error(name, reason):
    """Returns a ValueError, with the reason, for a saved state that does not fit an optimizer."""
    return ValueError(
        f"{name} cannot go on from this state: {reason}. Load it into an optimizer like the one "
        "that was saved, or take weights alone: load them before the optimizer is built. Nothing "
        "of it was changed."
    )
