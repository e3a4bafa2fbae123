"""Finds the blocks of an encoder, in order from the input, by the names of its variables."""

import re
from collections.abc import Sequence

_BLOCK = re.compile(r"(?:layer|block)s?[_/]?(\d+)/", re.IGNORECASE)
# Names such as ConvNeXt's `stage_0_block_1_layernorm`. The name of a downsampling layer contains
# the stage that follows the layer (`_STAGE`), or only a number (`_DOWNSAMPLING`).
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

    The blocks are numbered in one stack, such as `layer_0`, or in each of several stages, such as
    `stage_0_block_0`.

    Args:
        paths: The paths of the variables, in any order, without the model's name.

    Returns:
        For each block a list of path prefixes, with which the paths of its variables begin.

    Raises:
        ValueError: if there are no numbered blocks, more than one stack of them, or blocks without
            a number.
    """
    stage_matches = {path: match for path in paths if (match := _STAGE.match(path))}
    if any(match["block"] for match in stage_matches.values()):
        return _blocks_of_stages(paths, stage_matches)
    block_matches = {path: match for path in paths if (match := _BLOCK.search(path))}
    prefixes = sorted({path[: match.start(1)] for path, match in block_matches.items()})
    # Keras gives the first of several layers of one name no number (`block`, `block_1`). It would
    # be taken for a layer outside the blocks, so its presence is an error.
    if len(prefixes) != 1 or any(path.startswith(f"{prefixes[0].rstrip('_/')}/") for path in paths):
        raise _order_error(prefixes, paths)
    (prefix,), numbers = prefixes, sorted({int(match[1]) for match in block_matches.values()})
    return [[f"{prefix}{number}/"] for number in numbers]


def _blocks_of_stages(paths, stage_matches):
    """Returns the blocks of all stages, in order from the input.

    A downsampling layer counts as a block, before the other blocks of its stage. Raises ValueError
    if there are several stacks of stages, or more downsampling layers than stages.

    Args:
        paths: The paths of the variables, without the model's name.
        stage_matches: Path that names a stage -> its match with the regex `_STAGE`.
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
    # Downsampling layers are paired with stages from the last stage to the first. If there is one
    # layer fewer than stages, the first stage has no such layer.
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
    """Returns the error for paths without exactly one stack of numbered blocks.

    Args:
        prefixes: The beginnings of the names of the numbered blocks that were found.
        paths: The paths of the variables.
    """
    prefixes_text = ", ".join(map(repr, prefixes)) or f"none in paths such as {paths[0]!r}"
    return ValueError(
        "layer_decay needs one stack of blocks that are all numbered, such as transformer_layer_0, "
        f"transformer/layer_0 or, in stages, stage_0_block_0, and found {prefixes_text}. Write the "
        "dict of treatments by hand."
    )
