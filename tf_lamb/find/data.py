"""Splits the data of a search into training examples and held-out examples.

A search compares its training runs by their losses on the held-out examples.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from tf_lamb.api.data import Arrays, checksum, first_not_finite, make_reader, map_arrays, size_of
from tf_lamb.core import checks
from tf_lamb.find.feeds import Feed, make_feed

MAX_HELD_OUT = 8192  # the most examples that are held out
# The held-out examples are cut into this number of blocks. When two runs are compared, the scatter
# of the loss differences over the blocks gives the error of the comparison.
BLOCK_COUNT = 16
# A block of BLOCK_MULTIPLE**2 examples or more is cut to a multiple of this number, so that
# devices can share the block evenly.
BLOCK_MULTIPLE = 8
CHECKSUM_EXAMPLES = 64  # training examples that are part of the checksum of the data


@dataclasses.dataclass(frozen=True)
class DataCode:
    """Holds the source code of the arguments that pass the user's data to `find_rate` and `fit`.

    The result of a search uses it in the script that it prints, which trains the model.

    Attributes:
        data: The `data` argument of `find_rate`, such as "(x, y)".
        search_arguments: The other arguments of `find_rate` that describe the data, each after a
            comma, such as ", examples=1000".
        fit_template: The arguments of `fit`. The placeholder `{batch}` stands for the examples of a
            batch, and `{steps}` for the batches of an epoch.
        note_template: A comment for the line that calls `fit`, with the same placeholders; "" for
            none.
        examples: The number of examples in an epoch.
    """

    data: str
    search_arguments: str
    fit_template: str
    note_template: str
    examples: int

    def at_batch(self, batch: int) -> tuple[str, str]:
        """Returns the arguments and the comment for a call of `fit` at a batch size, as text.

        Args:
            batch: The number of examples in a batch.
        """
        values = {"batch": batch, "steps": math.ceil(self.examples / batch)}
        return self.fit_template.format(**values), self.note_template.format(**values)


class Examples:
    """Holds the examples that a model is trained on, and those that are held out.

    The held-out examples come from the user's `validation_data`. Without it, they are a tenth of
    `data`, 8,192 at most: random examples if `data` are arrays, the first ones if `data` are
    batches. They are cut into blocks, whose size is a multiple of the number of devices.

    Args:
        data: Arrays in a tuple, or batches that can be read again.
        validation_data: The user's `validation_data`. Defaults to None: a part of `data`.
        examples: The number of examples in a pass over `data`. Defaults to None: counted.
        devices: The number of devices that share a batch. Defaults to 1.

    Attributes:
        examples: The number of examples in a pass over `data`.
        training_count: The number of examples to train on, which are not held out.
        blocks: The held-out examples, in `BLOCK_COUNT` batches of one size.
        held_out_count: The number of examples in all blocks.
        is_py_dataset: Whether `data` is a `PyDataset` of Keras 3. A model's `train_step` gets the
            inputs of a `PyDataset` without targets in a tuple.
        data_code: The source code of the arguments that pass `data` to `find_rate` and `fit`, for
            the script that the result of a search prints.
        source: The object that reads `data`.

    Raises:
        TypeError: for data that can be read only once, and for sparse or ragged data.
        ValueError: if `data` do not say how many examples they have, if they have fewer than a
            tenth of `examples`, or if there are too few held-out examples.
    """

    def __init__(
        self, data: Any, validation_data: Any = None, examples: int | None = None, devices: int = 1
    ):
        if examples is not None:
            examples = checks.integer("examples", examples, maximum=math.inf)
        self._user_examples = examples
        self.source = make_reader("data", data)
        self._validation_source: Any = None  # the object that reads validation_data
        self.examples = examples or self.source.count()
        # Arrays may hold only a part of the user's `examples` of an epoch.
        available = self.source.count() if isinstance(self.source, Arrays) else self.examples
        if validation_data is None:
            requested_count = min(available // 10, MAX_HELD_OUT)
            validation = self.source.hold_out(requested_count)
            self.training_count = available - requested_count
        else:
            self._validation_source = validation_source = make_reader(
                "validation_data", validation_data
            )
            requested_count, self.training_count, is_arrays = (
                0,
                available,
                isinstance(validation_source, Arrays),
            )
            validation = validation_source.hold_out(
                validation_source.count() if is_arrays else MAX_HELD_OUT
            )
        if (count := size_of(validation) if validation else 0) < requested_count:
            raise ValueError(
                f"data has {count:,} examples, fewer than a tenth of examples={self.examples:,}: "
                "pass those of one pass."
            )
        if count < (minimum := BLOCK_COUNT * devices):
            raise ValueError(
                f"{count} held-out examples are too few to compare losses on; {minimum} are the "
                "least. Pass validation_data=(x, y), or more data."
            )
        block_size = count // BLOCK_COUNT
        if block_size >= BLOCK_MULTIPLE**2:
            block_size -= block_size % BLOCK_MULTIPLE
        block_size -= block_size % devices
        cuts = [slice(i * block_size, (i + 1) * block_size) for i in range(BLOCK_COUNT)]
        self.blocks = [map_arrays(lambda array, cut=cut: array[cut], validation) for cut in cuts]
        self.held_out_count = block_size * BLOCK_COUNT
        self.is_py_dataset = self.source.is_py_dataset
        self.data_code = _data_code(
            self.source, len(validation), self.examples, examples, validation_data is not None
        )

    def batches(self, size: int, seed: int) -> Iterator[tuple]:
        """Returns training batches without end, in an order that the seed determines.

        Arrays are shuffled for each pass. Other data are read into a buffer of at least twice the
        examples of a batch, from which each batch is drawn at random. A pass over them ends after
        the user's `examples`. If endless data repeat, reading on would yield the held-out examples.

        Args:
            size: The number of examples in a batch.
            seed: Seed of the order.
        """
        return self.source.batches(size, seed, self._user_examples)

    def validation_feed(self, host: Any) -> Feed | None:
        """Returns a `Feed`, which makes the validation data of `fit` in batches of any size.

        The result is None if the user passed no `validation_data`, or ones that do not say how many
        batches they have, such as endless ones.

        Args:
            host: The Keras of the model, Keras 3 or tf_keras.

        Raises:
            ValueError: if a batch of `validation_data` has arrays of different lengths.
        """
        source = self._validation_source
        if source is None:
            return None
        if isinstance(source, Arrays):
            return make_feed(source, source.length, host)
        if source.batch_count is None:
            return None
        return make_feed(source, source.count(), host)

    def not_finite_message(self) -> str:
        """Returns where the data have a NaN or infinite value, as text; "" if they have none.

        Only the first such value is named. The data are read for one pass, and then the examples
        that are held out of the user's `validation_data`.
        """
        for name, reader, end in (
            ("data", self.source, self._user_examples),
            ("validation_data", self._validation_source, MAX_HELD_OUT),
        ):
            if reader is None:
                continue
            if isinstance(reader, Arrays):
                end = None  # all rows of arrays are read, whatever the length of an epoch
            position = 0
            for batch in reader.one_pass():
                first_finding = first_not_finite(batch)
                if first_finding:
                    example, part, value = first_finding
                    return f"example {position + example:,} of {name} has {value} in {part}"
                position += size_of(batch)
                if end and position >= end:
                    break
        return ""

    def checksum(self) -> str:
        """Returns the checksum of the data, in hexadecimal.

        The checksum covers the held-out examples. It also covers the first training batch for seed
        0, unless two passes over the data yield different ones, as for data that are shuffled or
        augmented anew in each pass.
        """
        held_out_checksum = checksum(self.blocks)
        first_pass, second_pass = (
            checksum(next(self.batches(CHECKSUM_EXAMPLES, 0)), held_out_checksum) for _ in range(2)
        )
        return f"{first_pass if first_pass == second_pass else held_out_checksum:08x}"


def _data_code(source, part_count, examples_of_epoch, examples, has_validation_data):
    """Returns the source code of the arguments that pass the user's data to `find_rate` and `fit`.

    Args:
        source: The object that reads the data.
        part_count: The number of parts of a batch, such as 2 for (x, y).
        examples_of_epoch: The number of examples in an epoch.
        examples: The user's `examples`, or None.
        has_validation_data: Whether the user gave `validation_data`.

    Returns:
        A `DataCode`, from which the result of a search prints a script.
    """
    arguments = f", examples={examples}" if examples else ""
    arguments += ", validation_data=validation_data" if has_validation_data else ""
    if isinstance(source, Arrays):
        array_names = ("x", "y", "sample_weight")[:part_count]
        data_argument = f"({', '.join(array_names)})" if part_count > 1 else "(x,)"
        fit_arguments = ", ".join(
            (*array_names[:2], *(f"{name}={name}" for name in array_names[2:]))
        )
        return DataCode(
            data_argument,
            arguments,
            f"{fit_arguments}, batch_size={{batch}}",
            "",
            examples_of_epoch,
        )
    if hasattr(source.user_data, "rebatch"):
        endless = ", steps_per_epoch={steps}" if examples else ""
        return DataCode(
            "data", arguments, f"data.rebatch({{batch}}){endless}", "", examples_of_epoch
        )
    if hasattr(source.user_data, "__getitem__") and not isinstance(source.user_data, list):
        return DataCode(
            "data", arguments, "data", "data gives batches of {batch}", examples_of_epoch
        )
    note_template = "batches: those of data, {batch} each, without end"
    return DataCode(
        "data", arguments, "batches, steps_per_epoch={steps}", note_template, examples_of_epoch
    )
