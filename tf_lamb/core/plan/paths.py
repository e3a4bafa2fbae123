"""The names that a variable answers to: its path, with the name of the model and without.

Two variables may have one path, as those of two towers that one function built; which of them it
is then belongs to the name: `dense/kernel#2of2`.
"""

import re
from collections import Counter
from collections.abc import Sequence, Set


def stable_path(name: str) -> str:
    """A TensorFlow variable's name without what differs between replicas: `:0`, `/replica_1`."""
    return re.sub(r"(/replica_\d+)?(:\d+)?$", "", name)


def numbered(paths: Sequence[str]) -> list[str]:
    """Each path with its number among those that are equal, in this order: `path#1of1`."""
    counts, seen = Counter(paths), Counter[str]()
    result = []
    for path in paths:
        seen[path] += 1
        result.append(f"{path}#{seen[path]}of{counts[path]}")
    return result


def unique(paths: Sequence[str]) -> list[str]:
    """Each path as it stands; one that several share with its number."""
    counts = Counter(paths)
    pairs = zip(paths, numbered(paths), strict=True)
    return [path if counts[path] == 1 else name for path, name in pairs]


def joined_layers(paths: Sequence[str], joined: Set[int]) -> tuple[str, ...]:
    """Of each variable the Keras layer that it is joined in, or an empty name.

    Raises:
        ValueError: where it cannot be known which variables are of one layer.
    """
    members = sorted(joined)
    own = [paths[i] for i in members]
    layers = [path.rpartition("/")[0] or path for path in own]
    numbers = [name.rpartition("#")[2] for name in numbered(own)]  # such as 2of2
    groups = [""] * len(paths)
    first: dict = {}
    for i, path, layer, number in zip(members, own, layers, numbers, strict=True):
        count, other = first.setdefault(layer, (number.rpartition("of")[2], path))
        if count != number.rpartition("of")[2]:
            raise ValueError(
                f"layer_groups joins {own.count(other)} variables {other!r} and {own.count(path)} "
                f"{path!r}: which of them are of one layer cannot be known. Give each layer a name "
                "of its own, or narrow the pattern."
            )
        groups[i] = layer if count == "1" else f"{layer}#{number}"
    return tuple(groups)


def aliases(paths: Sequence[str]) -> list[tuple[str, ...]]:
    """Each path as it stands, and without the model's name where there is one to drop."""
    root = model_name(paths)
    return [
        (path, path.removeprefix(root)) if root and path.startswith(root) else (path,)
        for path in paths
    ]


def model_name(paths: Sequence[str]) -> str:
    """The first name that all paths share, with its slash, or an empty string.

    A layer of a subclassed model that makes weights before the model is called leaves the model's
    name out of their path: beside `my_model/encoder/dense/kernel` stands `encoder/scale`, in
    tf_keras a bare `scale`. Such paths do not speak against the name. Where several names would
    do, it is the first in the alphabet: the order of the paths decides nothing.
    """
    for root in sorted({path.partition("/")[0] for path in paths if "/" in path}):
        inside = [path.split("/") for path in paths if path.startswith(root + "/")]
        layers = {names[1] for names in inside if len(names) > 2}
        outside = [path.split("/") for path in paths if not path.startswith(root + "/")]
        if all(len(names) == 1 or names[0] in layers for names in outside):
            return root + "/"
    return ""
