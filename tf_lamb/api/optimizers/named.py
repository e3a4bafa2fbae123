"""The state of an optimizer by name: each array is known by what it is, not by its position.

A file that a host writes holds an array for each of

    iterations, learning_rate, ...      what there is once
    3:dense|kernel:m                    the slot m of the fourth variable, dense/kernel
    kind:lamb                           whose rule it is; nothing else is in it

so that an optimizer of other options, or on another backend, takes what it has a place for.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tf_lamb.api.variables import as_int, is_ours, names_of, step_of, unwrapped
from tf_lamb.core.messages import warn

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

    def variables(self) -> dict[str, Any]:
        """By position of what it accompanies and own name: layers may get other names."""
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
    kind, storage = optimizer.rule.__name__, optimizer._storage
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
    return State(kind, {**scalars, **storage.once()}, storage.parts())


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
    optimizer, model: Any, step: int, states: dict, weights: dict, scalars: dict
) -> set[str]:
    """Has an optimizer of ours go on after these steps; what nobody gives begins anew.

    States are by path and by name of a slot, or of what accompanies one; weights by path; scalars
    by name, as in a file. Returns the names of what there is no place for.
    """
    trained, host = model.trainable_variables, optimizer._host
    optimizer.build(trained)
    for name, variable in zip(names_of(model.weights), model.weights, strict=True):
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


def children(state: State, others: Mapping[str, Any]) -> dict[str, Any]:
    """The children of a checkpoint: variables by name, and no lists of them, by position."""
    own = state.variables()
    known = {id(variable) for variable in own.values()}
    return own | {
        name: child
        for name, child in others.items()
        if not isinstance(child, (list, tuple, dict)) and id(child) not in known
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
    if not keys or (has_slots and not state.parts):
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
    found = _matched(name, state, [there[i] for i in sorted(there)], store)
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


def _matched(name, state, there, store):
    """Slot -> key, of each variable; they are matched by name, or by shape where names are new."""
    if not there:  # nothing was built
        return [{}] * len(state.parts)
    by_path, own = dict(there), [_escaped(part.name) for part in state.parts]
    # What a layer overwrites has no slots, and outside of an accumulation nothing in a file.
    of_rule = [kept for _, kept in there if slots_of_rule(kept)]
    others = [kept for _, kept in there if not slots_of_rule(kept)]
    stepped = [bool(slots_of_rule(part.kept)) for part in state.parts]
    # Names first; a model that is made again numbers its layers anew, and is matched by its shapes.
    if all(path in by_path for path, steps in zip(own, stepped, strict=True) if steps or others):
        found = [by_path.get(path, {}) for path in own]
    else:
        # By order among their kind: Keras 3 makes the scales of a layer that is loaded before its
        # kernel, and those of one that is quantized after it.
        if len(others) != stepped.count(False):
            others = [{}] * stepped.count(False)
        alike = len(of_rule) == stepped.count(True)
        queues = {True: iter(of_rule), False: iter(others)}
        found = [next(queues[steps]) for steps in stepped] if alike else []
        alike = alike and all(
            _has_shapes_of(part, kept, store) for part, kept in zip(state.parts, found, strict=True)
        )
        if not alike:
            missing = next(path for path in own if path not in by_path).replace("|", "/")
            count = f"it is of {len(there)} variables, and of the {len(own)} here it"
            raise _refusal(name, f"{count} lacks {missing!r}")
    for part, kept in zip(state.parts, found, strict=True):
        if (saved := slots_of_rule(kept)) != (wanted := slots_of_rule(part.kept)):
            has, keeps = (", ".join(sorted(slots)) or "nothing" for slots in (saved, wanted))
            raise _refusal(name, f"it has {has} of {part.name!r}, and {keeps} is kept here")
    return found


def slots_of_rule(kept) -> set[str]:
    """Of the names of what is kept of a variable, those of slots."""
    return {slot for slot in kept if not slot.startswith(_NO_SLOTS)}


def _has_shapes_of(part, kept, store):
    """Whether what is saved may be the part's; an accumulator of replicas may have an axis more."""
    return all(
        tuple(store[key].shape) == tuple(getattr(part.kept.get(slot), "shape", part.shape))
        for slot, key in kept.items()
        if not slot.startswith("accumulator")
    )


def _escaped(path):
    return path.replace("/", "|")


def _refusal(name, why):
    return ValueError(
        f"{name} cannot go on from this state: {why}. Load it into an optimizer like the one that "
        "was saved, or take weights alone: load them before the optimizer is built. Nothing of it "
        "was changed."
    )
