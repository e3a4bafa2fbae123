"""The names that a variable answers to, and the patterns that are searched in them.

A variable answers to its path, with the name of the model and without. Two variables may have one
path, as those of two towers that one function built; which of them it is then belongs to the name:
`dense/kernel#2of2`. A pattern is a regex, or a preset that stands in the place of one; with a `#`
it is searched in the path with its number, too: `^dense/kernel#2of2$`.

Whoever writes a regex runs it, by no clock: a repeat inside a repeat, `(a+)+$`, may never end.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set


def stable_path(name: str) -> str:
    """A TensorFlow variable's name without what differs between replicas: `:0`, `/replica_1`."""
    return re.sub(r"(/replica_\d+)?(:\d+)?$", "", name)


def numbered(paths: Sequence[str]) -> list[str]:
    """Each path with its number among those that are equal, in this order: `path#1of1`."""
    counts, occurrences = Counter(paths), Counter[str]()
    result = []
    for path in paths:
        occurrences[path] += 1
        result.append(f"{path}#{occurrences[path]}of{counts[path]}")
    return result


def unique(paths: Sequence[str]) -> list[str]:
    """Each path as it stands; one that several share with its number."""
    counts = Counter(paths)
    pairs = zip(paths, numbered(paths), strict=True)
    return [path if counts[path] == 1 else name for path, name in pairs]


def joined_layers(paths: Sequence[str], joined: Set[int]) -> tuple[str, ...]:
    """The Keras layer that each variable is joined in, or an empty name."""
    members = sorted(joined)
    joined_paths = [paths[position] for position in members]
    layers = [path.rpartition("/")[0] or path for path in joined_paths]
    numbers = [name.rpartition("#")[2] for name in numbered(joined_paths)]  # such as 2of2
    groups = [""] * len(paths)
    first_of_layer: dict = {}
    for position, path, layer, number in zip(members, joined_paths, layers, numbers, strict=True):
        count, first_path = first_of_layer.setdefault(layer, (number.rpartition("of")[2], path))
        if count != number.rpartition("of")[2]:
            raise ValueError(
                f"treatments joins {joined_paths.count(first_path)} variables {first_path!r} and {joined_paths.count(path)} "
                f"{path!r}: which of them are of one layer cannot be known. Give each layer a name "
                "of its own, or narrow the pattern."
            )
        groups[position] = layer if count == "1" else f"{layer}#{number}"
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

    Weights that a subclassed model's layer makes before the model is called lack it: beside
    `my_model/encoder/dense/kernel` stands `encoder/scale`, in tf_keras a bare `scale`. Of several
    names that would do, it is the first in the alphabet.
    """
    for root in sorted({path.partition("/")[0] for path in paths if "/" in path}):
        inside = [path.split("/") for path in paths if path.startswith(root + "/")]
        layers = {names[1] for names in inside if len(names) > 2}
        outside = [path.split("/") for path in paths if not path.startswith(root + "/")]
        if all(len(names) == 1 or names[0] in layers for names in outside):
            return root + "/"
    return ""


def is_norm_or_bias(path: str, shape: Sequence[int]) -> bool:
    """Whether it is a bias, or a scale or an offset of a normalization, by what Keras names them.

    Of what has one axis, a `scale` is RMS normalization's, and all of a layer named after a `norm`.
    """
    *layers, name = path.lower().split("/")
    if name in ("bias", "gamma", "beta"):
        return True
    return len(shape) < 2 and (name == "scale" or any("norm" in layer for layer in layers[-1:]))


def is_norm_bias_or_vector(path: str, shape: Sequence[int]) -> bool:
    """Whether it is one of these, or another vector: what timm's recipes of LAMB do not adapt.

    A LayerScale, a ReZero and a class token start at or near zero, where a step as long as the
    weight, times the rate, is none. A class token has axes of 1 before its own.
    """
    is_vector = len(shape) < 2 or len(shape) > 2 and set(shape[:-1]) == {1}
    name = path.rpartition("/")[2].lower()
    return is_norm_or_bias(path, shape) or is_vector and "kernel" not in name


Preset = Callable[[str, Sequence[int]], bool]
PRESETS: dict[str, Preset] = {"norm_and_bias": is_norm_bias_or_vector}
# Where a preset may stand in the place of a pattern, or of the whole list.
EXCLUSIONS = ("exclude_from_weight_decay", "exclude_from_layer_adaptation", "var_names")


def exact(path: str) -> str:
    """The pattern that matches this path, or this path with its number, and no other."""
    return f"^{re.escape(path)}$"


def is_preset(argument: str, pattern: str) -> bool:
    """Whether this argument takes the pattern for a preset."""
    return argument in EXCLUSIONS and pattern in PRESETS


def search(
    argument: str, patterns: Iterable[str], variables: Sequence[tuple[Sequence[str], Sequence[int]]]
) -> dict[str, frozenset[int]]:
    """Pattern -> positions of the variables in whose names it is found, or that a preset means.

    Raises where the number of a path, as `exact` writes it, is of another count than there are.
    """
    positions = {}
    numbers = numbered([names[0] for names, _ in variables])
    for pattern in patterns:
        regex, matches = re.compile(pattern), set()
        for position, (names, shape) in enumerate(variables):
            preset = is_preset(argument, pattern)
            if "#" in pattern:
                names = (*names, numbers[position])
            if PRESETS[pattern](names[0], shape) if preset else any(map(regex.search, names)):
                matches.add(position)
        positions[pattern] = frozenset(matches)
        if not matches:
            _check_count(argument, pattern, numbers)
    return positions


def _check_count(argument, pattern, numbers):
    """Raises where it is a number of a path of which there are more here, or fewer."""
    if not (parts := re.fullmatch(r"\^(.+)\\#(\d+)of(\d+)\$", pattern)):
        return
    path, number, count = parts.groups()
    if same_path := [numbered_path for numbered_path in numbers if re.search(f"^{path}#", numbered_path)]:
        raise ValueError(
            f"{argument} names number {number} of {count} variables of one path, and {len(same_path)} "
            f"have that path here: {', '.join(same_path)}. Name the one that is meant, such as "
            f"{exact(same_path[0])!r}, or give each layer a name of its own."
        )
