"""What a search trains on, and what it holds out to judge by."""

import math
from collections.abc import Iterator
from typing import Any

from tf_lamb.api.data import Arrays, checksum, mapped, size_of, source
from tf_lamb.core import checks

MOST_HELD_OUT = 8192
BLOCKS = 16  # of the held-out examples: their scatter is the error of a comparison
WHOLE = 8  # of a block's size where it has enough: devices that share a call divide it
COMPARED = 64  # examples to train on, by which data are told apart


class Examples:
    """What a model is trained on, and what is held out of it.

    That is given, or a tenth, 8,192 at most: of arrays at random, of batches the first. The devices
    that share a call divide each block.

    Attributes:
        examples: How many a pass over `data` has.
        training: How many of them are not held out.
        blocks: The held-out examples, in `BLOCKS` batches of one size.
        is_py_dataset: Whether it is one, whose inputs alone `fit` of Keras 3 leaves in a tuple.
        written: The data as a line of code has them.
    """

    def __init__(
        self, data: Any, held_out: Any = None, examples: int | None = None, devices: int = 1
    ):
        if examples is not None:
            examples = checks.integer("examples", examples, most=math.inf)
        self._told = examples
        self._source = source("data", data)
        self.examples = examples or self._source.count()
        # Arrays may be a part of what an epoch has.
        there = self._source.count() if isinstance(self._source, Arrays) else self.examples
        if held_out is None:
            wanted = min(there // 10, MOST_HELD_OUT)
            held = self._source.hold_out(wanted)
            self.training = there - wanted
        else:
            held_source = source("validation_data", held_out)
            wanted, self.training, is_arrays = 0, there, isinstance(held_source, Arrays)
            held = held_source.hold_out(held_source.count() if is_arrays else MOST_HELD_OUT)
        if (count := size_of(held) if held else 0) < wanted:
            raise ValueError(
                f"data has {count:,} examples, fewer than a tenth of examples={self.examples:,}: "
                "pass those of one pass."
            )
        if count < (least := BLOCKS * devices):
            raise ValueError(
                f"{count} held-out examples are too few to compare losses on; {least} are the "
                "least. Pass validation_data=(x, y), or more data."
            )
        part = count // BLOCKS
        if part >= WHOLE**2:
            part -= part % WHOLE
        part -= part % devices
        cuts = [slice(i * part, (i + 1) * part) for i in range(BLOCKS)]
        self.blocks = [mapped(lambda each, cut=cut: each[cut], held) for cut in cuts]
        self.held_out = part * BLOCKS
        self.is_py_dataset = self._source.is_py_dataset
        self.written = "(x, y)" if len(held) > 1 else "(x,)"

    def batches(self, size: int, seed: int) -> Iterator[tuple]:
        """Batches of this many examples, without end, in an order by the seed.

        Arrays are shuffled anew for each pass. Of batches each is drawn from twice as many
        examples, and a pass ends at `examples`, so that endless data do not bring what is held out.
        """
        return self._source.batches(size, seed, self._told)

    def checksum(self) -> str:
        """Of held-out examples, and of those trained on first where each pass begins with them."""
        held = checksum(self.blocks)
        first, again = (checksum(next(self.batches(COMPARED, 0)), held) for _ in range(2))
        return f"{first if first == again else held:08x}"
