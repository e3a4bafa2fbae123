"""Matches the saved state of an optimizer to its variables, by their places in the model.

Keras loads weights by structure, that is by the place of a variable in its model:
`layers/Dense_1/kernel` is the kernel of the second Dense layer. Names alone do not identify a
variable, because each process numbers its layers `dense`, `dense_1` in the order in which it makes
them. The order of the trained variables does not either: if a layer is frozen later, all variables
after it move up.

So the saved state of an optimizer includes a `Layout` of its model: the place, the path and the
shape of each trained variable, and the places and shapes of all variables of the model. The state
of a saved variable is loaded for the variable at the same place. If a layout is missing, because
the optimizer was never compiled into a model or an older version wrote the file, the paths and
their order have to agree, or the state is not loaded.
"""

import json
import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tf_lamb.api.optimizers.frontend import Host, LayerwiseMembers
from tf_lamb.api.variables import optimizers_inside


class TrainedVariable(NamedTuple):
    """Describes a variable that an optimizer was built for.

    Attributes:
        path: The path of the variable.
        shape: Its shape.
        place: Its place in the model, such as `layers/Dense_1/kernel`; None if the model is not
            known, or does not hold the variable.
    """

    path: str
    shape: tuple[int, ...]
    place: str | None


class Layout(NamedTuple):
    """Holds the variables of an optimizer, and their places in its model.

    It is unrelated to `core.layouts.Layout`, the shape in which a rule sees a variable.

    Attributes:
        trained: The variables that the optimizer was built for, in the order of the build.
        shapes: Place -> shape, of all variables of the model; empty if the model is not known.
    """

    trained: Sequence[TrainedVariable]
    shapes: Mapping[str, tuple[int, ...]]

    def is_placed(self) -> bool:
        """Returns whether the place of each variable is known."""
        return bool(self.trained) and all(variable.place is not None for variable in self.trained)

    def to_text(self) -> str:
        """Returns the layout as JSON."""
        return json.dumps([self.trained, self.shapes], separators=(",", ":"))

    def to_array(self) -> Any:
        """Returns the JSON as an array of bytes, which a file can hold."""
        import numpy as np

        return np.frombuffer(self.to_text().encode(), "uint8")


def from_text(text: str) -> Layout:
    """Returns the layout that `Layout.to_text` has written as `text`."""
    trained, shapes = json.loads(text)
    return Layout(
        tuple(TrainedVariable(path, tuple(shape), place) for path, shape, place in trained),
        {place: tuple(shape) for place, shape in shapes.items()},
    )


def layout_without_places(paths: Sequence[str], shapes: Sequence) -> Layout:
    """Makes the layout of variables whose places in the model are not known, but whose paths are.

    Args:
        paths: The path of each variable.
        shapes: For each variable a value that is compared instead of its shape, such as the
            shapes of its slots.
    """
    return Layout(
        tuple(
            TrainedVariable(path, shape, None) for path, shape in zip(paths, shapes, strict=True)
        ),
        {},
    )


def from_array(array: Any) -> Layout:
    """Returns the layout that `Layout.to_array` has written as `array`."""
    import numpy as np

    return from_text(np.asarray(array, "uint8").tobytes().decode())


# -- the places in a model -------------------------------------------------------------------------

# `_models` maps an optimizer to its model, `_places` a model to the keys of its variables and their
# places and shapes. They are not attributes, because Keras would track and save attributes.
_models: weakref.WeakKeyDictionary[Any, weakref.ref] = weakref.WeakKeyDictionary()
_places: weakref.WeakKeyDictionary[Any, tuple] = weakref.WeakKeyDictionary()


def record_model(optimizer: Any, model: Any) -> None:
    """Records the model that an optimizer is compiled into.

    It is recorded for the optimizer and for each optimizer of this package that it wraps.

    Args:
        optimizer: The optimizer.
        model: The model. Only a weak reference to it is kept.
    """
    for part in optimizers_inside(optimizer):
        if hasattr(part, "_named_state"):
            _models[part] = weakref.ref(model)


def layout_of(
    optimizer: LayerwiseMembers, variables: Sequence, paths: Sequence[str], shapes: Sequence
) -> Layout:
    """Returns the `Layout` of an optimizer: the place of each of its variables in its model.

    A place is a path such as `layers/Dense_1/kernel`. If the optimizer was never compiled into a
    model, the places are unknown.

    Args:
        optimizer: The optimizer.
        variables: The variables that it was built for, in the order of the build.
        paths: The path of each variable.
        shapes: The shape of each variable.
    """
    reference, host = _models.get(optimizer), optimizer._host
    model = reference() if reference else None
    places = {} if model is None else _places_of(model, host)
    key_of = host.key_of
    places_of_variables = [places.get(key_of(variable), (None,))[0] for variable in variables]
    trained = tuple(
        TrainedVariable(path, tuple(shape), place)
        for path, shape, place in zip(paths, shapes, places_of_variables, strict=True)
    )
    return Layout(trained, dict(places.values()))


def _places_of(model: Any, host: Host) -> Mapping[Any, tuple]:
    """Returns a dict from the key of each variable of a model to the pair (place, shape).

    The place is a path by structure, such as `layers/Dense_1/kernel`.
    """
    weights = {host.key_of(variable): tuple(variable.shape) for variable in model.weights}
    cached = _places.get(model)
    if cached is None or cached[0] != weights.keys():
        place_and_shape: dict = {}
        for key, place in _walk(model, "", host, weights, {}):
            place_and_shape.setdefault(key, (place, weights[key]))
        cached = _places[model] = (set(weights), place_and_shape)
    return cached[1]


def _walk(
    item: Any, place: str, host: Host, keys: Mapping, visited: dict
) -> Iterator[tuple[int, str]]:
    """Yields pairs (key of a variable, place) of the variables in a layer or a collection.

    It walks the attributes of layers in a fixed order.

    Args:
        item: A layer, a collection of layers or variables, a variable, or anything else.
        place: The place of the item; "" for the model.
        host: The functions of the frontend on variables.
        keys: The keys of the variables to find.
        visited: The id of each layer and collection that was walked -> the object.
    """
    if id(item) in visited:
        return
    if isinstance(item, host.Layer):
        visited[id(item)] = item  # while the item is referred to, no other object gets its id
        children = {}
        # If a variable is found at several places, the first one counts. The list of layers comes
        # before the attributes, because another script may name the attributes differently.
        if host.has_listed_layers(item):
            children["layers"] = item.layers
        attributes = {**vars(item), **vars(item).get("_modules", {})}  # torch keeps layers there
        children |= dict(sorted(attributes.items(), key=_names_before_collections))
    elif isinstance(item, dict):
        visited[id(item)] = item
        children = {str(name): child for name, child in item.items()}
    elif isinstance(item, (list, tuple)):
        visited[id(item)] = item
        children = _numbered_by_class(item)
    else:
        if host.is_variable(item) and host.key_of(item) in keys:
            yield host.key_of(item), place
        return
    for name, child in children.items():
        yield from _walk(child, f"{place}/{name}" if place else name, host, keys, visited)


def _names_before_collections(attribute):
    """Returns the sort key of an attribute: private ones come last, collections after others.

    Collections are late because Keras fills some of them itself, in an order that depends on the
    user's script.
    """
    name, value = attribute
    return name.startswith("_"), isinstance(value, (list, tuple, dict)), name


def _numbered_by_class(items):
    """Returns a dict of the items of a list by class and number: Dense, Dense_1, Dropout.

    Keras names them so, too. Adding a Dropout then does not change the names of the Dense layers.
    """
    children: dict = {}
    counts: dict = {}
    for item in items:
        kind = type(item).__name__
        number = counts[kind] = counts.get(kind, -1) + 1
        children[f"{kind}_{number}" if number else kind] = item
    return children


# -- which saved variable belongs to which --------------------------------------------------------


class Mismatch(ValueError):
    """The error for a saved state that cannot be matched to the variables of an optimizer."""


def match(saved: Layout, own: Layout) -> list[int]:
    """Finds, for each variable of an optimizer, the saved variable whose state it takes over.

    Args:
        saved: The layout of the saved state.
        own: The layout of the optimizer.

    Returns:
        For each variable of `own.trained`, the index of its saved variable in `saved.trained`.

    Raises:
        Mismatch: if no saved variable fits a variable, or if several may.
    """
    is_placed = saved.is_placed() and own.is_placed()
    if is_placed and saved.shapes == own.shapes:
        by_place = {variable.place: i for i, variable in enumerate(saved.trained)}
        return [
            _saved_position(by_place, trained.place, trained, saved, own) for trained in own.trained
        ]
    paths = [variable.path for variable in saved.trained]
    own_paths = [variable.path for variable in own.trained]
    if own_paths == paths or (not is_placed and _may_be_renumbered(saved.trained, own.trained)):
        return list(range(len(own_paths)))
    by_path = {path: i for i, path in enumerate(paths)}
    matched = [
        _saved_position(by_path, trained.path, trained, saved, own) for trained in own.trained
    ]
    for variable in own.trained:
        stem = _stem(variable.path)
        same_shape_variables = (
            trained for trained in saved.trained if trained.shape == variable.shape
        )
        candidates = [
            trained.path for trained in same_shape_variables if _stem(trained.path) == stem
        ]
        if len(candidates) > 1:
            raise Mismatch(
                f"{variable.path!r} here may be "
                f"{' or '.join(map(repr, sorted(candidates)[:2]))} of it. Layers were added, "
                "frozen, or built in another order; which is which can only be told where both "
                "optimizers are compiled into models of the same layers, by "
                "model.compile(optimizer=...)"
            )
    return matched


def _saved_position(positions, key, variable, saved, own):
    """Returns `positions[key]`, the position of a variable in the saved state.

    Raises `Mismatch` if the saved state lacks the variable. The message is made from `variable` and
    the layouts `saved` and `own`.
    """
    if key in positions:
        return positions[key]
    count = f"it is of {len(saved.trained)} variables, and of the {len(own.trained)} here it"
    raise Mismatch(f"{count} lacks {variable.path!r}")


def _may_be_renumbered(saved, own):
    """Returns whether two lists of variables may be of the same layers in the same order.

    Keras may have given the layers other numbers in their names, such as `dense_1` for `dense`.
    """
    if [variable.shape for variable in saved] != [variable.shape for variable in own]:
        return False
    saved_paths, own_paths = (
        {variable.path for variable in saved},
        {variable.path for variable in own},
    )

    def may_be_same(saved_path, own_path):
        # The variable's layer may have been renamed if neither path is in the other layout.
        is_renamed = saved_path not in own_paths and own_path not in saved_paths
        return saved_path == own_path or is_renamed or _stem(saved_path) == _stem(own_path)

    pairs = zip(saved, own, strict=True)
    return saved_paths != own_paths and all(
        may_be_same(saved_path.path, own_path.path) for saved_path, own_path in pairs
    )


def _stem(path):
    """Returns a path without digits and underscores.

    Paths that differ only in the numbers of their layers, such as `dense` and `dense_1`, have the
    same result.
    """
    return re.sub(r"\d+", "", path.replace("_", ""))
