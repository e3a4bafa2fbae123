"""Finds the order of an encoder's blocks from their names: one stack of blocks, or stages."""

import re
from collections.abc import Sequence

_BLOCK = re.compile(r"(?:layer|block)s?[_/]?(\d+)/", re.IGNORECASE)
# Names such as ConvNeXt's `stage_0_block_1_layernorm`. A downsampling layer stands between the
# stages, with a number of its own (`_BETWEEN`), or inside the stage that follows it.
_IN_STAGE = re.compile(
    r"(?P<root>.*?)stages?[_/]?(?P<stage>\d+)[_/]"
    r"(?:blocks?[_/]?(?P<block>\d+)|downsampl[a-z]*)[_/]",
    re.IGNORECASE,
)
_BETWEEN = re.compile(
    r"(?P<root>.*?)downsampl[a-z]*(?:[_/][a-z]+)*?[_/]?(?P<number>\d+)[_/]", re.IGNORECASE
)


def blocks_in_order(paths: Sequence[str]) -> list[list[str]]:
    """Returns the blocks in order from the input.

    Args:
        paths: The paths of the variables, in any order, without the model's name.

    Returns:
        For each block a list of the beginnings of the paths of its variables.

    Raises:
        ValueError: if the names imply no order, or several.
    """
    staged = {path: match for path in paths if (match := _IN_STAGE.match(path))}
    if any(match["block"] for match in staged.values()):
        return _of_stages(paths, staged)
    blocks = {path: match for path in paths if (match := _BLOCK.search(path))}
    stems = sorted({path[: match.start(1)] for path, match in blocks.items()})
    # Keras gives the first of several layers of one name no number (`block`, `block_1`), so the
    # first block would be taken for a layer outside the blocks.
    if len(stems) != 1 or any(path.startswith(f"{stems[0].rstrip('_/')}/") for path in paths):
        raise _refusal(stems, paths)
    (stem,), numbers = stems, sorted({int(match[1]) for match in blocks.values()})
    return [[f"{stem}{number}/"] for number in numbers]


def _of_stages(paths, staged):
    """Returns the blocks of all stages, in order from the input.

    A downsampling layer counts as a block, before the other blocks of its stage.

    Args:
        paths: The paths of the variables, without the model's name.
        staged: The paths with the name of a stage -> the match of `_IN_STAGE`.
    """
    stages = sorted({int(match["stage"]) for match in staged.values()})
    between = {
        path: downsampling
        for path in paths
        if path not in staged and (downsampling := _BETWEEN.match(path))
    }
    numbers = sorted({int(match["number"]) for match in between.values()})
    roots = sorted({match["root"] for match in (*staged.values(), *between.values())})
    if len(roots) > 1 or len(numbers) > len(stages):
        raise _refusal([f"{root}stage" for root in roots], paths)
    # Downsampling layers and stages are paired from the last on: if there is one layer less than
    # stages, the first stage has none before it.
    stage_after = dict(zip(reversed(numbers), reversed(stages), strict=False))
    places: dict[tuple[int, int], list[str]] = {}
    for match in staged.values():
        place = int(match["stage"]), int(match["block"] or -1)
        places.setdefault(place, []).append(match[0])
    for match in between.values():
        places.setdefault((stage_after[int(match["number"])], -1), []).append(match[0])
    return [list(dict.fromkeys(places[place])) for place in sorted(places)]


def _refusal(stems, paths):
    """Returns the error for paths without exactly one stack of numbered blocks."""
    found_stems = ", ".join(map(repr, stems)) or f"none in paths such as {paths[0]!r}"
    return ValueError(
        "layer_decay needs one stack of blocks that are all numbered, such as transformer_layer_0, "
        f"transformer/layer_0 or, in stages, stage_0_block_0, and found {found_stems}. Write the "
        "dict of treatments by hand."
    )
