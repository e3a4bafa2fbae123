"""Training data that is read again and again, in batches of any size."""

import itertools
import zlib
from collections.abc import Callable, Iterator
from typing import Any

# What SciPy's sparse matrices, TensorFlow's sparse and ragged tensors and JAX's sparse arrays have.
UNEVEN = "nnz", "dense_shape", "nested_row_splits", "nse"
MANY = 4096  # examples of a part of arrays that is looked at


def mapped(function: Callable, *trees: Any) -> Any:
    """The function of the leaves of dicts, lists and tuples; lists become tuples, as in `fit`."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: mapped(function, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, (list, tuple)):
        return tuple(mapped(function, *each) for each in zip(*trees, strict=True))
    return None if first is None else function(*trees)


def dense(each: Any) -> Any:
    """An array of NumPy's; raises for what is sparse or ragged."""
    import numpy as np

    if any(hasattr(type(each), name) for name in UNEVEN):
        raise TypeError(
            f"data holds a {type(each).__name__}, of which no rows can be taken: pass dense "
            "arrays, as .toarray(), .to_tensor() or tf.sparse.to_dense makes them."
        )
    return np.asarray(each)


def size_of(tree: Any) -> int:
    """How many examples the arrays hold."""
    while isinstance(tree, (dict, list, tuple)):
        tree = next(iter(tree.values() if isinstance(tree, dict) else tree))
    return len(tree)


def checksum(tree: Any, before: int = 0) -> int:
    """The CRC-32 of the arrays, after that of others before."""
    import numpy as np

    def add(each):
        nonlocal before
        array = np.asarray(each)
        # An array of strings holds only where they are.
        held = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
        before = zlib.crc32(held, before)

    mapped(add, tree)
    return before


def first_not_finite(batch: tuple) -> tuple[int, str, str] | None:
    """The first example of a batch that is not finite, its part and value; None of none."""
    import numpy as np

    found: list = []

    def look(tree, name):
        if isinstance(tree, dict):
            for key, each in tree.items():
                look(each, f"{name}[{key!r}]")
        elif isinstance(tree, tuple):
            for i, each in enumerate(tree):
                look(each, f"{name}[{i}]")
        elif tree is not None and np.issubdtype(np.asarray(tree).dtype, np.inexact):
            rows = np.asarray(tree).reshape(len(tree), -1)
            if not (good := np.isfinite(rows).all(axis=1)).all():
                row = int(np.argmin(good))
                value = rows[row][~np.isfinite(rows[row])][0]
                found.append((row, name, "NaN" if np.isnan(value) else str(value)))

    for part, name in zip(batch, ("x", "y", "sample_weight"), strict=False):
        look(part, name)
    return min(found, default=None)


def check_paired(name: str, value: Any, call: str) -> None:
    """Raises where the targets were passed as another argument, as by f(model, x, y)."""
    if len(getattr(value, "shape", ())):
        raise TypeError(f"{name} is an array: pass x and y as one argument, {call}.")


def whole(batch: Any) -> tuple:
    """A batch as a tuple, without the targets and weights that are None."""
    parts = tuple(batch) if isinstance(batch, (list, tuple)) else (batch,)
    while parts[1:] and parts[-1] is None:
        parts = parts[:-1]
    return parts


def source(name: str, data: Any) -> "Arrays | Batches":
    """What reads the data of an argument: arrays in a tuple, or batches; raises for other data."""
    is_array = isinstance(data, list) and bool(data) and hasattr(data[0], "shape")
    if is_array or isinstance(data, dict):
        raise TypeError(
            f"{name} is a {type(data).__name__} of arrays: write {name}=(x, y), or {name}=(x,) for "
            "a model that is trained on x alone."
        )
    if hasattr(data, "shape"):
        data = (data,)
    return Arrays(name, whole(data)) if isinstance(data, tuple) else Batches(name, data)


class Arrays:
    """Arrays of one length."""

    is_py_dataset = False

    def __init__(self, name: str, data: tuple):
        import numpy as np

        self._arrays = mapped(dense, data)
        sizes: set[int] = set()
        mapped(lambda each: sizes.add(len(each) if each.ndim else -1), self._arrays)
        if -1 in sizes:
            raise TypeError(
                f"{name} holds lists of numbers, which stand for several inputs: pass arrays, as "
                "by numpy.asarray."
            )
        if len(sizes) > 1:
            raise ValueError(
                f"The arrays of {name} hold {' and '.join(map(str, sorted(sizes)))} examples: they "
                "have to be of one length."
            )
        self._kept = np.arange(*sizes)

    def count(self) -> int:
        """The examples."""
        return len(self._kept)

    @property
    def length(self) -> int:
        """The examples, held out or not."""
        return size_of(self._arrays)

    def first(self, count: int) -> tuple:
        """So many, as they lie there, held out or not."""
        return self._rows(slice(count))

    def passed(self) -> Iterator[tuple]:
        """A pass over all of them, held out or not."""
        yield from (self._rows(slice(i, i + MANY)) for i in range(0, self.length, MANY))

    def hold_out(self, wanted: int) -> tuple:
        """So many examples at random, which no batch has any longer."""
        import numpy as np

        order = np.random.default_rng(0).permutation(self._kept)
        held, self._kept = order[:wanted], order[wanted:]
        return self._rows(held)

    def batches(self, size: int, seed: int, examples: int | None = None) -> Iterator[tuple]:
        """Batches without end, shuffled anew for each pass over all arrays."""
        import numpy as np

        del examples  # arrays may be a part of them

        random, left = np.random.default_rng(seed), self._kept[:0]
        while True:
            while len(left) < size:
                left = np.concatenate([left, random.permutation(self._kept)])
            chosen, left = left[:size], left[size:]
            yield self._rows(chosen)

    def stream(self, start: int, seed: int, examples: int) -> Callable[[int], Any]:
        """Takes the next examples of all passes, from a place on, as many as a call asks for.

        As `fit` gives them to `train_step`: inputs alone are no tuple.
        Pass p is a permutation by (seed, p): no pass before has to be made.
        """
        import numpy as np

        def orders(first):
            for each in itertools.count(first):
                yield np.random.default_rng((seed, each)).permutation(self._kept)

        first, skipped = divmod(start, examples)
        passes = orders(first)
        left = next(passes)[skipped:]

        def take(size):
            nonlocal left
            while len(left) < size:
                left = np.concatenate([left, next(passes)])
            chosen, left = left[:size], left[size:]
            x, *others = self._rows(chosen)
            return (x, *others) if others or isinstance(x, (list, tuple)) else x

        return take

    def _rows(self, chosen):
        return mapped(lambda each: each[chosen], self._arrays)


class Batches:
    """Batches that can be read again."""

    def __init__(self, name: str, data: Any):
        self.is_py_dataset = hasattr(type(data), "num_batches")  # of Keras 3
        self._is_list = hasattr(data, "__getitem__") and hasattr(data, "__len__")
        if not self._is_list and (not hasattr(data, "__iter__") or iter(data) is data):
            raise TypeError(
                f"{name} is a {type(data).__name__}, which can be read once, and it is read again "
                "and again: pass arrays (x, y), a tf.data.Dataset, a PyDataset or a list of "
                "batches."
            )
        self._data, self._skipped = data, 0
        self._held: int | None = None  # the checksum of what is held out
        self._counted: int | None = None  # examples, by some batches and the last

    @property
    def given(self) -> Any:
        """The data as they were given."""
        return self._data

    def passed(self) -> Iterator[tuple]:
        """A pass over all batches, held out or not, as tuples of arrays."""
        return self._read()

    def count(self) -> int:
        """The examples of a pass, which is read where its batches may differ in size.

        Of a `PyDataset`, whose pass may cost minutes, the first two batches, one in the middle and
        the last are read; a pass that has more or fewer examples raises when it ends.
        """
        try:
            batches = self._data.num_batches if self.is_py_dataset else len(self._data)
        except (TypeError, NotImplementedError):
            batches = None
        if batches is None:  # or a PyDataset without end
            raise ValueError(
                "data does not say how many examples it has: pass examples=, those of one pass."
            )
        if not batches:
            raise ValueError("data holds no batch.")
        if hasattr(self._data, "__getitem__") and not isinstance(self._data, list):
            some = {i for i in (0, 1, batches // 2) if i < batches - 1}
            seen = (mapped(dense, whole(self._data[i])) for i in (*sorted(some), batches - 1))
            *sizes, last = map(_rows_of, seen)
            if len(set(sizes)) < 2:
                self._counted = (batches - 1) * max(sizes, default=0) + last
                return self._counted
        return sum(map(size_of, self._read()))

    def hold_out(self, wanted: int) -> tuple:
        """The first examples, which no batch has any longer."""
        self._skipped = wanted
        return Rebatched(self._compared()).take(wanted)

    def batches(self, size: int, seed: int, examples: int | None = None) -> Iterator[tuple]:
        """Batches without end, each drawn from the next two batches' worth of examples."""
        import numpy as np

        def passes():
            while True:
                end, is_all = examples or self._counted, examples is None
                left = _between(self._skipped, end, self._compared(), is_all)
                if (first := next(left, None)) is None:
                    raise ValueError(
                        "data has no example to train on when it is read again: pass what can be "
                        "read again and again, such as arrays (x, y)."
                    )
                yield from itertools.chain([first], left)

        rebatched, random = Rebatched(passes()), np.random.default_rng(seed)
        while True:
            yield rebatched.draw(size, random)

    def stream(self, start: int, seed: int, examples: int) -> Callable[[int], Any]:
        """As of arrays, in the order of the data; passes before are begun and not read."""
        first, skipped = divmod(start, examples)

        def made(batch):  # inputs alone are a tuple where a `PyDataset` has no dict of them
            is_tuple = self.is_py_dataset and not isinstance(batch, dict)
            return whole(batch) if is_tuple or isinstance(batch, (list, tuple)) else batch

        def passes():
            for number in itertools.count():
                self._tell("on_epoch_begin")
                read = self._read(skipped if number == first else 0, examples, made)
                if number >= first:
                    yield read
                self._tell("on_epoch_end")

        return Rebatched(itertools.chain.from_iterable(passes())).take

    def _read(self, skipped=0, most=None, made=whole):
        """A pass that is begun now: tuples of NumPy arrays, without the first examples."""
        every = map(self._data.__getitem__, range(len(self._data))) if self._is_list else self._data
        is_all = most is not None and most == self._counted
        return _between(skipped, most, map(made, every), is_all)

    def _compared(self):
        """A pass; raises where it does not begin with the examples that are held out."""
        at, seen = 0, 0
        for batch in self._read():
            if (left := self._skipped - at) > 0:
                at += size_of(batch)
                seen = checksum(mapped(lambda each, left=left: each[:left], batch), seen)
                if at >= self._skipped and self._held is None:
                    self._held = seen
                elif at >= self._skipped and seen != self._held:
                    raise ValueError(
                        "data begins with other examples when it is read again, as where they are "
                        f"shuffled or augmented anew, so that the first {self._skipped:,} cannot "
                        "be held out: pass validation_data=."
                    )
            yield batch

    def _tell(self, event):
        """As `fit` does: a `PyDataset` or `Sequence` may shuffle."""
        if tell := getattr(self._data, event, None):
            tell()


def _rows_of(batch):
    """The examples of a batch; raises where its arrays differ, or are single examples."""
    import numpy as np

    sizes: set[int] = set()
    mapped(lambda each: sizes.add(len(each) if len(np.shape(each)) else 0), batch)
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(
            f"A batch of data holds arrays of {' and '.join(map(str, sorted(sizes)))} rows, and "
            "all need as many: call batch(...) on data whose elements are single examples."
        )
    return sizes.pop()


def _between(first, end, batches, is_all=False):
    """The examples from the first to the end as arrays.

    Raises where batches end before it, or, if it `is_all` that a pass has, where they do not.
    """
    at = 0
    for batch in (mapped(dense, each) for each in batches):
        size = _rows_of(batch)
        cut = slice(max(0, first - at), size if end is None else end - at)
        at += size
        if at > first:
            yield mapped(lambda each, cut=cut: each[cut], batch)
        if end is not None and at >= end:
            if is_all and (at > end or next(batches, None) is not None):
                raise ValueError(
                    f"A pass over data has more than the {end:,} examples that some of its batches "
                    "tell of, as they differ in size: pass examples=, those of one pass."
                )
            return
    if end is not None:
        fewer = f"examples={at}, or " if at else ""
        raise ValueError(
            f"A pass over data has {at:,} examples, and not {end:,}: pass {fewer}data that can be "
            "read again and again."
        )


class Rebatched:
    """The same examples in batches of any size."""

    def __init__(self, batches: Iterator[tuple]):
        self._batches, self._count = batches, 0
        self._pool: list[tuple] = []

    def take(self, size: int) -> tuple:
        """The next ones; fewer where there are no more, and () of none."""
        return self._cut(self._topped_up(size), slice(size), slice(size, None))

    def draw(self, size: int, random: Any) -> tuple:
        """So many of the next ones, at random from twice as many at least."""
        whole = self._topped_up(2 * size)
        order = random.permutation(size_of(whole))
        return self._cut(whole, order[:size], order[size:])

    def _topped_up(self, count):
        """Tops up the buffer to `count` examples; fewer at the end of the data."""
        import numpy as np

        while self._count < count and (batch := next(self._batches, None)) is not None:
            self._pool.append(batch)
            self._count += size_of(batch)
        if len(self._pool) > 1:
            try:
                self._pool = [mapped(lambda *each: np.concatenate(each), *self._pool)]
            except ValueError as error:
                raise ValueError(
                    "data has batches of several shapes, which cannot be batched anew: pad every "
                    f"example to one shape. ({error})"
                ) from error
        return self._pool[0] if self._pool else None

    def _cut(self, whole, taken, left):
        if whole is None or not size_of(whole):
            return ()
        self._pool = [mapped(lambda each: each[left], whole)]
        self._count = size_of(self._pool[0])
        return mapped(lambda each: each[taken], whole)
