"""Names variables, and finds the variables that match the user's patterns.

A variable has two names: its path with the name of the model, and its path without that name. Two
variables may have the same path, such as those of two towers that one function built. Then a number
tells them apart: `dense/kernel#2of2`. A pattern is a regex or the name of a preset. A regex with a
`#` is also searched in the path with the number: `^dense/kernel#2of2$`.

There is no time limit for a regex: one with a repeat inside a repeat, `(a+)+$`, may never end.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set


def stable_path(name: str) -> str:
    """Returns the name of a TensorFlow variable without `:0` and without `/replica_1`.

    Then the copies of a variable on several replicas have the same name.
    """
    return re.sub(r"(/replica_\d+)?(:\d+)?$", "", name)


def numbered_paths(paths: Sequence[str]) -> list[str]:
    """Returns each path with its number among equal paths, such as `path#1of2`, `path#2of2`.

    A path that occurs once becomes `path#1of1`. The results are in the order of `paths`.
    """
    counts, occurrences = Counter(paths), Counter[str]()
    names = []
    for path in paths:
        occurrences[path] += 1
        names.append(f"{path}#{occurrences[path]}of{counts[path]}")
    return names


def unique_names(paths: Sequence[str]) -> list[str]:
    """Returns each path as it is, or as `path#1of2` if several variables have the path."""
    counts = Counter(paths)
    pairs = zip(paths, numbered_paths(paths), strict=True)
    return [path if counts[path] == 1 else name for path, name in pairs]


def joined_layers(paths: Sequence[str], joined_positions: Set[int]) -> tuple[str, ...]:
    """Returns, for each variable that the user joins with others, the name of its Keras layer.

    Joined variables of one Keras layer, such as its kernel and bias, share one trust ratio.

    Args:
        paths: The path of each variable.
        joined_positions: The positions of the variables that the user joins.

    Returns:
        For each variable the name of its layer, or "" if it is not joined. If several layers have
        the same path, their names have a number, as in `dense#1of2`.

    Raises:
        ValueError: if several layers have the same path, and it is not known which variables are of
            one layer, because there are, for example, two kernels and only one bias.
    """
    positions = sorted(joined_positions)
    joined_paths = [paths[position] for position in positions]
    layer_paths = [path.rpartition("/")[0] or path for path in joined_paths]
    path_numbers = [name.rpartition("#")[2] for name in numbered_paths(joined_paths)]  # e.g. 2of2
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
    """Returns the names of each variable: its path, and its path without the name of the model.

    If a path does not begin with the name of the model, the path is the only name.
    """
    root = model_name(paths)
    return [
        (path, path.removeprefix(root)) if root and path.startswith(root) else (path,)
        for path in paths
    ]


def model_name(paths: Sequence[str]) -> str:
    """Returns the name of the model, with a slash, if it begins the paths, else an empty string.

    Not all paths need to begin with it. In a subclassed model, weights that a layer makes before
    the model is called lack the name of the model: beside `my_model/encoder/dense/kernel` there is
    `encoder/scale`, or only `scale` in tf_keras. If several names are possible, the first in
    alphabetical order is returned.
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

    Any variable that is named `bias`, `gamma` or `beta` counts. So does a vector or scalar that is
    named `scale`, as in Keras's RMS normalization, or whose layer has `norm` in its name.

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

    timm's recipes of LAMB give these variables no trust ratio. The weights of LayerScale or ReZero,
    and a class token, start at or near zero. A trust ratio makes a step proportional to the norm of
    the weight, so it would hardly move them. A class token counts as a vector, because all its axes
    except the last have length 1. A vector with `kernel` in its name does not count.

    Args:
        path: The path of the variable.
        shape: Its shape.
    """
    is_vector = len(shape) < 2 or len(shape) > 2 and set(shape[:-1]) == {1}
    name = path.rpartition("/")[2].lower()
    return is_norm_or_bias(path, shape) or is_vector and "kernel" not in name


Preset = Callable[[str, Sequence[int]], bool]
PRESETS: dict[str, Preset] = {"norm_and_bias": is_norm_bias_or_vector}
# The arguments that take the name of a preset as a pattern, or in place of the list of patterns.
ARGUMENTS_WITH_PRESETS = ("exclude_from_weight_decay", "exclude_from_layer_adaptation", "var_names")


def exact_pattern(path: str) -> str:
    """Returns the regex that matches only this path, such as `dense/kernel` or `a/kernel#1of2`."""
    return f"^{re.escape(path)}$"


def is_preset(argument: str, pattern: str) -> bool:
    """Returns whether a pattern is the name of a preset, and the argument takes presets.

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
        patterns: Regexes, and names of presets if the argument takes them.
        variables: For each variable a pair: its names, of which the first is its path, and its
            shape.

    Returns:
        Dict from a pattern to the positions of the variables.

    Raises:
        ValueError: if a pattern from `exact_pattern` asks for one of 2 variables with the same path
            (`#1of2`), and there are more or fewer variables with this path than 2.
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
    """Raises an error if a pattern asks for `path#1of2`, but more or fewer than 2 have this path.

    Args:
        argument: The name of the argument that the pattern was passed in.
        pattern: The pattern, which matches no variable.
        numbered_names: The path of each variable with its number.

    Raises:
        ValueError: if at least one variable has the path, but not as many as the pattern says.
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
