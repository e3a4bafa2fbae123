"""What a search trains on, and what it holds out to judge by."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from tf_lamb.api.data import Arrays, checksum, first_not_finite, mapped, size_of, source
from tf_lamb.api.find.feeds import Feed, feed_of
from tf_lamb.core import checks

MOST_HELD_OUT = 8192
BLOCKS = 16  # of the held-out examples: their scatter is the error of a comparison
WHOLE = 8  # of a block's size where it has enough: devices that share a call divide it
COMPARED = 64  # examples to train on, by which data are told apart


@dataclasses.dataclass(frozen=True)
class Written:
    """The data as lines of code have them.

    Attributes:
        data: What a search is given.
        more: The other arguments of a search that tell of data.
        fit: What `fit` is given, with places for the batch and the steps of an epoch.
        note: On the same line, likewise.
        examples: Of an epoch.
    """

    data: str
    more: str
    fit: str
    note: str
    examples: int

    def at(self, batch: int) -> tuple[str, str]:
        """What `fit` is given at a batch, and the note."""
        places = {"batch": batch, "steps": math.ceil(self.examples / batch)}
        return self.fit.format(**places), self.note.format(**places)


class Examples:
    """What a model is trained on, and what is held out of it.

    That is given, or a tenth, 8,192 at most: of arrays at random, of batches the first. The devices
    that share a call divide each block.

    Attributes:
        examples: How many a pass over `data` has.
        training: How many of them are not held out.
        blocks: The held-out examples, in `BLOCKS` batches of one size.
        is_py_dataset: Whether it is one, whose inputs alone `fit` of Keras 3 leaves in a tuple.
        written: The data as lines of code have them.
        source: What reads `data`.
    """

    def __init__(
        self, data: Any, held_out: Any = None, examples: int | None = None, devices: int = 1
    ):
        if examples is not None:
            examples = checks.integer("examples", examples, most=math.inf)
        self._told = examples
        self.source = source("data", data)
        self._held: Any = None  # the source of validation_data
        self.examples = examples or self.source.count()
        # Arrays may be a part of what an epoch has.
        there = self.source.count() if isinstance(self.source, Arrays) else self.examples
        if held_out is None:
            wanted = min(there // 10, MOST_HELD_OUT)
            held = self.source.hold_out(wanted)
            self.training = there - wanted
        else:
            self._held = held_source = source("validation_data", held_out)
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
        self.is_py_dataset = self.source.is_py_dataset
        self.written = _written(
            self.source, len(held), self.examples, examples, held_out is not None
        )

    def batches(self, size: int, seed: int) -> Iterator[tuple]:
        """Batches of this many examples, without end, in an order by the seed.

        Arrays are shuffled anew for each pass. Of batches each is drawn from twice as many
        examples, and a pass ends at `examples`, so that endless data do not bring what is held out.
        """
        return self.source.batches(size, seed, self._told)

    def given_validation(self, host: Any) -> Feed | None:
        """What `fit` evaluates after each epoch; None where there is none, or it has no end."""
        if self._held is None:
            return None
        try:
            is_arrays = isinstance(self._held, Arrays)
            count = self._held.length if is_arrays else self._held.count()
            return feed_of(self._held, count, host)
        except ValueError:
            return None

    def not_finite(self) -> str:
        """Names an example that is no number, or infinite, for somebody to look at; "" of none.

        It reads a pass.
        """
        for name, read in (("data", self.source), ("validation_data", self._held)):
            if read is None:
                continue
            at = 0
            for batch in read.passed():
                found = first_not_finite(batch)
                if found:
                    example, part, value = found
                    return f"example {at + example:,} of {name} has {value} in {part}"
                at += size_of(batch)
                if self._told and at >= self._told:
                    break
        return ""

    def checksum(self) -> str:
        """Of held-out examples, and of those trained on first where each pass begins with them."""
        held = checksum(self.blocks)
        first, again = (checksum(next(self.batches(COMPARED, 0)), held) for _ in range(2))
        return f"{first if first == again else held:08x}"


def _written(source, parts, counted, told, validated):
    """Lines of code for data of this kind, of so many examples, which may be told."""
    more = f", examples={told}" if told else ""
    more += ", validation_data=validation_data" if validated else ""
    if isinstance(source, Arrays):
        names = ("x", "y", "sample_weight")[:parts]
        data = f"({', '.join(names)})" if parts > 1 else "(x,)"
        named = ", ".join((*names[:2], *(f"{name}={name}" for name in names[2:])))
        return Written(data, more, f"{named}, batch_size={{batch}}", "", counted)
    if hasattr(source.given, "rebatch"):
        endless = ", steps_per_epoch={steps}" if told else ""
        return Written("data", more, f"data.rebatch({{batch}}){endless}", "", counted)
    if hasattr(source.given, "__getitem__") and not isinstance(source.given, list):
        return Written("data", more, "data", "data gives batches of {batch}", counted)
    note = "batches: those of data, {batch} each, without end"
    return Written("data", more, "batches, steps_per_epoch={steps}", note, counted)
