"""Makes input for `fit` from a user's data, at any batch size, so that `fit` can be timed."""

import itertools
from collections.abc import Iterator
from typing import Any

from tf_lamb.api.data import Arrays, Batches, Rebatched, batch_tuple, map_arrays, size_of
from tf_lamb.find.goodput.costs import calls_per_epoch


def make_feed(source: Arrays | Batches, examples: int, host: Any) -> "Feed":
    """Returns an object that makes the input of `fit`; its class depends on the type of the data.

    Args:
        source: The object that reads the user's data, an `Arrays` or a `Batches`.
        examples: The number of examples in an epoch.
        host: The Keras of the model, Keras 3 or tf_keras.
    """
    if isinstance(source, Arrays):
        return ArrayFeed(source, examples)
    data = source.user_data
    if hasattr(data, "element_spec") and hasattr(data, "rebatch"):
        return DatasetFeed(data, source, examples)
    sequence_class = getattr(host.utils, "PyDataset", None) or host.utils.Sequence
    if isinstance(data, sequence_class):
        return IndexedFeed(data, source, examples, sequence_class)
    return Feed(data, source, examples)


class Feed:
    """Makes the input of `fit` from a user's data, in batches of any size.

    This base class passes `fit` a generator, which joins or cuts the batches that the user's data
    yield. A timed step therefore includes the time to make these batches.

    Attributes:
        name: The kind of data, as a search prints it.
        has_pipeline: Whether a pipeline makes the batches; else they are rows of arrays.
        examples: The number of examples in an epoch.
        drop_remainder: Whether the last batch of an epoch is left out if it is smaller.
    """

    name = "a generator"
    has_pipeline = True
    drop_remainder = False

    def __init__(self, data: Any, source: Any, examples: int):
        self.data, self.source, self.examples = data, source, examples

    def steps_per_epoch(self, size: int) -> int:
        """Returns the number of steps of an epoch, if a batch has `size` examples."""
        return calls_per_epoch(self.examples, size, self.drop_remainder)

    def fit_arguments(self, size: int, steps: int) -> dict[str, Any]:
        """Returns the arguments, by name, with which `fit` trains on the user's data.

        Args:
            size: The number of examples in a batch.
            steps: The number of steps of an epoch.
        """
        return {"x": self._endless_batches(size), "steps_per_epoch": steps}

    def repeated_batch_arguments(self, size: int, steps: int) -> dict[str, Any]:
        """Returns the arguments of a `fit` on one batch, which is made once and then repeated.

        With them, no step of `fit` waits for its input to be made.

        Args:
            size: The number of examples in the batch.
            steps: The number of steps of an epoch.
        """
        batch = next(self._endless_batches(size))
        return {"x": (batch for _ in itertools.count()), "steps_per_epoch": steps}

    def validation_arguments(self, size: int, steps: int) -> dict[str, Any]:
        """Returns the arguments with which a `fit` evaluates on the user's data after each epoch.

        Args:
            size: The number of examples in a batch.
            steps: The number of steps of an evaluation.
        """
        arguments = self.fit_arguments(size, steps)
        is_endless = "steps_per_epoch" in arguments
        return {
            "validation_data": arguments["x"],
            **({"validation_steps": steps} if is_endless else {}),
        }

    def _endless_batches(self, size: int) -> Iterator[tuple]:
        """Yields batches without end. When the user's data end, it reads them again."""
        while True:
            rebatched = Rebatched(self.source.one_pass())
            while batch := rebatched.take(size):
                yield batch


class ArrayFeed(Feed):
    """Passes arrays to `fit`, which cuts them into batches itself."""

    name, has_pipeline = "arrays", False

    def __init__(self, source: Arrays, examples: int):
        super().__init__(None, source, min(examples, source.length))

    def fit_arguments(self, size: int, steps: int) -> dict[str, Any]:
        """See base class; `fit` cuts the arrays into batches itself."""
        arrays_by_name = zip(
            ("x", "y", "sample_weight"), self._first_rows(size, steps), strict=False
        )
        return {**dict(arrays_by_name), "batch_size": size}

    def validation_arguments(self, size: int, steps: int) -> dict[str, Any]:
        """See base class; `fit` cuts the arrays into batches itself."""
        return {"validation_data": self._first_rows(size, steps), "validation_batch_size": size}

    def _first_rows(self, size, steps):
        return self.source.first(min(size * steps, self.examples))


class DatasetFeed(Feed):
    """Passes a `tf.data.Dataset` to `fit`, rebatched to the batch size that is wanted."""

    name = "a tf.data.Dataset"

    def __init__(self, data: Any, source: Any, examples: int):
        super().__init__(data, source, examples)
        shapes: list = []
        map_arrays(lambda spec: shapes.append(spec.shape), batch_tuple(data.element_spec))
        self._static_size = shapes[0][0] if shapes and shapes[0].rank else None
        self.drop_remainder = self._static_size is not None
        self._user_batch_size: int | None = self._static_size

    def fit_arguments(self, size: int, steps: int) -> dict[str, Any]:
        """See base class; the dataset is rebatched if its batches do not have `size` examples."""
        if self._user_batch_size is None:
            self._user_batch_size = size_of(next(self.source.one_pass()))
        data = self.data
        if size != self._user_batch_size:
            data = data.rebatch(size, drop_remainder=self.drop_remainder)
        return {"x": self._prefetched(data.take(steps))}

    def repeated_batch_arguments(self, size: int, steps: int) -> dict[str, Any]:
        """See base class; the dataset caches the batch, and repeats it."""
        single_batch = self.data.rebatch(size, drop_remainder=self.drop_remainder).take(1).cache()
        return {"x": self._prefetched(single_batch.repeat(steps))}

    def _prefetched(self, data):
        """Returns a dataset with a prefetch at its end, if the user's dataset ends with one.

        The caller has added `take`, `rebatch` or `repeat` after the user's prefetch, so that a new
        one is needed at the end.

        Args:
            data: The dataset that the caller has made from the user's.
        """
        # seam: private API of TensorFlow 2.19 to 2.21. No public attribute shows whether a dataset
        # ends with a prefetch, but the name of its class does.
        return data.prefetch(2) if "Prefetch" in type(self.data).__name__ else data


class IndexedFeed(Feed):
    """Passes a `PyDataset`, or a `Sequence` of tf_keras, to `fit`.

    What `fit` gets has the same settings of `workers` as the user's data, so that input is made in
    as many threads or processes.
    """

    def __init__(self, data: Any, source: Any, examples: int, base_class: type):
        super().__init__(data, source, examples)
        self.name = f"a {base_class.__name__}"
        self._base_class, self._user_batch_size = base_class, size_of(next(source.one_pass()))
        names = ("workers", "use_multiprocessing", "max_queue_size")
        self._workers = {
            setting: getattr(data, setting) for setting in names if hasattr(data, setting)
        }

    def fit_arguments(self, size: int, steps: int) -> dict[str, Any]:
        """See base class; batches of the user's data are passed on, joined, or cut."""
        make_batch = (
            self.data.__getitem__ if size == self._user_batch_size else self._batch_maker(size)
        )
        return self._indexed_arguments(make_batch, steps)

    def repeated_batch_arguments(self, size: int, steps: int) -> dict[str, Any]:
        """See base class; the batch is the same at every index."""
        batch = next(self._endless_batches(size))
        return self._indexed_arguments(lambda i: batch, steps)

    def _indexed_arguments(self, make_batch, steps):
        return {
            "x": _indexed_class(self._base_class)(make_batch, steps, **self._workers),
            "shuffle": False,
        }

    def _batch_maker(self, size):
        """Returns a function from the index of a batch to the batch, which has `size` examples.

        The function joins or cuts the batches of the user's data that hold these examples. Each
        batch of the user's data is made once, and cached until its last example is used.
        """
        cached: dict[int, tuple] = {}

        def read_user_batch(index):
            if (batch := cached.get(index)) is None:
                batch = cached[index] = batch_tuple(self.data[index])
            return batch

        def make_batch(index):
            first_row, end_row = index * size, min((index + 1) * size, self.examples)
            user_indices = range(
                first_row // self._user_batch_size, -(-end_row // self._user_batch_size)
            )
            rows = Rebatched(read_user_batch(user_index) for user_index in user_indices)
            if skipped := first_row % self._user_batch_size:
                rows.take(skipped)
            batch = rows.take(end_row - first_row)
            for user_index in user_indices:
                if (user_index + 1) * self._user_batch_size <= end_row or end_row == self.examples:
                    cached.pop(user_index, None)
            return batch

        return make_batch


def _indexed_class(base_class):
    """Returns a subclass of `PyDataset` or `Sequence` that gets each batch from a function."""

    class Indexed(base_class):  # type: ignore[misc, valid-type]
        def __init__(self, make_batch, steps, **workers):
            if workers:
                super().__init__(**workers)
            self._make_batch, self._steps = make_batch, steps

        def __len__(self):
            return self._steps

        def __getitem__(self, index):
            return self._make_batch(index)

    return Indexed
