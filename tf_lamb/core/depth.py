"""Finds the order of an encoder's blocks from their names: one stack of blocks, or stages."""

import re
from collections.abc import Sequence

_BLOCK = re.compile(r"(?:layer|block)s?[_/]?(\d+)/", re.IGNORECASE)
# Names such as ConvNeXt's `stage_0_block_1_layernorm`. A downsampling layer stands between the
# stages, with a number of its own (`_DOWNSAMPLING`), or inside the stage that follows it.
_STAGE = re.compile(
    r"(?P<root>.*?)stages?[_/]?(?P<stage>\d+)[_/]"
    r"(?:blocks?[_/]?(?P<block>\d+)|downsampl[a-z]*)[_/]",
    re.IGNORECASE,
)
_DOWNSAMPLING = re.compile(
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
    stage_matches = {path: match for path in paths if (match := _STAGE.match(path))}
    if any(match["block"] for match in stage_matches.values()):
        return _blocks_of_stages(paths, stage_matches)
    block_matches = {path: match for path in paths if (match := _BLOCK.search(path))}
    prefixes = sorted({path[: match.start(1)] for path, match in block_matches.items()})
    # Keras gives the first of several layers of one name no number (`block`, `block_1`), so the
    # first block would be taken for a layer outside the blocks.
    if len(prefixes) != 1 or any(path.startswith(f"{prefixes[0].rstrip('_/')}/") for path in paths):
        raise _order_error(prefixes, paths)
    (prefix,), numbers = prefixes, sorted({int(match[1]) for match in block_matches.values()})
    return [[f"{prefix}{number}/"] for number in numbers]


def _blocks_of_stages(paths, stage_matches):
    """Returns the blocks of all stages, in order from the input.

    A downsampling layer counts as a block, before the other blocks of its stage.

    Args:
        paths: The paths of the variables, without the model's name.
        stage_matches: The paths with the name of a stage -> the match of `_STAGE`.
    """
    stages = sorted({int(match["stage"]) for match in stage_matches.values()})
    downsampling_matches = {
        path: downsampling
        for path in paths
        if path not in stage_matches and (downsampling := _DOWNSAMPLING.match(path))
    }
    downsampling_numbers = sorted({int(match["number"]) for match in downsampling_matches.values()})
    roots = sorted(
        {match["root"] for match in (*stage_matches.values(), *downsampling_matches.values())}
    )
    if len(roots) > 1 or len(downsampling_numbers) > len(stages):
        raise _order_error([f"{root}stage" for root in roots], paths)
    # Downsampling layers and stages are paired from the last on: if there is one layer less than
    # stages, the first stage has none before it.
    stage_after = dict(zip(reversed(downsampling_numbers), reversed(stages), strict=False))
    prefixes_by_position: dict[tuple[int, int], list[str]] = {}
    for match in stage_matches.values():
        position = int(match["stage"]), int(match["block"] or -1)
        prefixes_by_position.setdefault(position, []).append(match[0])
    for match in downsampling_matches.values():
        prefixes_by_position.setdefault((stage_after[int(match["number"])], -1), []).append(
            match[0]
        )
    return [
        list(dict.fromkeys(prefixes_by_position[position]))
        for position in sorted(prefixes_by_position)
    ]


def _order_error(prefixes, paths):
    """Returns the error for paths without exactly one stack of numbered blocks."""
    prefixes_text = ", ".join(map(repr, prefixes)) or f"none in paths such as {paths[0]!r}"
    return ValueError(
        "layer_decay needs one stack of blocks that are all numbered, such as transformer_layer_0, "
        f"transformer/layer_0 or, in stages, stage_0_block_0, and found {prefixes_text}. Write the "
        "dict of treatments by hand."
    )
