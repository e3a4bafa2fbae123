"""The names of variables, and the patterns that are searched in them.

The names of a variable are its path with the name of the model, and its path without it. Two
variables may have the same path, such as those of two towers that one function built. Then a number
is part of the name: `dense/kernel#2of2`. A pattern is a regex, or a preset in the place of one. A
regex with a `#` is searched in the path with its number as well: `^dense/kernel#2of2$`.

A regex is run without a time limit: a repeat inside a repeat, `(a+)+$`, may never end.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set


def stable_path(name: str) -> str:
    """Returns the name of a TensorFlow variable without `:0` and without `/replica_1`.

    So the copies of a variable on several replicas have one name.
    """
    return re.sub(r"(/replica_\d+)?(:\d+)?$", "", name)


def numbered_paths(paths: Sequence[str]) -> list[str]:
    """Returns each path with its number among equal paths, in their order: `path#1of1`."""
    counts, occurrences = Counter(paths), Counter[str]()
    names = []
    for path in paths:
        occurrences[path] += 1
        names.append(f"{path}#{occurrences[path]}of{counts[path]}")
    return names


def unique_names(paths: Sequence[str]) -> list[str]:
    """Returns each path as it is, but with its number if several variables have the path."""
    counts = Counter(paths)
    pairs = zip(paths, numbered_paths(paths), strict=True)
    return [path if counts[path] == 1 else name for path, name in pairs]


def joined_layers(paths: Sequence[str], joined_positions: Set[int]) -> tuple[str, ...]:
    """Returns, for each variable that the user joins with others, the name of its Keras layer.

    Args:
        paths: The path of each variable.
        joined_positions: The positions of the variables that the user joins.

    Returns:
        For each variable the name of its layer, or "" if it is not joined. If several layers have
        one path, their names have a number, as in `dense#1of2`.

    Raises:
        ValueError: if several layers have one path, and the counts of their variables differ, such
            as two kernels and one bias, so that the layer of a variable is not known.
    """
    positions = sorted(joined_positions)
    joined_paths = [paths[position] for position in positions]
    layer_paths = [path.rpartition("/")[0] or path for path in joined_paths]
    path_numbers = [name.rpartition("#")[2] for name in numbered_paths(joined_paths)]  # as 2of2
    layer_names = [""] * len(paths)
    first_of_layer: dict = {}
    for position, path, layer, number in zip(
        positions, joined_paths, layer_paths, path_numbers, strict=True
    ):
        count, first_path = first_of_layer.setdefault(layer, (number.rpartition("of")[2], path))
        if count != number.rpartition("of")[2]:
            raise ValueError(
                f"treatments joins {joined_paths.count(first_path)} variables {first_path!r} and "
                f"{joined_paths.count(path)} {path!r}: which of them are of one layer cannot be "
                "known. Give each layer a name of its own, or narrow the pattern."
            )
        layer_names[position] = layer if count == "1" else f"{layer}#{number}"
    return tuple(layer_names)


def aliases(paths: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns the names of each variable: its path, and its path without the model's name."""
    root = model_name(paths)
    return [
        (path, path.removeprefix(root)) if root and path.startswith(root) else (path,)
        for path in paths
    ]


def model_name(paths: Sequence[str]) -> str:
    """Returns the name of the model, with a slash, if it begins the paths, else an empty string.

    Weights that a layer of a subclassed model makes before the model is called lack the name of the
    model: `encoder/scale`, or a bare `scale` in tf_keras, stands beside
    `my_model/encoder/dense/kernel`. Such paths are allowed. If several names are possible, the
    first in alphabetical order is returned.
    """
    for root in sorted({path.partition("/")[0] for path in paths if "/" in path}):
        paths_inside = [path.split("/") for path in paths if path.startswith(root + "/")]
        layers = {names[1] for names in paths_inside if len(names) > 2}
        paths_outside = [path.split("/") for path in paths if not path.startswith(root + "/")]
        if all(len(names) == 1 or names[0] in layers for names in paths_outside):
            return root + "/"
    return ""


def is_norm_or_bias(path: str, shape: Sequence[int]) -> bool:
    """Returns whether a variable is a bias, or a scale or offset of a normalization, by its name.

    The names are those of Keras. A vector named `scale` belongs to RMS normalization, and every
    vector of a layer with `norm` in its name to a normalization.

    Args:
        path: The path of the variable.
        shape: Its shape.
    """
    *layers, name = path.lower().split("/")
    if name in ("bias", "gamma", "beta"):
        return True
    return len(shape) < 2 and (name == "scale" or any("norm" in layer for layer in layers[-1:]))


def is_norm_bias_or_vector(path: str, shape: Sequence[int]) -> bool:
    """Returns whether a variable is a bias, part of a normalization, or another vector.

    timm's recipes of LAMB do not adapt these variables. A LayerScale, a ReZero and a class token
    start at or near zero, where a step of the length of the weight, times the learning rate, does
    not move them. A class token counts as a vector: all axes but its last have length 1.

    Args:
        path: The path of the variable.
        shape: Its shape.
    """
    is_vector = len(shape) < 2 or len(shape) > 2 and set(shape[:-1]) == {1}
    name = path.rpartition("/")[2].lower()
    return is_norm_or_bias(path, shape) or is_vector and "kernel" not in name


Preset = Callable[[str, Sequence[int]], bool]
PRESETS: dict[str, Preset] = {"norm_and_bias": is_norm_bias_or_vector}
# The arguments in which a preset may stand in the place of a pattern, or of the whole list.
ARGUMENTS_WITH_PRESETS = ("exclude_from_weight_decay", "exclude_from_layer_adaptation", "var_names")


def exact_pattern(path: str) -> str:
    """Returns the pattern that matches this path, with or without its number, and no other."""
    return f"^{re.escape(path)}$"


def is_preset(argument: str, pattern: str) -> bool:
    """Returns whether a pattern is a preset in an argument of this name.

    Args:
        argument: The name of the argument.
        pattern: The pattern.
    """
    return argument in ARGUMENTS_WITH_PRESETS and pattern in PRESETS


def search(
    argument: str, patterns: Iterable[str], variables: Sequence[tuple[Sequence[str], Sequence[int]]]
) -> dict[str, frozenset[int]]:
    """Finds the variables that each pattern matches.

    Args:
        argument: The name of the argument that the patterns were passed in.
        patterns: Regexes, and presets where the argument takes them.
        variables: For each variable its names, the path first, and its shape.

    Returns:
        Dict from a pattern to the positions of the variables.

    Raises:
        ValueError: if a pattern of `exact_pattern` has a number such as `1of2`, and there are not
            as many variables of that path.
    """
    positions_by_pattern = {}
    numbered_names = numbered_paths([names[0] for names, _ in variables])
    for pattern in patterns:
        regex, matched_positions = re.compile(pattern), set()
        for position, (names, shape) in enumerate(variables):
            is_preset_pattern = is_preset(argument, pattern)
            if "#" in pattern:
                names = (*names, numbered_names[position])
            if is_preset_pattern:
                is_match = PRESETS[pattern](names[0], shape)
            else:
                is_match = any(map(regex.search, names))
            if is_match:
                matched_positions.add(position)
        positions_by_pattern[pattern] = frozenset(matched_positions)
        if not matched_positions:
            _check_count(argument, pattern, numbered_names)
    return positions_by_pattern


def _check_count(argument, pattern, numbered_names):
    """Raises if a pattern has a number such as `1of2`, and not as many variables have its path.

    Args:
        argument: The name of the argument that the pattern was passed in.
        pattern: The pattern, which matches no variable.
        numbered_names: The path of each variable with its number.
    """
    if not (match := re.fullmatch(r"\^(.+)\\#(\d+)of(\d+)\$", pattern)):
        return
    path, number, count = match.groups()
    if same_path := [
        numbered_path for numbered_path in numbered_names if re.search(f"^{path}#", numbered_path)
    ]:
        raise ValueError(
            f"{argument} names number {number} of {count} variables of one path, and "
            f"{len(same_path)} have that path here: {', '.join(same_path)}. Name the one that is "
            f"meant, such as {exact_pattern(same_path[0])!r}, or give each layer a name of its own."
        )
