"""Which layer a saved state belongs to.

Hosts load weights by structure: by the place of a variable in its model, as `layers/Dense_1/kernel`
is the kernel of the second Dense in it. Names alone do not tell: Keras numbers `dense`, `dense_1`
anew in each process, in the order in which a script builds its layers. Nor does the order of what
is trained: a layer that is frozen later moves all that come after it.

So what is saved of an optimizer has the layout of the model beside it: the place, the path and the
shape of what is trained, and the places of all that the model has. The state of a variable goes
on in the variable of the same place. Where no layout is there (an optimizer that was never compiled
into a model, a file of before), paths and their order have to agree, or the state is refused.
"""

import json
import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tf_lamb.api.variables import inside


class Trained(NamedTuple):
    """A variable that an optimizer was built for."""

    path: str
    shape: tuple[int, ...]
    place: str | None  # None where the model is not known, or does not hold it


class Layout(NamedTuple):
    """What an optimizer was built for, in the order of the build, within its model."""

    trained: Sequence[Trained]
    shapes: Mapping[str, tuple[int, ...]]  # of all variables of the model, frozen too, by place

    def is_placed(self) -> bool:
        """Whether the place of each variable is known."""
        return bool(self.trained) and all(v.place is not None for v in self.trained)

    def to_text(self) -> str:
        """The layout as JSON."""
        return json.dumps([self.trained, self.shapes], separators=(",", ":"))

    def to_array(self) -> Any:
        """The text as an array of bytes, which is what files hold."""
        import numpy as np

        return np.frombuffer(self.to_text().encode(), "uint8")


def from_text(text: str) -> Layout:
    """The layout that `Layout.to_text` has written."""
    trained, shapes = json.loads(text)
    return Layout(
        tuple(Trained(path, tuple(shape), place) for path, shape, place in trained),
        {place: tuple(shape) for place, shape in shapes.items()},
    )


def unplaced(paths: Sequence[str], shapes: Sequence) -> Layout:
    """The layout of what is known by paths alone; shapes are of whatever can be compared."""
    return Layout(tuple(Trained(p, s, None) for p, s in zip(paths, shapes, strict=True)), {})


def from_array(array: Any) -> Layout:
    """The layout that `Layout.to_array` has written."""
    import numpy as np

    return from_text(np.asarray(array, "uint8").tobytes().decode())


# -- the layout of a model -------------------------------------------------------------------------

# Beside optimizers, not in them: what is an attribute of theirs, hosts would track and save.
_models: weakref.WeakKeyDictionary[Any, weakref.ref] = weakref.WeakKeyDictionary()
_places: weakref.WeakKeyDictionary[Any, tuple] = weakref.WeakKeyDictionary()


def note_model(optimizer: Any, model: Any) -> None:
    """Remembers the model whose variables an optimizer trains, and all of ours that it wraps."""
    for part in inside(optimizer):
        if hasattr(part, "_named_state"):
            _models[part] = weakref.ref(model)


def of(optimizer: Any, variables: Sequence, paths: Sequence[str], shapes: Sequence) -> Layout:
    """The layout of what an optimizer was built for, in the model that it was compiled into."""
    reference, host = _models.get(optimizer), optimizer._host
    model = reference() if reference else None
    places = {} if model is None else _places_of(model, host)
    key_of = host.key_of
    own = [places.get(key_of(variable), (None,))[0] for variable in variables]
    trained = tuple(
        Trained(path, tuple(shape), place)
        for path, shape, place in zip(paths, shapes, own, strict=True)
    )
    return Layout(trained, dict(places.values()))


def _places_of(model, host):
    """Key of a variable -> its place in the model, and its shape."""
    weights = {host.key_of(v): tuple(v.shape) for v in model.weights}
    known = _places.get(model)
    if known is None or known[0] != weights.keys():
        found: dict = {}
        for key, place in _walk(model, "", host, weights, {}):
            found.setdefault(key, (place, weights[key]))
        known = _places[model] = (set(weights), found)
    return known[1]


def _walk(item, place, host, keys, seen) -> Iterator[tuple[int, str]]:
    """Pairs of a variable's key and its place, from the attributes of layers in fixed order."""
    if id(item) in seen:
        return
    if isinstance(item, host.Layer):
        seen[id(item)] = item  # kept, so that no later one has its id
        children = {}
        if host.has_listed_layers(item):  # before what a script calls them
            children["layers"] = item.layers
        attributes = {**vars(item), **vars(item).get("_modules", {})}  # where torch has layers
        children |= dict(sorted(attributes.items(), key=_names_before_collections))
    elif isinstance(item, dict):
        seen[id(item)] = item
        children = {str(name): child for name, child in item.items()}
    elif isinstance(item, (list, tuple)):
        seen[id(item)] = item
        children = _numbered_by_class(item)
    else:
        if host.is_variable(item) and host.key_of(item) in keys:
            yield host.key_of(item), place
        return
    for name, child in children.items():
        yield from _walk(child, f"{place}/{name}" if place else name, host, keys, seen)


def _names_before_collections(attribute):
    """By which attributes are sorted: what hosts list by themselves is in the order of a script."""
    name, value = attribute
    return name.startswith("_"), isinstance(value, (list, tuple, dict)), name


def _numbered_by_class(items):
    """As hosts name the layers of a list: what has no weights does not move the others."""
    children: dict = {}
    counts: dict = {}
    for item in items:
        kind = type(item).__name__
        number = counts[kind] = counts.get(kind, -1) + 1
        children[f"{kind}_{number}" if number else kind] = item
    return children


# -- what goes on in what --------------------------------------------------------------------------


class Mismatch(ValueError):
    """Why the state of one layout does not go on in another."""


def match(there: Layout, here: Layout) -> list[int]:
    """Finds which variable of a saved state each variable here continues.

    Args:
        there: The layout of what was saved.
        here: The layout of the optimizer that goes on.

    Returns:
        By variable here, in the order of the build, its index in `there.trained`.

    Raises:
        Mismatch: If some variable has no state there, or if it may be one of several.
    """
    is_placed = there.is_placed() and here.is_placed()
    if is_placed and there.shapes == here.shapes:
        by_place = {variable.place: i for i, variable in enumerate(there.trained)}
        return [_found(by_place, v.place, v, there, here) for v in here.trained]
    paths = [variable.path for variable in there.trained]
    own = [variable.path for variable in here.trained]
    if own == paths or (not is_placed and _is_numbered_anew(there.trained, here.trained)):
        return list(range(len(own)))
    by_path = {path: i for i, path in enumerate(paths)}
    matched = [_found(by_path, v.path, v, there, here) for v in here.trained]
    for variable in here.trained:
        stem = _stem(variable.path)
        alike = (v for v in there.trained if v.shape == variable.shape)
        others = [v.path for v in alike if _stem(v.path) == stem]
        if len(others) > 1:
            raise Mismatch(
                f"{variable.path!r} here may be {' or '.join(map(repr, sorted(others)[:2]))} of "
                "it. Layers were added, frozen, or built in another order; which is which can only "
                "be told where both optimizers are compiled into models of the same layers, by "
                "model.compile(optimizer=...)"
            )
    return matched


def _found(table, key, variable, there, here):
    if key in table:
        return table[key]
    count = f"it is of {len(there.trained)} variables, and of the {len(here.trained)} here it"
    raise Mismatch(f"{count} lacks {variable.path!r}")


def _is_numbered_anew(there, here):
    """Whether the same layers, in the same order, may have got other names."""
    if [v.shape for v in there] != [v.shape for v in here]:
        return False
    paths, own = {v.path for v in there}, {v.path for v in here}

    def may_be_one(old, new):
        is_free = old not in own and new not in paths  # no other layer has the name
        return old == new or is_free or _stem(old) == _stem(new)

    pairs = zip(there, here, strict=True)
    return paths != own and all(may_be_one(old.path, new.path) for old, new in pairs)


def _stem(path):
    """A path without the numbers by which names of one kind differ."""
    return re.sub(r"\d+", "", path.replace("_", ""))
