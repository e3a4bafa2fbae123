"""Learning rates that fall from the head of an encoder to its embeddings."""

import re
from collections.abc import Sequence

_BLOCK = re.compile(r"(?:layer|block)s?[_/]?(\d+)/", re.IGNORECASE)
_EMBEDDINGS = "embed"


def layer_decay(paths: Sequence[str], decay: float) -> dict[str, dict[str, float]]:
    """Pattern -> {"rate": factor}: of N blocks the i-th, from 0, has decay^(N - i).

    Embeddings have decay^(N + 1), and what is neither has no pattern, so 1.

    Args:
        paths: of the variables, without the name of the model.
        decay: in [0, 1].

    Raises:
        ValueError: where there is not one stack of numbered blocks.
    """
    blocks = {path: found for path in paths if (found := _BLOCK.search(path))}
    stems = sorted({path[: found.start(1)] for path, found in blocks.items()})
    # Names that the framework has numbered begin without a number: it would be the head's.
    if len(stems) != 1 or any(path.startswith(f"{stems[0].rstrip('_/')}/") for path in paths):
        seen = ", ".join(map(repr, stems)) or f"none in paths such as {paths[0]!r}"
        raise ValueError(
            "layer_decay needs one stack of blocks that are all numbered, such as "
            f"transformer_layer_0 or transformer/layer_0, and found {seen}. Write the dict of "
            "treatments by hand."
        )
    (stem,), numbers = stems, sorted({int(found[1]) for found in blocks.values()})
    depth = len(numbers)
    rates = {
        f"^{re.escape(stem)}{number}/": decay ** (depth - i) for i, number in enumerate(numbers)
    }
    if any(_EMBEDDINGS in path for path in paths if path not in blocks):
        rates[_EMBEDDINGS] = decay ** (depth + 1)
    return {pattern: {"rate": rate} for pattern, rate in rates.items()}
