"""What `fit` reads at a batch, from the data of a user: for the seconds that it takes."""

import itertools
from collections.abc import Iterator
from typing import Any

from tf_lamb.api.data import Arrays, Batches, Rebatched, mapped, size_of, whole
from tf_lamb.core.goodput.plan import calls_of_epoch


def feed_of(source: Arrays | Batches, examples: int, host: Any) -> "Feed":
    """The feed of arrays or of batches, for a model of this Keras."""
    if isinstance(source, Arrays):
        return ArrayFeed(source, examples)
    data = source.given
    if hasattr(data, "element_spec") and hasattr(data, "rebatch"):
        return DatasetFeed(data, source, examples)
    indexed = getattr(host.utils, "PyDataset", None) or host.utils.Sequence
    if isinstance(data, indexed):
        return IndexedFeed(data, source, examples, indexed)
    return Feed(data, source, examples)


class Feed:
    """Batches of any size, as `fit` reads them: of a generator, this one.

    What makes an example is done for each one; what is done for a batch is done for each of the
    data's own batches, which other sizes are put together from.

    Attributes:
        name: What it is, in a line of a search.
        examples: Of an epoch.
        drops: Whether the last batch of an epoch, where it is smaller, is left out.
    """

    name = "a generator"
    has_work = True  # whether the batches have to be made, and do not lie there
    drops = False

    def __init__(self, data: Any, source: Any, examples: int):
        self.data, self.source, self.examples = data, source, examples

    def steps(self, size: int) -> int:
        """Those of an epoch."""
        return calls_of_epoch(self.examples, size, self.drops)

    def of(self, size: int, steps: int) -> dict[str, Any]:
        """The arguments of a `fit` whose epochs have so many steps."""
        return {"x": self._anew(size), "steps_per_epoch": steps}

    def repeated(self, size: int, steps: int) -> dict[str, Any]:
        """Those of one whose epochs have one batch again and again, which is made once."""
        batch = next(self._anew(size))
        return {"x": (batch for _ in itertools.count()), "steps_per_epoch": steps}

    def evaluated(self, size: int, steps: int) -> dict[str, Any]:
        """The arguments of a `fit` that evaluates on so many steps of these after each epoch."""
        how = self.of(size, steps)
        is_endless = "steps_per_epoch" in how
        return {"validation_data": how["x"], **({"validation_steps": steps} if is_endless else {})}

    def _anew(self, size: int) -> Iterator[tuple]:
        """Batches without end, of one pass after another."""
        while True:
            rebatched = Rebatched(self.source.passed())
            while batch := rebatched.take(size):
                yield batch


class ArrayFeed(Feed):
    """Arrays, of which a batch is taken by rows."""

    name, has_work = "arrays", False

    def __init__(self, source: Arrays, examples: int):
        super().__init__(None, source, min(examples, source.length))

    def of(self, size: int, steps: int) -> dict[str, Any]:
        named = zip(("x", "y", "sample_weight"), self._rows(size, steps), strict=False)
        return {**dict(named), "batch_size": size}

    def evaluated(self, size: int, steps: int) -> dict[str, Any]:
        return {"validation_data": self._rows(size, steps), "validation_batch_size": size}

    def _rows(self, size, steps):
        return self.source.first(min(size * steps, self.examples))


class DatasetFeed(Feed):
    """A `tf.data.Dataset`: the pipeline itself, and its batches put together or cut."""

    name = "a tf.data.Dataset"

    def __init__(self, data: Any, source: Any, examples: int):
        super().__init__(data, source, examples)
        shapes: list = []
        mapped(lambda each: shapes.append(each.shape), whole(data.element_spec))
        self._static = shapes[0][0] if shapes and shapes[0].rank else None
        self.drops = self._static is not None
        self._own: int | None = self._static

    def of(self, size: int, steps: int) -> dict[str, Any]:
        if self._own is None:
            self._own = size_of(next(self.source.passed()))
        data = self.data
        if size != self._own:
            data = data.rebatch(size, drop_remainder=self.drops)
        return {"x": self._prefetched(data.take(steps))}

    def repeated(self, size: int, steps: int) -> dict[str, Any]:
        one = self.data.rebatch(size, drop_remainder=self.drops).take(1).cache()
        return {"x": self._prefetched(one.repeat(steps))}

    def _prefetched(self, data):
        """Ahead of a step where the pipeline ends so: it would do so at any batch."""
        # seam: TensorFlow 2.19 to 2.21, where nothing but a class tells of it.
        return data.prefetch(2) if "Prefetch" in type(self.data).__name__ else data


class IndexedFeed(Feed):
    """A `PyDataset`, or a `Sequence` of tf_keras, with its workers."""

    name = "a PyDataset"

    def __init__(self, data: Any, source: Any, examples: int, kind: type):
        super().__init__(data, source, examples)
        self._kind, self._own = kind, size_of(next(source.passed()))
        names = ("workers", "use_multiprocessing", "max_queue_size")
        self._workers = {n: getattr(data, n) for n in names if hasattr(data, n)}

    def of(self, size: int, steps: int) -> dict[str, Any]:
        make = self.data.__getitem__ if size == self._own else self._cut(size)
        return self._indexed(make, steps)

    def repeated(self, size: int, steps: int) -> dict[str, Any]:
        batch = next(self._anew(size))
        return self._indexed(lambda i: batch, steps)

    def _indexed(self, make, steps):
        return {"x": _indexed(self._kind)(make, steps, **self._workers), "shuffle": False}

    def _cut(self, size):
        """Batches from as many of the data's own as hold them, each of which is made once.

        One that others are cut from is kept until its last example is taken.
        """
        kept: dict[int, tuple] = {}

        def own(i):
            if (batch := kept.get(i)) is None:
                batch = kept[i] = whole(self.data[i])
            return batch

        def make(i):
            first, end = i * size, min((i + 1) * size, self.examples)
            held_by = range(first // self._own, -(-end // self._own))
            rows = Rebatched(own(j) for j in held_by)
            if skipped := first % self._own:
                rows.take(skipped)
            batch = rows.take(end - first)
            for j in held_by:
                if (j + 1) * self._own <= end or end == self.examples:
                    kept.pop(j, None)
            return batch

        return make


def _indexed(kind):
    """A class of a host's `PyDataset` or `Sequence`, whose batches a function makes."""

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
