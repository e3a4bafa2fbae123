"""Reads the text of compiled XLA programs: the bytes that they move, and their collectives."""

import collections
import math
import re
from collections.abc import Iterable
from typing import NamedTuple

# Regular expressions for parts of XLA's text format. Their groups are:
# _ARRAY: the dtype, lengths and layout of an array. _BITS: the bits in the name of a dtype.
# _COMPUTATION: ENTRY if it is the entry, and the name, in the first line of a computation.
# _INSTRUCTION: ROOT if it is its computation's result, then name, result shape, operation and rest.
# _NAME: the name of an operand. _CALLED and _BRANCHES: the computations that an instruction calls.
# _TRIPS: how often a loop runs.
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\](?:\{([^}]*)\})?")
_BITS = re.compile(r"[a-z]+(\d+)")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"(?:calls|to_apply|body)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"(?:true|false)_computation=%?([\w.\-]+)|branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'known_trip_count"?:\{"?n"?:"?(\d+)')
# Operations that move no bytes. An operation whose name ends in -done does not either, because its
# bytes are counted for the matching -start.
_FREE = {
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "opt-barrier",
    "partition-id", "replica-id",
}  # fmt: skip
# Operations that read only as many bytes of their operand as their result has.
_PARTIAL = {"slice", "dynamic-slice", "gather"}
# The bytes that a collective sends, as a fraction of what an all-reduce of the same array sends.
_SHARES = {"all-reduce": 1.0, "reduce-scatter": 0.5, "all-gather": 0.5}
_COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
)  # fmt: skip


class Exchange(NamedTuple):
    """Stands for all collectives of a program that have the same kind, group and `in_branch`.

    Attributes:
        kind: The kind, such as all-reduce.
        group: The number of replicas that take part; None for all of them.
        in_branch: Whether the collectives are inside of a branch of a conditional.
        count: The number of collectives. A collective in a loop counts once for each time that the
            loop is known to run.
        size: The bytes of the whole arrays of all these collectives together.
    """

    kind: str
    group: int | None
    in_branch: bool
    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    size: int


def collectives(exchanges: Iterable[Exchange]) -> dict[str, tuple[int, int]]:
    """Counts the collectives of each kind, and adds up the bytes of their arrays.

    Returns:
        Kind of collective, such as all-reduce -> (how many there are, the bytes of their arrays
        together). An array that is split over replicas counts in full.
    """
    totals: dict[str, tuple[int, int]] = {}
    for exchange in exchanges:
        count, size = totals.get(exchange.kind, (0, 0))
        totals[exchange.kind] = count + exchange.count, size + exchange.size
    return totals


def reduced(exchanges: Iterable[Exchange], everyone: int, *, in_branches: bool) -> dict[int, float]:
    """Returns the bytes to all-reduce, as a dict whose keys are the numbers of replicas in a group.

    A reduce-scatter or an all-gather counts as half of an all-reduce of the whole array.

    Args:
        exchanges: The collectives of a program.
        everyone: The number of all replicas.
        in_branches: Whether to count the collectives inside branches, or all other ones.
    """
    totals: dict[int, float] = {}
    for exchange in exchanges:
        if exchange.kind in _SHARES and exchange.in_branch == in_branches:
            group = exchange.group or everyone
            totals[group] = totals.get(group, 0) + _SHARES[exchange.kind] * exchange.size
    return totals


class Text:
    """Reads a compiled program from XLA's text format.

    Args:
        text: The text of the program.
    """

    def __init__(self, text: str):
        self._computations: dict[str, dict] = {}
        self._roots: dict[str, str] = {}
        computation, current, self._entry = "", {}, ""
        for line in text.splitlines():
            if header := _COMPUTATION.match(line):
                computation = header[2]
                current = self._computations[computation] = {}
                self._entry = computation if header[1] else self._entry
            elif computation and (match := _INSTRUCTION.match(_plain(line))):
                is_root, name, result, operation, tail = match.groups()
                end = _closing(tail)
                operands = _NAME.findall(tail[:end])
                current[name] = (result, operation, operands, tail[end:], tail[:end])
                if is_root:
                    self._roots[computation] = name

    def bytes_moved(self, computation: str | None = None) -> float:
        """Returns the bytes that a computation's instructions read from HBM and write to it.

        An instruction reads its operands and writes its results. Data in another memory, which the
        layout marks by S(1), are not counted. For an instruction that takes or replaces a slice,
        only the slice is counted. Of several branches, the one that moves the most bytes is
        counted. The body of a loop is counted once for each time that it is known to run.

        Args:
            computation: The name of the computation. Defaults to None: the program's entry.
        """
        instructions = self._computations[computation or self._entry]
        return sum(self._moved(instructions, name) for name in instructions)

    def _moved(self, instructions, name):
        """Returns the bytes that one instruction reads from HBM and writes to it.

        Args:
            instructions: The instructions of its computation, by name.
            name: The name of the instruction.
        """
        result, operation, operands, attributes, _ = instructions[name]
        if operation in _FREE or operation.endswith("-done"):
            return 0
        if operation == "conditional":
            branches = [
                branch for pair in _BRANCHES.findall(attributes) for branch in pair if branch
            ]
            names = [label.strip(" %") for branch in branches for label in branch.split(",")]
            return max(self.bytes_moved(label) for label in names)
        match = _CALLED.search(attributes)
        called = match[1] if match else ""
        if operation in ("while", "call"):
            return self.bytes_moved(called) * _trips(attributes)
        shapes = [instructions.get(operand, ("",))[0] for operand in operands]
        if operation == "copy-start":  # its results are the copy, the source and a context
            return _size(_arrays(result)[0]) + _size(shapes[0])
        if operation == "async-start":
            return self.bytes_moved(called)
        if operation == "slice-start":  # its results are the source, the slice and a context
            result = _arrays(result)[1]
        if operation in _PARTIAL or operation == "slice-start":
            return _part(result, shapes[0]) + _size(result)
        if operation == "dynamic-update-slice":  # it writes only a slice of its first operand
            return _size(shapes[1]) + _part(shapes[1], shapes[0])
        if operation == "fusion":
            return self._fused(called, result, shapes)
        return _size(result) + sum(map(_size, shapes))

    def _fused(self, computation, result, shapes):
        """Returns the bytes that a fusion reads from HBM and writes to it.

        If the fusion only takes slices of an operand, only the slices are counted as read. If a
        result is an operand in which a slice was replaced, only the slice is counted as written.

        Args:
            computation: The name of the fusion's computation.
            result: The shape of the fusion's result.
            shapes: The shapes of the fusion's operands.
        """
        inner, root = self._computations[computation], self._roots[computation]
        arrays = _arrays(result)
        outputs = inner[root][2] if inner[root][1] == "tuple" else [root] * len(arrays)
        replacing = {label for label in outputs if _is_replacement(inner, label)}
        moved = 0
        for label, array in zip(outputs, arrays, strict=True):
            written = inner[inner[label][2][1]][0] if label in replacing else array
            moved += _part(written, array)
        for label, (_, operation, _, _, inside) in inner.items():
            if operation == "parameter":
                operand = shapes[int(inside)]
                moved += min(_size(operand), _read(inner, label, replacing, _size(operand)))
        return moved

    def exchanges(self) -> tuple[Exchange, ...]:
        """Returns the collectives of the program.

        An `Exchange` stands for all collectives of the same kind, group and `in_branch`.
        A collective in a loop is counted once for each time that the loop is known to run. The
        collectives of all branches are counted, although only one branch runs.
        """
        totals: dict[tuple, tuple] = {}
        branches, runs = self._in_branches(), self._runs()
        for kind, size, attributes, computation in self._exchanges():
            key = kind, _group(attributes), computation in branches
            count, total = totals.get(key, (0, 0))
            # A computation that no known instruction calls still belongs to the program: count it
            # once.
            times = runs.get(computation, 1)
            totals[key] = count + times, total + times * size
        return tuple(Exchange(*key, *sums) for key, sums in totals.items())

    def _exchanges(self):
        """Yields a tuple for each collective operation of the program, such as an all-reduce.

        It has the kind, the bytes, the text of the attributes, and the name of the computation.
        """
        for computation, instructions in self._computations.items():
            # libtpu writes a reduce-scatter as a fusion with this name, which has an all-reduce.
            scattered = computation.startswith("all-reduce-scatter")
            for result, operation, operands, attributes, _ in instructions.values():
                kind = operation.removesuffix("-start")
                if kind in _COLLECTIVES:
                    shapes = (
                        instructions[operand][0] for operand in operands if operand in instructions
                    )
                    total = sum(_size(shape, anywhere=True) for shape in shapes)
                    size = _size(result, anywhere=True)
                    # The result of an all-gather-start contains its operands, too.
                    if operation == "all-gather-start":
                        size -= total
                    # The result of a collective-permute-start has further arrays, so the operands
                    # are counted.
                    elif operation == "collective-permute-start":
                        size = total
                    kind = "reduce-scatter" if scattered else kind
                    yield kind, total if kind == "reduce-scatter" else size, attributes, computation

    def _runs(self) -> collections.Counter[str]:
        """Returns how often each computation runs; a loop of unknown length counts as one run."""
        runs: collections.Counter[str] = collections.Counter()
        pending = [(self._entry, 1)]
        while pending:
            name, times = pending.pop()
            runs[name] += times
            for _, operation, _, attributes, _ in self._computations.get(name, {}).values():
                # An asynchronous call is counted for its -start, not again for -update and -done.
                if not operation.endswith(("-update", "-done")):
                    called = [*_called(_CALLED, attributes), *_called(_BRANCHES, attributes)]
                    pending += [(each, times * _trips(attributes)) for each in called]
        return runs

    def _in_branches(self) -> set[str]:
        """Returns the names of the branches of conditionals, and of all computations they call."""
        reached, pending = set(), list(self._all_called(_BRANCHES, self._computations))
        while pending:
            name = pending.pop()
            if name not in reached:
                reached.add(name)
                pending += [
                    *self._all_called(_BRANCHES, [name]), *self._all_called(_CALLED, [name])
                ]  # fmt: skip
        return reached

    def _all_called(self, pattern, computations):
        """Yields the names of the computations that some computations call.

        Args:
            pattern: `_CALLED` for calls, or `_BRANCHES` for branches.
            computations: The names of the computations that call.
        """
        for computation in computations:
            for instruction in self._computations.get(computation, {}).values():
                yield from _called(pattern, instruction[3])


def _called(pattern, attributes: str) -> list[str]:
    """Returns the names of the computations that an instruction calls.

    Args:
        pattern: `_CALLED` for calls, or `_BRANCHES` for branches.
        attributes: The text of the instruction after its operands.
    """
    labels = []
    for names in pattern.findall(attributes):
        joined = names if isinstance(names, str) else ",".join(names)
        labels += [name.strip(" %") for name in joined.split(",") if name.strip()]
    return labels


def _trips(attributes: str) -> int:
    """Returns how often an instruction runs the computations that it calls.

    The result is 1, unless the instruction is a loop for which XLA knows the number of runs.
    """
    trips = _TRIPS.search(attributes)
    return int(trips[1]) if trips else 1


# XLA writes the groups of replicas in a collective in one of three ways: as lists of the replicas,
# as the number and size of the groups, or as axes of a mesh.
_LISTED = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_SHAPED = re.compile(r"replica_groups=\[\d+,(\d+)\]<=")
_MESHED = re.compile(r"replica_groups=(mesh\[[^\]]*\].*?) \{([^}]*)\}")


def _group(attributes: str) -> int | None:
    """Returns how many replicas take part in a collective together; None for all of them.

    Args:
        attributes: The text of the collective's instruction after its operands.
    """
    if listed := _LISTED.search(attributes):
        return len(listed[1].split(","))
    if shaped := _SHAPED.search(attributes):
        return int(shaped[1])
    if meshed := _MESHED.search(attributes):
        lengths = dict(re.findall(r"'(\w+)'=(\d+)", meshed[1]))
        return math.prod(int(lengths[axis]) for axis in re.findall(r"'(\w+)'", meshed[2]))
    return None


def _plain(line: str) -> str:
    """Returns a line of a program without its comments."""
    return re.sub(r"/\*.*?\*/", "", line)


def _closing(text: str) -> int:
    """Returns the position of the closing parenthesis, in a text that begins after the opening one.

    It is the length of the text if none closes it.
    """
    depth = 1
    for i, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return i
    return len(text)


def _arrays(shape: str) -> list[str]:
    """Returns the text of each array in a shape, such as "f32[8,4]{1,0}"."""
    return [match[0] for match in _ARRAY.finditer(shape)]


def _size(shape: str, anywhere=False) -> int:
    """Returns the bytes of the arrays of a shape.

    The bits of a number are read from the name of its dtype. A boolean, pred, takes a byte. Tokens
    and opaque values take none.

    Args:
        shape: The shape in XLA's text format.
        anywhere: Whether arrays in all memories count, and not only those in HBM. Defaults to
            False.
    """
    total = 0
    for dtype, lengths, layout in _ARRAY.findall(shape):
        if anywhere or "S(" not in layout:
            bits = _BITS.match("u8" if dtype == "pred" else dtype)
            count = math.prod(int(length) for length in lengths.split(",") if length)
            total += math.ceil(count * int(bits[1]) / 8) if bits else 0
    return total


def _part(part: str, whole: str) -> int:
    """Returns the bytes of a part of an array if the array is in HBM, else 0.

    Args:
        part: The shape of the part.
        whole: The shape of the array, whose layout names its memory.
    """
    return 0 if "S(" in whole else _size(part, anywhere=True)


def _is_replacement(inner, label):
    """Returns whether a result of a fusion is one of its operands, with only a slice replaced.

    The result is False if another instruction of the fusion reads the result, because that needs
    all of its bytes.

    Args:
        inner: The instructions of the fusion, by name.
        label: The name of the instruction that computes the result.
    """
    _, operation, operands, _, _ = inner[label]
    uses = sum(user[2].count(label) for user in inner.values())
    is_update = operation == "dynamic-update-slice" and uses <= 1
    return is_update and inner[operands[0]][1] == "parameter"


def _read(inner, parameter, replacing, whole):
    """Returns the bytes that a fusion reads of an operand.

    They are the bytes of slices if the fusion only takes slices of the operand, and 0 if it only
    replaces a slice of it.

    Args:
        inner: The instructions of the fusion, by name.
        parameter: The name of the operand in the fusion.
        replacing: The names of the instructions that only replace a slice of an operand.
        whole: The bytes of the whole operand.
    """
    users = {label: user for label, user in inner.items() if parameter in user[2]}
    if not users:
        return whole
    read = 0
    for label, (result, operation, operands, _, _) in users.items():
        if parameter in operands[1:] or not (operation in _PARTIAL or label in replacing):
            return whole
        read += 0 if label in replacing else _size(result, anywhere=True)
    return read
