"""The names that a variable answers to: its path, with the name of the model and without."""

import re
from collections.abc import Sequence


def stable_path(name: str) -> str:
    """A TensorFlow variable's name without what differs between replicas: `:0`, `/replica_1`."""
    return re.sub(r"(/replica_\d+)?(:\d+)?$", "", name)


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
