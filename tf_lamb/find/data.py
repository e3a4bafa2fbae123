"""Splits the data of a search into examples to train on and held-out ones to compare runs by."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from tf_lamb.api.data import Arrays, checksum, first_not_finite, mapped, size_of, source
from tf_lamb.core import checks
from tf_lamb.find.feeds import Feed, feed_of

MOST_HELD_OUT = 8192  # examples
BLOCKS = 16  # blocks of held-out examples; the scatter of their losses is the error of a comparison
# The size of a block of WHOLE**2 examples or more is a multiple of this number, so that devices can
# share the block evenly.
WHOLE = 8
COMPARED = 64  # training examples that are part of the checksum of the data


@dataclasses.dataclass(frozen=True)
class Written:
    """Holds the user's data as source code, for the script that a search proposes.

    Attributes:
        data: The `data` argument of a search, such as "(x, y)".
        more: The other arguments of a search that describe the data, each after a comma.
        fit: The arguments of `fit`, with the placeholders `{batch}`, examples of a batch, and
            `{steps}`, batches of an epoch.
        note: A comment for the line of `fit`, with the same placeholders; "" for none.
        examples: Examples of an epoch.
    """

    data: str
    more: str
    fit: str
    note: str
    examples: int

    def at(self, batch: int) -> tuple[str, str]:
        """Returns the arguments of `fit` at a batch of this many examples, and the note."""
        places = {"batch": batch, "steps": math.ceil(self.examples / batch)}
        return self.fit.format(**places), self.note.format(**places)


class Examples:
    """Holds the examples that a model is trained on, and those that are held out.

    The held-out examples are the user's `validation_data`, or a tenth of the data, 8,192 at most:
    random ones of arrays, the first ones of batches. They are cut into blocks whose size is a
    multiple of the number of devices.

    Args:
        data: Arrays in a tuple, or batches that can be read again.
        held_out: The user's `validation_data`. Defaults to None: a part of `data`.
        examples: Examples of a pass over `data`. Defaults to None: counted.
        devices: The number of devices that share a batch. Defaults to 1.

    Attributes:
        examples: Examples of a pass over `data`.
        training: The number of examples to train on, which are not held out.
        blocks: The held-out examples, in `BLOCKS` batches of one size.
        held_out: The number of examples in all blocks.
        is_py_dataset: Whether `data` is a `PyDataset` of Keras 3. If it has inputs but no targets,
            `fit` leaves the inputs in a tuple.
        written: The data as source code.
        source: The reader of `data`.

    Raises:
        TypeError: for data that can be read only once, and for sparse or ragged data.
        ValueError: if data do not say how many examples they have, if they have fewer than a tenth
            of `examples`, or if there are too few to hold out.
    """

    def __init__(
        self, data: Any, held_out: Any = None, examples: int | None = None, devices: int = 1
    ):
        if examples is not None:
            examples = checks.integer("examples", examples, maximum=math.inf)
        self._user_examples = examples
        self.source = source("data", data)
        self._validation_source: Any = None  # the reader of validation_data
        self.examples = examples or self.source.count()
        # Arrays may be only a part of the examples of an epoch.
        available = self.source.count() if isinstance(self.source, Arrays) else self.examples
        if held_out is None:
            requested = min(available // 10, MOST_HELD_OUT)
            validation = self.source.hold_out(requested)
            self.training = available - requested
        else:
            self._validation_source = validation_source = source("validation_data", held_out)
            requested, self.training, is_arrays = (
                0,
                available,
                isinstance(validation_source, Arrays),
            )
            validation = validation_source.hold_out(
                validation_source.count() if is_arrays else MOST_HELD_OUT
            )
        if (count := size_of(validation) if validation else 0) < requested:
            raise ValueError(
                f"data has {count:,} examples, fewer than a tenth of examples={self.examples:,}: "
                "pass those of one pass."
            )
        if count < (minimum := BLOCKS * devices):
            raise ValueError(
                f"{count} held-out examples are too few to compare losses on; {minimum} are the "
                "least. Pass validation_data=(x, y), or more data."
            )
        block_size = count // BLOCKS
        if block_size >= WHOLE**2:
            block_size -= block_size % WHOLE
        block_size -= block_size % devices
        cuts = [slice(i * block_size, (i + 1) * block_size) for i in range(BLOCKS)]
        self.blocks = [mapped(lambda array, cut=cut: array[cut], validation) for cut in cuts]
        self.held_out = block_size * BLOCKS
        self.is_py_dataset = self.source.is_py_dataset
        self.written = _written(
            self.source, len(validation), self.examples, examples, held_out is not None
        )

    def batches(self, size: int, seed: int) -> Iterator[tuple]:
        """Returns training batches without end, in an order that the seed determines.

        Arrays are shuffled for each pass. From other data, a batch is drawn at random from at least
        twice as many examples, and a pass ends at the user's `examples`: if endless data repeat,
        reading on would bring the held-out examples.

        Args:
            size: Examples of a batch.
            seed: Seed of the order.
        """
        return self.source.batches(size, seed, self._user_examples)

    def given_validation(self, host: Any) -> Feed | None:
        """Returns the `Feed` of `validation_data`; None if the user passed none, or endless ones.

        Args:
            host: The Keras of the model, Keras 3 or tf_keras.
        """
        if self._validation_source is None:
            return None
        try:
            is_arrays = isinstance(self._validation_source, Arrays)
            count = self._validation_source.length if is_arrays else self._validation_source.count()
            return feed_of(self._validation_source, count, host)
        except ValueError:
            return None

    def not_finite(self) -> str:
        """Reads a pass and names an example that is NaN or infinite; "" if there is none."""
        for name, reader in (("data", self.source), ("validation_data", self._validation_source)):
            if reader is None:
                continue
            position = 0
            for batch in reader.one_pass():
                finding = first_not_finite(batch)
                if finding:
                    example, part, value = finding
                    return f"example {position + example:,} of {name} has {value} in {part}"
                position += size_of(batch)
                if self._user_examples and position >= self._user_examples:
                    break
        return ""

    def checksum(self) -> str:
        """Returns the checksum of the data, in hexadecimal.

        It covers the held-out examples. It also covers the first training examples if they are the
        same in two passes. They are not where the data are shuffled or augmented in each pass.
        """
        held_out_checksum = checksum(self.blocks)
        first_pass, second_pass = (
            checksum(next(self.batches(COMPARED, 0)), held_out_checksum) for _ in range(2)
        )
        return f"{first_pass if first_pass == second_pass else held_out_checksum:08x}"


def _written(source, parts, examples_of_epoch, examples, validated):
    """Returns the data as source code.

    Args:
        source: The reader of the data.
        parts: The parts of a batch: 2 for (x, y).
        examples_of_epoch: Examples of an epoch.
        examples: The user's `examples`, or None.
        validated: Whether the user gave `validation_data`.
    """
    arguments = f", examples={examples}" if examples else ""
    arguments += ", validation_data=validation_data" if validated else ""
    if isinstance(source, Arrays):
        names = ("x", "y", "sample_weight")[:parts]
        data = f"({', '.join(names)})" if parts > 1 else "(x,)"
        fit_arguments = ", ".join((*names[:2], *(f"{name}={name}" for name in names[2:])))
        return Written(
            data, arguments, f"{fit_arguments}, batch_size={{batch}}", "", examples_of_epoch
        )
    if hasattr(source.user_data, "rebatch"):
        endless = ", steps_per_epoch={steps}" if examples else ""
        return Written(
            "data", arguments, f"data.rebatch({{batch}}){endless}", "", examples_of_epoch
        )
    if hasattr(source.user_data, "__getitem__") and not isinstance(source.user_data, list):
        return Written(
            "data", arguments, "data", "data gives batches of {batch}", examples_of_epoch
        )
    note = "batches: those of data, {batch} each, without end"
    return Written("data", arguments, "batches, steps_per_epoch={steps}", note, examples_of_epoch)
