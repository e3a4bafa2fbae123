"""The state of an optimizer by name: each array is known by what it is, not by its position.

A file that a host writes holds an array for each of

    iterations, learning_rate, ...      what there is once
    3:dense|kernel:m                    the slot m of the fourth variable, dense/kernel
    kind:lamb                           whose rule it is; nothing else is in it
    layout                              the text of `layout.Layout`: where in the model each is

so that an optimizer of other options, or on another backend, takes what it has a place for. In a
TensorFlow checkpoint the slot is `m:3`, and the layout stands in the name of a node without values.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tf_lamb.api.optimizers import layout as layouts
from tf_lamb.api.variables import as_int, is_ours, names_of, step_of, unwrapped
from tf_lamb.core.messages import warn

_LAYOUT = "layout"
_NO_SLOTS = ("average", "master", "accumulator")  # no slots of a rule


class Part(NamedTuple):
    """The state of one variable."""

    name: str
    shape: tuple[int, ...]
    kept: Mapping[str, Any]  # its arrays by name
    initial: Mapping[str, str] = {}  # initializers of those that do not begin at zero, by name


class State(NamedTuple):
    """The variables of an optimizer."""

    kind: str  # the rule, or the wrapper; the state of another means something else
    scalars: Mapping[str, Any]  # what there is once, by name
    parts: Sequence[Part]  # of each variable of the build, in its order
    layout: layouts.Layout = layouts.Layout((), {})  # of the parts

    def variables(self) -> dict[str, Any]:
        """By position of what it accompanies and own name, as in checkpoints."""
        kept = {f"{slot}:{i}": v for i, p in enumerate(self.parts) for slot, v in p.kept.items()}
        return {**self.scalars, **kept}

    def by_key(self) -> dict[str, Any]:
        """By the key of a file."""
        return dict(self.scalars) | {
            f"{i}:{_escaped(part.name)}:{slot}": variable
            for i, part in enumerate(self.parts)
            for slot, variable in part.kept.items()
        }


def of_micro_steps(name: str, steps: int | str) -> str:
    """The name of what belongs to a part of an update: of other parts it is something else."""
    return f"{name}_of_{steps}"


def has_averages(optimizer) -> bool:
    """Whether an update has made averages of the weights; waits for the device."""
    storage = getattr(optimizer, "_storage", None)
    return storage is not None and bool(
        storage.has_averages is not None and as_int(storage.has_averages)
    )


def of(optimizer) -> State:
    """The state of an optimizer of this package, in either Keras."""
    kind, storage = optimizer.rule.name, optimizer._storage
    scalars = {"iterations": optimizer.iterations}
    rate = getattr(optimizer._learning_rate, "base", optimizer._learning_rate)  # AdaScale's
    if hasattr(rate, "assign"):
        scalars["learning_rate"] = rate
    if storage is None:
        return State(kind, scalars, ())
    guard = optimizer._guard
    if guard.counters:
        scalars["skipped_steps"] = guard.counter
    if guard.window:
        scalars["spiked_steps"] = guard.spiked
        scalars[f"gradient_norms_of_{guard.window}"] = guard.norms  # of another length it is none
    parts = storage.parts()
    paths, shapes = [part.name for part in parts], [part.shape for part in parts]
    layout = layouts.of(optimizer, storage.weights, paths, shapes)
    return State(kind, {**scalars, **storage.once()}, parts, layout)


def of_measured(optimizer) -> State:
    """The state of MeasureNoise or AdaScale alone; the inner optimizer has its own."""
    kind = optimizer.saved_kind
    if optimizer._state is None:
        return State(kind, {}, ())
    scalars = dict(optimizer._state)
    for name in ("micro_step", "squares"):  # of a part of an update
        scalars[of_micro_steps(name, optimizer.micro_batches)] = scalars.pop(name)
    parts = [Part(name, (), {}) for name in optimizer._measured_names]
    return State(kind, scalars, parts)


def continue_from(
    optimizer, trained: Sequence, every: Sequence, step: int, states: dict, weights: dict,
    scalars: dict,
) -> set[str]:  # fmt: skip
    """Has an optimizer of ours go on after these steps; what nobody gives begins anew.

    States of the trained variables are by path and by name of a slot, or of what accompanies one;
    of every variable of the model weights by path; scalars by name, as in a file. Returns the names
    of what there is no place for.
    """
    host = optimizer._host
    optimizer.build(trained)
    for name, variable in zip(names_of(every), every, strict=True):
        if name in weights:
            host.put(variable, weights[name])
    state = of(optimizer)
    left = set(scalars) - set(state.scalars)
    for path, variable in zip(names_of(trained), trained, strict=True):
        part = state.parts[optimizer._index_of(variable)]
        left |= set(states[path]) - set(part.kept)
        values = {"average": variable, **states[path]}
        for name, own in part.kept.items():
            value = values.get(name)
            if value is not None and tuple(value.shape) != tuple(own.shape):
                value = host.fit(own, part, value)
            if value is None:
                value = host.initial(own, part.initial.get(name, "zeros"))
            host.put(own, value)
    # What comes without averages, unless they wait for the first update, begins with weights.
    once = {"has_averages": 1, **scalars, "iterations": step}
    for name, own in state.scalars.items():
        if name != "learning_rate":
            host.put(own, once[name] if name in once else host.initial(own, "zeros"))
    note_load(optimizer)
    return left


def note_load(optimizer: Any) -> None:
    """Has an optimizer of this package know that its steps so far were loaded."""
    if is_ours(optimizer):  # MeasureNoise has none of its own
        optimizer._guard.note_start(step_of(optimizer))


def variables_of_saved(name: str, state: State, there: layouts.Layout) -> dict[str, Any]:
    """By its name in a checkpoint of that layout, each variable here (see `State.variables`).

    Raises:
        ValueError: If the checkpoint is of other layers.
    """
    positions = _positions(name, there, state.layout)
    return dict(state.scalars) | {
        f"{slot}:{i}": variable
        for i, part in zip(positions, state.parts, strict=True)
        for slot, variable in part.kept.items()
    }


def where_inside(kind: type | tuple, own: Callable, others: Callable) -> Callable:
    """A method of a wrapper: `own` where an optimizer inside is of that kind, else `others`."""

    def method(wrapper, *arguments, **named):
        chosen = own if isinstance(unwrapped(wrapper, kind), kind) else others
        return chosen(wrapper, *arguments, **named)

    return method


def check_count(name: str, weights: Sequence, *variables: Sequence) -> None:
    """Raises where a list of weights is that of another optimizer: it is set by position."""
    if len(weights) not in map(len, variables):
        raise ValueError(
            f"{name} has {len(variables[0])} variables and was given {len(weights)} weights, which "
            "are of other options. Save the model or its weights in a file, which knows them by "
            "name."
        )


def save(state: State, store: Any, array: Callable[[Any], Any]) -> None:
    """Writes the state into what a host saves; `array` reads a variable."""
    for key, variable in state.by_key().items():
        store[key] = array(variable)
    store[f"kind:{state.kind}"] = 1
    if state.layout.trained:
        store[_LAYOUT] = state.layout.to_array()


def load(
    name: str,
    state: State,
    store: Any,
    array: Callable[[Any], Any],
    fit: Callable,
    initial: Callable[[Any, str], Any],
) -> list[tuple[Any, Any]]:
    """Pairs of a variable and its value in what a host has loaded; nothing is assigned."""
    keys = list(store.keys())
    kinds = [key.partition(":")[2] for key in keys if key.startswith("kind:")]
    has_slots = any(key.partition(":")[0].isdecimal() for key in keys)
    if not keys or (not state.parts and (has_slots or not state.scalars)):
        unbuilt = "it has no slots yet: build(model.trainable_variables) makes them"
        why = unbuilt if keys else "this file holds none"
        warn(f"Skipping variable loading for optimizer {name!r}: {why}. It begins at step 0.")
        return []
    if kinds != [state.kind]:
        wrote = f"{kinds[0]} wrote it" if kinds else "another optimizer, or an older version, did"
        raise _refusal(name, f"{state.kind} did not write this state, {wrote}")
    there: dict[int, tuple[str, dict]] = {}
    for key in keys:
        position, _, rest = key.partition(":")
        if position.isdecimal():
            path, _, slot = rest.rpartition(":")
            there.setdefault(int(position), (path, {}))[1][slot] = key
    layout = None
    if _LAYOUT in keys:
        layout = layouts.from_array(array(store[_LAYOUT]))
    found = _matched(name, state, dict(sorted(there.items())), store, layout)
    pairs = [
        (own, array(store[scalar]) if scalar in keys else initial(own, "zeros"))
        for scalar, own in state.scalars.items()
        if scalar in keys or scalar != "learning_rate"
    ]
    for part, saved in zip(state.parts, found, strict=True):
        for slot, own in part.kept.items():
            if slot not in saved:
                pairs.append((own, initial(own, part.initial.get(slot, "zeros"))))
                continue
            value = array(store[saved[slot]])
            if (shape := tuple(value.shape)) != tuple(own.shape):
                value = fit(own, part, value)
            if value is None:
                why = f"{slot!r} of {part.name!r} has shape {shape} in it, and"
                raise _refusal(name, f"{why} {tuple(own.shape)} here")
            pairs.append((own, value))
    for key in keys:
        if "micro_step" in key and key not in state.scalars and int(array(store[key])):
            warn(
                f"{name} was saved within an update, and takes another number of micro-batches "
                f"now: the {int(array(store[key]))} that were added up are dropped."
            )
    return pairs


def _matched(name, state, there, store, layout):
    """Slot -> key, of each variable here; `there` has path and keys by position in the file."""
    if not there:  # nothing was built
        return [{}] * len(state.parts)
    if layout is not None:
        positions = _positions(name, layout, state.layout)
    else:
        positions = _positions_by_path(name, state, there, store)
    # What a layer overwrites has no slots, and outside of an accumulation nothing in a file.
    found = [there.get(position, ("", {}))[1] for position in positions]
    for part, kept in zip(state.parts, found, strict=True):
        if (saved := slots_of_rule(kept)) != (wanted := slots_of_rule(part.kept)):
            has, keeps = (", ".join(sorted(slots)) or "nothing" for slots in (saved, wanted))
            raise _refusal(name, f"it has {has} of {part.name!r}, and {keeps} is kept here")
    return found


def _positions(name, there, here):
    """By variable of a layout here its position in a saved one; raises where one has no state."""
    try:
        return layouts.match(there, here)
    except layouts.Mismatch as error:
        raise _refusal(name, str(error)) from None


def _positions_by_path(name, state, there, store):
    """By variable here its position in a file of before, which has paths and no layout."""
    saved = {i: (path, keys) for i, (path, keys) in there.items() if slots_of_rule(keys)}
    shapes = [
        {slot: tuple(store[keys[slot]].shape) for slot in slots_of_rule(keys)}
        for _, keys in saved.values()
    ]
    own = [
        {slot: tuple(part.kept[slot].shape) for slot in slots_of_rule(part.kept)}
        for part in state.parts
    ]
    paths = [path.replace("|", "/") for path, _ in saved.values()]
    stepping = [i for i, slots in enumerate(own) if slots]
    found = _positions(
        name,
        layouts.unplaced(paths, shapes),
        layouts.unplaced([state.parts[i].name for i in stepping], [own[i] for i in stepping]),
    )
    others = {path: i for i, (path, keys) in there.items() if i not in saved}
    positions = [others.get(_escaped(part.name), -1) for part in state.parts]
    for i, at in zip(stepping, found, strict=True):
        positions[i] = list(saved)[at]
    return positions


def slots_of_rule(kept) -> set[str]:
    """Of the names of what is kept of a variable, those of slots."""
    return {slot for slot in kept if not slot.startswith(_NO_SLOTS)}


def _escaped(path):
    return path.replace("/", "|")


def _refusal(name, why):
    return ValueError(
        f"{name} cannot go on from this state: {why}. Load it into an optimizer like the one that "
        "was saved, or take weights alone: load them before the optimizer is built. Nothing of it "
        "was changed."
    )
