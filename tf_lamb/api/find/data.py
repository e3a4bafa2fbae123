"""Training data that is read again and again, in batches of any size; what is held out of it."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

MOST_HELD_OUT = 8192
BLOCKS = 16  # of the held-out examples: their scatter is the error of a comparison


def mapped(function: Callable, *trees: Any) -> Any:
    """The function of the leaves of dicts, lists and tuples of arrays, in their structure."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: mapped(function, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, (list, tuple)):
        return type(first)(mapped(function, *each) for each in zip(*trees, strict=True))
    return None if first is None else function(*trees)


def size_of(tree: Any) -> int:
    """How many examples the arrays hold."""
    while isinstance(tree, (dict, list, tuple)):
        tree = next(iter(tree.values() if isinstance(tree, dict) else tree))
    return len(tree)


class Examples:
    """What a model is trained on, and what is held out of it.

    Args:
        data: Arrays `(x, y)` or `(x, y, sample_weight)`, or lists and dicts of them; a `PyDataset`
            or `Sequence`; or a `tf.data.Dataset`, a `DataLoader` or a list of batches.
        held_out: The same, of held-out examples; None holds a tenth of `data` out, 8,192 at most:
            of arrays at random, of batches the first.
        examples: How many a pass over `data` has, where it cannot say.

    Attributes:
        examples: How many a pass over `data` has.
        training: How many of them are not held out.
        blocks: The held-out examples, in `BLOCKS` batches of one size.

    Raises:
        TypeError: if the data can be read only once.
        ValueError: if it holds too few examples, or their number is not known.
    """

    def __init__(self, data: Any, held_out: Any = None, examples: int | None = None):
        self._source = _source("data", data)
        self.examples = examples or self._source.count()
        if held_out is None:
            wanted = min(self.examples // 10, MOST_HELD_OUT)
            held = self._source.hold_out(wanted)
            self.training = self.examples - wanted
        else:
            source = _source("validation_data", held_out)
            self.training, is_arrays = self.examples, isinstance(source, _Arrays)
            held = source.hold_out(source.count() if is_arrays else MOST_HELD_OUT)
        if (count := size_of(held)) < BLOCKS:
            raise ValueError(
                f"{count} held-out examples are too few to compare losses on; {BLOCKS} are the "
                "least. Pass validation_data=(x, y), or more data."
            )
        part = count // BLOCKS
        cuts = [slice(i * part, (i + 1) * part) for i in range(BLOCKS)]
        self.blocks = [mapped(lambda each, cut=cut: each[cut], held) for cut in cuts]
        self.held_out = part * BLOCKS

    def batches(self, size: int, seed: int) -> Iterator[tuple]:
        """Batches of this many examples, without end; arrays are shuffled anew for each pass."""
        return self._source.batches(size, seed)


class _Arrays:
    """Arrays of one length."""

    def __init__(self, data):
        import numpy as np

        self._arrays = mapped(np.asarray, data)
        sizes: set[int] = set()
        mapped(lambda each: sizes.add(len(each) if each.ndim else -1), self._arrays)
        if -1 in sizes:
            raise TypeError(
                "data holds lists of numbers, which stand for several inputs: pass arrays, as by "
                "numpy.asarray."
            )
        if len(sizes) > 1:
            raise ValueError(
                f"The arrays of data hold {' and '.join(map(str, sorted(sizes)))} examples: they "
                "have to be of one length."
            )
        self._kept = np.arange(*sizes)

    def count(self):
        return len(self._kept)

    def hold_out(self, wanted):
        import numpy as np

        order = np.random.default_rng(0).permutation(self._kept)
        held, self._kept = order[:wanted], order[wanted:]
        return mapped(lambda each: each[held], self._arrays)

    def batches(self, size, seed):
        import numpy as np

        random, left = np.random.default_rng(seed), self._kept[:0]
        while True:
            while len(left) < size:
                left = np.concatenate([left, random.permutation(self._kept)])
            chosen, left = left[:size], left[size:]
            yield mapped(lambda each, chosen=chosen: each[chosen], self._arrays)


class _Batches:
    """Batches that can be read again."""

    def __init__(self, name, data):
        if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
            self._read = lambda: (data[i] for i in range(len(data)))
        elif not hasattr(data, "__iter__") or iter(data) is data:
            raise TypeError(
                f"{name} is a {type(data).__name__}, which can be read once, and a search reads it "
                "for every candidate: pass arrays (x, y), a tf.data.Dataset, a PyDataset or a list "
                "of batches."
            )
        else:
            self._read = lambda: iter(data)
        self._data, self._skipped = data, 0

    def count(self):
        first = next(self._pass(), None)
        if first is None:
            raise ValueError("data holds no batch.")
        try:
            return len(self._data) * size_of(first)
        except TypeError:
            raise ValueError(
                "data does not say how many examples it has: pass examples=, those of one pass."
            ) from None

    def hold_out(self, wanted):
        self._skipped = wanted
        return next(_rebatched(self._pass(), wanted, drop=False), ())

    def batches(self, size, seed):
        passes = (self._pass(self._skipped) for _ in itertools.count())
        return _rebatched(itertools.chain.from_iterable(passes), size)

    def _pass(self, skipped=0):
        """Batches as tuples of NumPy arrays, without the first examples."""
        import numpy as np

        for batch in self._read():
            whole = tuple(batch) if isinstance(batch, (list, tuple)) else (batch,)
            here = min(skipped, size_of(whole))
            skipped -= here
            if here < size_of(whole):
                yield mapped(lambda each, here=here: np.asarray(each)[here:], whole)


def _source(name, data):
    is_array = isinstance(data, list) and bool(data) and hasattr(data[0], "shape")
    if is_array or isinstance(data, dict) or hasattr(data, "shape"):
        raise TypeError(f"{name} is a {type(data).__name__} of arrays: write {name}=(x, y).")
    return _Arrays(data) if isinstance(data, tuple) else _Batches(name, data)


def _rebatched(batches, size, drop=True):
    """The same examples in batches of this size, the last of which may be dropped."""
    import numpy as np

    pool, count = [], 0
    for batch in batches:
        pool.append(batch)
        count += size_of(batch)
        while count >= size:
            whole = mapped(lambda *each: np.concatenate(each), *pool) if len(pool) > 1 else pool[0]
            yield mapped(lambda each: each[:size], whole)
            pool, count = [mapped(lambda each: each[size:], whole)], count - size
    if pool and not drop:
        yield mapped(lambda *each: np.concatenate(each), *pool)
