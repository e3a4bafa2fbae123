"""How deep a variable lies in an encoder, by the names of its blocks: one stack, or stages."""

import re
from collections.abc import Sequence

_BLOCK = re.compile(r"(?:layer|block)s?[_/]?(\d+)/", re.IGNORECASE)
# ConvNeXt's `stage_0_block_1_layernorm`, and what makes an image smaller: between the stages by a
# number of its own, or inside the stage that follows.
_IN_STAGE = re.compile(
    r"(?P<root>.*?)stages?[_/]?(?P<stage>\d+)[_/]"
    r"(?:blocks?[_/]?(?P<block>\d+)|downsampl[a-z]*)[_/]",
    re.IGNORECASE,
)
_BETWEEN = re.compile(
    r"(?P<root>.*?)downsampl[a-z]*(?:[_/][a-z]+)*?[_/]?(?P<number>\d+)[_/]", re.IGNORECASE
)


def blocks_in_order(paths: Sequence[str]) -> list[list[str]]:
    """The blocks from the input on, each as the beginnings of the paths of its variables.

    Args:
        paths: Of the variables, in any order, without the model's name.

    Raises:
        ValueError: where the names tell of no order, or of several.
    """
    staged = {path: found for path in paths if (found := _IN_STAGE.match(path))}
    if any(found["block"] for found in staged.values()):
        return _of_stages(paths, staged)
    blocks = {path: found for path in paths if (found := _BLOCK.search(path))}
    stems = sorted({path[: found.start(1)] for path, found in blocks.items()})
    # Names that the framework has numbered begin without a number: it would be the head's.
    if len(stems) != 1 or any(path.startswith(f"{stems[0].rstrip('_/')}/") for path in paths):
        raise _refusal(stems, paths)
    (stem,), numbers = stems, sorted({int(found[1]) for found in blocks.values()})
    return [[f"{stem}{number}/"] for number in numbers]


def _of_stages(paths, staged):
    """The blocks of all stages; what makes the image smaller is one, before its stage."""
    stages = sorted({int(found["stage"]) for found in staged.values()})
    between = {p: f for p in paths if p not in staged and (f := _BETWEEN.match(p))}
    numbers = sorted({int(found["number"]) for found in between.values()})
    roots = sorted({found["root"] for found in (*staged.values(), *between.values())})
    if len(roots) > 1 or len(numbers) > len(stages):
        raise _refusal([f"{root}stage" for root in roots], paths)
    # From the last on: one number less than stages has no layer before the first.
    before = dict(zip(reversed(numbers), reversed(stages), strict=False))
    places: dict[tuple[int, int], list[str]] = {}
    for found in staged.values():
        place = int(found["stage"]), int(found["block"] or -1)
        places.setdefault(place, []).append(found[0])
    for found in between.values():
        places.setdefault((before[int(found["number"])], -1), []).append(found[0])
    return [list(dict.fromkeys(places[place])) for place in sorted(places)]


def _refusal(stems, paths):
    seen = ", ".join(map(repr, stems)) or f"none in paths such as {paths[0]!r}"
    return ValueError(
        "layer_decay needs one stack of blocks that are all numbered, such as transformer_layer_0, "
        f"transformer/layer_0 or, in stages, stage_0_block_0, and found {seen}. Write the dict of "
        "treatments by hand."
    )
