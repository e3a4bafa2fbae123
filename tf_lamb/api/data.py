"""Reads the training data of `fit` again and again, in batches of any size.

`Arrays` reads arrays by their rows; `Batches` reads a `tf.data.Dataset` or other batches.
`Rebatched` makes batches of another size. In this file a tree is an array, or nested tuples, lists
and dicts of arrays.
"""

import itertools
import zlib
from collections.abc import Callable, Iterator
from typing import Any

# Attributes by which arrays are recognized whose rows cannot be taken. In this order, they belong
# to SciPy's sparse matrices, TensorFlow's sparse tensors and ragged tensors, and JAX's sparse
# arrays.
SPARSE_ATTRIBUTES = "nnz", "dense_shape", "nested_row_splits", "nse"
PASS_BATCH_SIZE = 4096  # number of examples in a batch of `Arrays.one_pass`


def map_arrays(function: Callable, *trees: Any) -> Any:
    """Applies a function to the arrays of trees, and returns a tree of the results.

    Lists become tuples, as in `fit`, and None stays None.

    Args:
        function: A function with one argument for each tree. It gets the arrays that are at the
            same place in the trees.
        *trees: Trees with the same structure.
    """
    first_tree = trees[0]
    if isinstance(first_tree, dict):
        return {key: map_arrays(function, *(tree[key] for tree in trees)) for key in first_tree}
    if isinstance(first_tree, (list, tuple)):
        return tuple(map_arrays(function, *branches) for branches in zip(*trees, strict=True))
    return None if first_tree is None else function(*trees)


def to_dense(array: Any) -> Any:
    """Converts an array to one of NumPy's.

    Raises:
        TypeError: for a sparse or ragged array.
    """
    import numpy as np

    if any(hasattr(type(array), name) for name in SPARSE_ATTRIBUTES):
        raise TypeError(
            f"data holds a {type(array).__name__}, of which no rows can be taken: pass dense "
            "arrays, as .toarray(), .to_tensor() or tf.sparse.to_dense makes them."
        )
    return np.asarray(array)


def size_of(tree: Any) -> int:
    """Returns the number of examples in a tree: the length of its first array."""
    while isinstance(tree, (dict, list, tuple)):
        tree = next(iter(tree.values() if isinstance(tree, dict) else tree))
    return len(tree)


def checksum(tree: Any, crc: int = 0) -> int:
    """Returns the CRC-32 of the arrays of a tree.

    Args:
        tree: The arrays.
        crc: The CRC-32 of the arrays before these. Defaults to 0: there are none.
    """
    import numpy as np

    def add(leaf):
        nonlocal crc
        array = np.asarray(leaf)
        # The bytes of an array of Python objects, such as strings, are only pointers to them.
        content = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
        crc = zlib.crc32(content, crc)

    map_arrays(add, tree)
    return crc


def first_not_finite(batch: tuple) -> tuple[int, str, str] | None:
    """Finds the first example of a batch that has a value which is NaN or infinite.

    Returns:
        The index of the example, the name of the array in the batch, such as "x['a']", and the
        value as text; None if all values are finite.
    """
    import numpy as np

    nonfinite_values: list = []

    def visit(tree, name):
        if isinstance(tree, dict):
            for key, branch in tree.items():
                visit(branch, f"{name}[{key!r}]")
        elif isinstance(tree, tuple):
            for index, branch in enumerate(tree):
                visit(branch, f"{name}[{index}]")
        elif tree is not None and np.issubdtype(np.asarray(tree).dtype, np.inexact):
            rows = np.asarray(tree).reshape(len(tree), -1)
            if not (is_finite := np.isfinite(rows).all(axis=1)).all():
                row = int(np.argmin(is_finite))
                value = rows[row][~np.isfinite(rows[row])][0]
                nonfinite_values.append((row, name, "NaN" if np.isnan(value) else str(value)))

    for part, name in zip(batch, ("x", "y", "sample_weight"), strict=False):
        visit(part, name)
    return min(nonfinite_values, default=None)


def check_paired(name: str, value: Any, call: str) -> None:
    """Checks that the targets y were not passed as a separate argument, as in f(model, x, y).

    Args:
        name: The name of the argument that follows the data.
        value: Its value.
        call: The right call, for the error.

    Raises:
        TypeError: if the value is an array.
    """
    if len(getattr(value, "shape", ())):
        raise TypeError(f"{name} is an array: pass x and y as one argument, {call}.")


def batch_tuple(batch: Any) -> tuple:
    """Returns a batch as a tuple (x, y, sample_weight), without the last parts if they are None."""
    parts = tuple(batch) if isinstance(batch, (list, tuple)) else (batch,)
    while parts[1:] and parts[-1] is None:
        parts = parts[:-1]
    return parts


def make_reader(name: str, data: Any) -> "Arrays | Batches":
    """Returns the reader of a data argument: an `Arrays` for arrays, or else a `Batches`.

    Args:
        name: The name of the argument, for errors.
        data: A tuple of arrays, an array, or batches.

    Raises:
        TypeError: for arrays in a list or a dict, for sparse or ragged arrays, and for data that
            can be read only once.
        ValueError: for arrays of different lengths.
    """
    is_array = isinstance(data, list) and bool(data) and hasattr(data[0], "shape")
    if is_array or isinstance(data, dict):
        raise TypeError(
            f"{name} is a {type(data).__name__} of arrays: write {name}=(x, y), or {name}=(x,) for "
            "a model that is trained on x alone."
        )
    if hasattr(data, "shape"):
        data = (data,)
    return Arrays(name, batch_tuple(data)) if isinstance(data, tuple) else Batches(name, data)


class Arrays:
    """Reads batches from arrays of the same length, whose rows are the examples.

    Args:
        name: The name of the argument, for errors.
        data: A tuple of arrays, or of trees of arrays.

    Raises:
        TypeError: for sparse or ragged arrays, and for lists of numbers.
        ValueError: for arrays of different lengths.
    """

    is_py_dataset = False

    def __init__(self, name: str, data: tuple):
        import numpy as np

        self._arrays = map_arrays(to_dense, data)
        sizes: set[int] = set()
        map_arrays(lambda array: sizes.add(len(array) if array.ndim else -1), self._arrays)
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
        self._training_rows = np.arange(*sizes)

    def count(self) -> int:
        """Returns the number of examples that are not held out."""
        return len(self._training_rows)

    @property
    def length(self) -> int:
        """The number of examples, including held-out ones."""
        return size_of(self._arrays)

    def first(self, count: int) -> tuple:
        """Returns the first `count` examples in their order, including held-out ones."""
        return self._rows(slice(count))

    def one_pass(self) -> Iterator[tuple]:
        """Yields all examples once, including held-out ones, in batches of `PASS_BATCH_SIZE`."""
        yield from (
            self._rows(slice(begin, begin + PASS_BATCH_SIZE))
            for begin in range(0, self.length, PASS_BATCH_SIZE)
        )

    def hold_out(self, count: int) -> tuple:
        """Returns `count` random examples, which `batches` and `stream` leave out from now on."""
        import numpy as np

        order = np.random.default_rng(0).permutation(self._training_rows)
        held_rows, self._training_rows = order[:count], order[count:]
        return self._rows(held_rows)

    def batches(self, size: int, seed: int, examples: int | None = None) -> Iterator[tuple]:
        """Yields batches without end, in a new random order for each pass over the arrays.

        Args:
            size: The number of examples in a batch.
            seed: Seed of the order.
            examples: Ignored: a pass has all rows of the arrays that are not held out.
        """
        import numpy as np

        del examples

        generator, remaining = np.random.default_rng(seed), self._training_rows[:0]
        while True:
            while len(remaining) < size:
                remaining = np.concatenate([remaining, generator.permutation(self._training_rows)])
            rows, remaining = remaining[:size], remaining[size:]
            yield self._rows(rows)

    def stream(self, start: int, seed: int, examples: int) -> Callable[[int], Any]:
        """Returns a function that reads the examples pass after pass, in the form that `fit` uses.

        The order of pass number p is drawn with the seed (seed, p), so that reading can begin at
        any pass.

        Args:
            start: The number of examples to skip, counted from the beginning of the first pass.
            seed: Seed of the order.
            examples: The number of examples in a pass.

        Returns:
            A function with one argument, a number of examples. Each call returns the next examples
            in the form in which `fit` passes them to `train_step`: (x, y), (x, y, sample_weight),
            or x alone if there are no targets.
        """
        import numpy as np

        def permutations(first_pass):
            for pass_number in itertools.count(first_pass):
                yield np.random.default_rng((seed, pass_number)).permutation(self._training_rows)

        first_pass, skipped = divmod(start, examples)
        orders = permutations(first_pass)
        remaining = next(orders)[skipped:]

        def take(size):
            nonlocal remaining
            while len(remaining) < size:
                remaining = np.concatenate([remaining, next(orders)])
            rows, remaining = remaining[:size], remaining[size:]
            x, *targets = self._rows(rows)
            return (x, *targets) if targets or isinstance(x, (list, tuple)) else x

        return take

    def _rows(self, rows):
        return map_arrays(lambda array: array[rows], self._arrays)


class Batches:
    """Reads batches from data that can be iterated over again and again.

    Args:
        name: The name of the argument, for errors.
        data: A `tf.data.Dataset`, a `PyDataset`, a list, or another iterable of batches.

    Raises:
        TypeError: for data that can be read only once.
    """

    def __init__(self, name: str, data: Any):
        self.is_py_dataset = hasattr(type(data), "num_batches")  # only Keras 3's PyDataset has it
        self._is_list = hasattr(data, "__getitem__") and hasattr(data, "__len__")
        if not self._is_list and (not hasattr(data, "__iter__") or iter(data) is data):
            raise TypeError(
                f"{name} is a {type(data).__name__}, which can be read once, and it is read again "
                "and again: pass arrays (x, y), a tf.data.Dataset, a PyDataset or a list of "
                "batches."
            )
        self._data, self._held_out = data, 0
        self._held_out_checksum: int | None = None
        self._counted_examples: int | None = (
            None  # number of examples of a pass, if `count` has computed it from a few batches
        )

    @property
    def user_data(self) -> Any:
        """The data as the user gave them."""
        return self._data

    @property
    def batch_count(self) -> int | None:
        """The number of batches of a pass; None if the data do not say it, or have no end."""
        try:
            return self._data.num_batches if self.is_py_dataset else len(self._data)
        except (TypeError, NotImplementedError):
            return None

    def one_pass(self) -> Iterator[tuple]:
        """Returns an iterator over the batches of one pass, which includes held-out examples."""
        return self._read()

    def count(self) -> int:
        """Returns the number of examples of a pass.

        A pass over a `PyDataset` may take minutes. So if batches can be read by their index, and
        are not in a list, only the first two, one in the middle and the last are read. If all of
        these but the last have the same size, all other batches are assumed to have that size,
        too, and a later pass with another number of examples raises an error. In all other cases a
        whole pass is read.

        Raises:
            ValueError: if the data do not say how many batches they have, or have none.
        """
        batches = self.batch_count
        if batches is None:
            raise ValueError(
                "data does not say how many examples it has: pass examples=, those of one pass."
            )
        if not batches:
            raise ValueError("data holds no batch.")
        if hasattr(self._data, "__getitem__") and not isinstance(self._data, list):
            sampled_indices = {index for index in (0, 1, batches // 2) if index < batches - 1}
            sampled_batches = (
                map_arrays(to_dense, batch_tuple(self._data[index]))
                for index in (*sorted(sampled_indices), batches - 1)
            )
            *sizes, last_size = map(_size_of_batch, sampled_batches)
            if len(set(sizes)) < 2:
                self._counted_examples = (batches - 1) * max(sizes, default=0) + last_size
                return self._counted_examples
        return sum(map(size_of, self._read()))

    def hold_out(self, count: int) -> tuple:
        """Returns the first `count` examples, which `batches` leaves out from now on."""
        self._held_out = count
        return Rebatched(self._checked_pass()).take(count)

    def batches(self, size: int, seed: int, examples: int | None = None) -> Iterator[tuple]:
        """Yields batches without end, each drawn at random from at least 2 x `size` examples.

        Args:
            size: The number of examples in a batch.
            seed: Seed of the draws.
            examples: The number of examples in a pass over the data, including those held out.
                Defaults to None: a pass has all examples of the data.

        Raises:
            ValueError: if a pass has no example to train on, ends before `examples`, or does not
                begin with the examples that were held out.
        """
        import numpy as np

        def passes():
            while True:
                end, is_all = examples or self._counted_examples, examples is None
                remaining = _part_of_pass(self._held_out, end, self._checked_pass(), is_all)
                if (first_batch := next(remaining, None)) is None:
                    raise ValueError(
                        "data has no example to train on when it is read again: pass what can be "
                        "read again and again, such as arrays (x, y)."
                    )
                yield from itertools.chain([first_batch], remaining)

        rebatched, generator = Rebatched(passes()), np.random.default_rng(seed)
        while True:
            yield rebatched.draw(size, generator)

    def stream(self, start: int, seed: int, examples: int) -> Callable[[int], Any]:
        """Returns a function that reads the examples pass after pass, in the form that `fit` uses.

        Examples come in the order of the data. Data may shuffle themselves for each new iterator,
        or in `on_epoch_begin` or `on_epoch_end`. So if a whole pass is skipped, its iterator is
        made and these methods are called, but its batches are not read.

        Args:
            start: The number of examples to skip, counted from the beginning of the first pass.
            seed: Ignored: the data have their own order.
            examples: The number of examples in a pass.

        Returns:
            A function with one argument, a number of examples. Each call returns the next examples
            in the form in which `fit` passes them to `train_step`.
        """
        first_pass, skipped = divmod(start, examples)

        def as_in_fit(batch):
            # If a `PyDataset` yields x without targets, `fit` passes (x,) on, unless x is a dict.
            is_tuple = self.is_py_dataset and not isinstance(batch, dict)
            return batch_tuple(batch) if is_tuple or isinstance(batch, (list, tuple)) else batch

        def passes():
            for number in itertools.count():
                self._notify("on_epoch_begin")
                batches = self._read(skipped if number == first_pass else 0, examples, as_in_fit)
                if number >= first_pass:
                    yield batches
                self._notify("on_epoch_end")

        return Rebatched(itertools.chain.from_iterable(passes())).take

    def _read(self, begin=0, end=None, convert=batch_tuple):
        """Returns an iterator over the batches of one pass, from example `begin` to example `end`.

        Args:
            begin: The number of examples to skip. Defaults to 0.
            end: Examples after which the pass ends. Defaults to None: where the data end.
            convert: Converts each batch of the data. Defaults to `batch_tuple`, which makes tuples.
        """
        raw_batches = (
            map(self._data.__getitem__, range(len(self._data))) if self._is_list else self._data
        )
        is_all = end is not None and end == self._counted_examples
        return _part_of_pass(begin, end, map(convert, raw_batches), is_all)

    def _checked_pass(self):
        """Yields the batches of a pass over the data, including the held-out examples.

        The first pass records the checksum of the held-out examples. A later pass that begins with
        other examples raises ValueError, because held-out examples might then be trained on.
        """
        position, crc = 0, 0
        for batch in self._read():
            if (held_out_left := self._held_out - position) > 0:
                position += size_of(batch)
                crc = checksum(
                    map_arrays(
                        lambda array, held_out_left=held_out_left: array[:held_out_left], batch
                    ),
                    crc,
                )
                if position >= self._held_out and self._held_out_checksum is None:
                    self._held_out_checksum = crc
                elif position >= self._held_out and crc != self._held_out_checksum:
                    raise ValueError(
                        "data begins with other examples when it is read again, as where they are "
                        f"shuffled or augmented anew, so that the first {self._held_out:,} cannot "
                        "be held out: pass validation_data=."
                    )
            yield batch

    def _notify(self, event):
        """Calls the method of the data with the name `event`, if they have it, as `fit` does.

        For instance, `on_epoch_end` of a `PyDataset` or `Sequence` may shuffle its batches.
        """
        if notify := getattr(self._data, event, None):
            notify()


def _size_of_batch(batch):
    """Returns the number of examples in a batch.

    Raises:
        ValueError: if the arrays of the batch differ in length, or one has no rows.
    """
    import numpy as np

    sizes: set[int] = set()
    map_arrays(lambda array: sizes.add(len(array) if len(np.shape(array)) else 0), batch)
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(
            f"A batch of data holds arrays of {' and '.join(map(str, sorted(sizes)))} rows, and "
            "all need as many: call batch(...) on data whose elements are single examples."
        )
    return sizes.pop()


def _part_of_pass(begin, end, batches, is_all=False):
    """Yields the examples of a pass from `begin` to `end`, as batches of NumPy arrays.

    Args:
        begin: The number of examples to skip.
        end: Examples after which the pass ends; None for the end of the batches.
        batches: The batches of a whole pass.
        is_all: Whether it is an error if the batches go on after `end`. Defaults to False.

    Raises:
        ValueError: if the batches end before `end`, or with `is_all` after it.
    """
    position = 0
    for batch in (map_arrays(to_dense, arrays) for arrays in batches):
        size = _size_of_batch(batch)
        cut = slice(max(0, begin - position), size if end is None else end - position)
        position += size
        if position > begin:
            yield map_arrays(lambda arrays, cut=cut: arrays[cut], batch)
        if end is not None and position >= end:
            if is_all and (position > end or next(batches, None) is not None):
                raise ValueError(
                    f"A pass over data has more than the {end:,} examples that some of its batches "
                    "tell of, as they differ in size: pass examples=, those of one pass."
                )
            return
    if end is not None:
        examples_hint = f"examples={position}, or " if position else ""
        raise ValueError(
            f"A pass over data has {position:,} examples, and not {end:,}: pass "
            f"{examples_hint}data that can be read again and again."
        )


class Rebatched:
    """Cuts and joins batches into batches of other sizes.

    Args:
        batches: Batches of any sizes, as tuples of arrays.
    """

    def __init__(self, batches: Iterator[tuple]):
        self._batches, self._count = batches, 0
        self._buffers: list[tuple] = []

    def take(self, size: int) -> tuple:
        """Returns the next `size` examples in order: fewer at the end of the data, () after it."""
        return self._split_buffer(self._fill_buffer(size), slice(size), slice(size, None))

    def draw(self, size: int, random: Any) -> tuple:
        """Returns examples that are drawn at random from a buffer of at least twice as many.

        Args:
            size: The number of examples to draw.
            random: A generator of NumPy's.
        """
        buffer = self._fill_buffer(2 * size)
        order = random.permutation(size_of(buffer))
        return self._split_buffer(buffer, order[:size], order[size:])

    def _fill_buffer(self, count):
        """Reads on, and returns a buffer of the next examples: `count` of them, or more.

        There are fewer if the data end, and the result is None if they have no batch at all. Raises
        ValueError if batches have several shapes.
        """
        import numpy as np

        while self._count < count and (batch := next(self._batches, None)) is not None:
            self._buffers.append(batch)
            self._count += size_of(batch)
        if len(self._buffers) > 1:
            try:
                self._buffers = [map_arrays(lambda *parts: np.concatenate(parts), *self._buffers)]
            except ValueError as error:
                raise ValueError(
                    "data has batches of several shapes, which cannot be batched anew: pad every "
                    f"example to one shape. ({error})"
                ) from error
        return self._buffers[0] if self._buffers else None

    def _split_buffer(self, buffer, taken_rows, kept_rows):
        """Takes some rows of the buffered examples out of the buffer, and returns them.

        Both `taken_rows` and `kept_rows` are indices, or a slice, of the rows; the buffer keeps
        only `kept_rows`. The result is () if the buffer is empty or None.
        """
        if buffer is None or not size_of(buffer):
            return ()
        self._buffers = [map_arrays(lambda array: array[kept_rows], buffer)]
        self._count = size_of(self._buffers[0])
        return map_arrays(lambda array: array[taken_rows], buffer)
