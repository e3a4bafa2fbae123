"""Makes the input of `fit` at any batch size from a user's data, in order to time `fit`."""

import itertools
from collections.abc import Iterator
from typing import Any

from tf_lamb.api.data import Arrays, Batches, Rebatched, mapped, parts_of, size_of
from tf_lamb.find.goodput.costs import calls_per_epoch


def feed_of(source: Arrays | Batches, examples: int, host: Any) -> "Feed":
    """Returns the `Feed` that is for this kind of data.

    Args:
        source: The reader of the data.
        examples: Examples of an epoch.
        host: The Keras of the model, Keras 3 or tf_keras.
    """
    if isinstance(source, Arrays):
        return ArrayFeed(source, examples)
    data = source.user_data
    if hasattr(data, "element_spec") and hasattr(data, "rebatch"):
        return DatasetFeed(data, source, examples)
    indexed = getattr(host.utils, "PyDataset", None) or host.utils.Sequence
    if isinstance(data, indexed):
        return IndexedFeed(data, source, examples, indexed)
    return Feed(data, source, examples)


class Feed:
    """Makes the input of `fit`, in batches of any size. This base class passes a generator.

    A batch of another size is joined or cut from the batches of the user's data. So what the user's
    pipeline does for each of its batches is timed once for each of these, whatever the size.

    Attributes:
        name: The kind of data, as a search prints it.
        has_work: Whether a pipeline makes the batches; else they are rows of arrays.
        examples: Examples of an epoch.
        drops: Whether the last batch of an epoch is left out if it is smaller.
    """

    name = "a generator"
    has_work = True
    drops = False

    def __init__(self, data: Any, source: Any, examples: int):
        self.data, self.source, self.examples = data, source, examples

    def steps(self, size: int) -> int:
        """Returns the steps of an epoch at a batch of this many examples."""
        return calls_per_epoch(self.examples, size, self.drops)

    def of(self, size: int, steps: int) -> dict[str, Any]:
        """Returns the arguments of a `fit` on the data.

        Args:
            size: Examples of a batch.
            steps: Steps of an epoch.
        """
        return {"x": self._anew(size), "steps_per_epoch": steps}

    def repeated(self, size: int, steps: int) -> dict[str, Any]:
        """Returns the arguments of a `fit` on one batch, made once and then repeated.

        Such a `fit` takes the seconds of the steps without the making of their input.

        Args:
            size: Examples of the batch.
            steps: Steps of an epoch.
        """
        batch = next(self._anew(size))
        return {"x": (batch for _ in itertools.count()), "steps_per_epoch": steps}

    def evaluated(self, size: int, steps: int) -> dict[str, Any]:
        """Returns the arguments of a `fit` that evaluates on these data after each epoch.

        Args:
            size: Examples of a batch.
            steps: Steps of an evaluation.
        """
        arguments = self.of(size, steps)
        is_endless = "steps_per_epoch" in arguments
        return {
            "validation_data": arguments["x"],
            **({"validation_steps": steps} if is_endless else {}),
        }

    def _anew(self, size: int) -> Iterator[tuple]:
        """Yields batches without end, from one pass after another."""
        while True:
            rebatched = Rebatched(self.source.one_pass())
            while batch := rebatched.take(size):
                yield batch


class ArrayFeed(Feed):
    """Passes arrays to `fit`, which takes some of their rows as a batch."""

    name, has_work = "arrays", False

    def __init__(self, source: Arrays, examples: int):
        super().__init__(None, source, min(examples, source.length))

    def of(self, size: int, steps: int) -> dict[str, Any]:
        """See base class; `fit` cuts the arrays into batches itself."""
        named = zip(("x", "y", "sample_weight"), self._rows(size, steps), strict=False)
        return {**dict(named), "batch_size": size}

    def evaluated(self, size: int, steps: int) -> dict[str, Any]:
        """See base class; `fit` cuts the arrays into batches itself."""
        return {"validation_data": self._rows(size, steps), "validation_batch_size": size}

    def _rows(self, size, steps):
        return self.source.first(min(size * steps, self.examples))


class DatasetFeed(Feed):
    """Passes a `tf.data.Dataset` to `fit`, rebatched if its batches have another size."""

    name = "a tf.data.Dataset"

    def __init__(self, data: Any, source: Any, examples: int):
        super().__init__(data, source, examples)
        shapes: list = []
        mapped(lambda spec: shapes.append(spec.shape), parts_of(data.element_spec))
        self._static_size = shapes[0][0] if shapes and shapes[0].rank else None
        self.drops = self._static_size is not None
        self._own_size: int | None = self._static_size

    def of(self, size: int, steps: int) -> dict[str, Any]:
        """See base class; the pipeline is rebatched if its own batches have another size."""
        if self._own_size is None:
            self._own_size = size_of(next(self.source.one_pass()))
        data = self.data
        if size != self._own_size:
            data = data.rebatch(size, drop_remainder=self.drops)
        return {"x": self._prefetched(data.take(steps))}

    def repeated(self, size: int, steps: int) -> dict[str, Any]:
        """See base class; the pipeline caches the batch."""
        single_batch = self.data.rebatch(size, drop_remainder=self.drops).take(1).cache()
        return {"x": self._prefetched(single_batch.repeat(steps))}

    def _prefetched(self, data):
        """Returns the data with a prefetch at the end if the user's pipeline ends with one.

        The user's prefetch is no longer the last step here: `take`, `rebatch` or `repeat` follows
        it.
        """
        # seam: TensorFlow 2.19 to 2.21, where only the name of the class shows a prefetch.
        return data.prefetch(2) if "Prefetch" in type(self.data).__name__ else data


class IndexedFeed(Feed):
    """Passes a `PyDataset`, or a `Sequence` of tf_keras, to `fit`, with the user's workers."""

    name = "a PyDataset"

    def __init__(self, data: Any, source: Any, examples: int, kind: type):
        super().__init__(data, source, examples)
        self._kind, self._own_size = kind, size_of(next(source.one_pass()))
        names = ("workers", "use_multiprocessing", "max_queue_size")
        self._workers = {
            setting: getattr(data, setting) for setting in names if hasattr(data, setting)
        }

    def of(self, size: int, steps: int) -> dict[str, Any]:
        """See base class; the batches are the data's own, or are joined or cut from them."""
        make = self.data.__getitem__ if size == self._own_size else self._cut(size)
        return self._indexed(make, steps)

    def repeated(self, size: int, steps: int) -> dict[str, Any]:
        """See base class; the batch is the same at every index."""
        batch = next(self._anew(size))
        return self._indexed(lambda i: batch, steps)

    def _indexed(self, make, steps):
        return {"x": _indexed(self._kind)(make, steps, **self._workers), "shuffle": False}

    def _cut(self, size):
        """Returns a function from an index to the batch of `size` examples there.

        The function joins or cuts the data's own batches that hold these examples. Each of the
        data's own batches is made once, and cached until its last example is used.
        """
        cached: dict[int, tuple] = {}

        def read_own(index):
            if (batch := cached.get(index)) is None:
                batch = cached[index] = parts_of(self.data[index])
            return batch

        def make(index):
            begin, end = index * size, min((index + 1) * size, self.examples)
            own_indices = range(begin // self._own_size, -(-end // self._own_size))
            rows = Rebatched(read_own(own_index) for own_index in own_indices)
            if skipped := begin % self._own_size:
                rows.take(skipped)
            batch = rows.take(end - begin)
            for own_index in own_indices:
                if (own_index + 1) * self._own_size <= end or end == self.examples:
                    cached.pop(own_index, None)
            return batch

        return make


def _indexed(kind):
    """Makes a subclass of `PyDataset` or `Sequence` that gets each batch from a function."""

    class Indexed(kind):  # type: ignore[misc, valid-type]
        def __init__(self, make, steps, **workers):
            if workers:
                super().__init__(**workers)
            self._make, self._steps = make, steps

        def __len__(self):
            return self._steps

        def __getitem__(self, index):
            return self._make(index)

    return Indexed
