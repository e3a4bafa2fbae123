"""Reads compiled programs of XLA: the bytes that they move, and their collectives."""

import collections
import math
import re
from collections.abc import Iterable
from typing import NamedTuple

# Parts of XLA's notation: an array's dtype, lengths and layout; the bits in a dtype's name; the
# head of a computation; whether an instruction is its computation's root, the instruction's name,
# result, operation and all that follows; names, calls, branches and trips.
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\](?:\{([^}]*)\})?")
_BITS = re.compile(r"[a-z]+(\d+)")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"(?:calls|to_apply|body)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"(?:true|false)_computation=%?([\w.\-]+)|branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'known_trip_count"?:\{"?n"?:"?(\d+)')
# Operations that move nothing. Nor do those that end in -done, as their start moved the bytes.
_FREE = {
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "opt-barrier",
    "partition-id", "replica-id",
}  # fmt: skip
# Operations that read only as many bytes as their result has.
_PARTIAL = {"slice", "dynamic-slice", "gather"}
# The bytes that a collective sends, as a fraction of those of an all-reduce.
_SHARES = {"all-reduce": 1.0, "reduce-scatter": 0.5, "all-gather": 0.5}
_COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
)  # fmt: skip


class Exchange(NamedTuple):
    """Holds the collectives of a program that are alike.

    Attributes:
        kind: The kind, such as all-reduce.
        group: The number of replicas that take part; None for all of them.
        in_branch: Whether the collectives run only in a branch.
        count: The number of collectives. One in a loop counts as often as it is known to run.
        size: The bytes of their whole arrays, together.
    """

    kind: str
    group: int | None
    in_branch: bool
    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    size: int


def collectives(exchanges: Iterable[Exchange]) -> dict[str, tuple[int, int]]:
    """Returns the number of collectives and the bytes of their whole arrays, by kind."""
    totals: dict[str, tuple[int, int]] = {}
    for exchange in exchanges:
        count, size = totals.get(exchange.kind, (0, 0))
        totals[exchange.kind] = count + exchange.count, size + exchange.size
    return totals


def reduced(exchanges: Iterable[Exchange], everyone: int, *, in_branches: bool) -> dict[int, float]:
    """Returns the bytes to all-reduce, by the number of replicas that take part.

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
    """Reads a compiled program from XLA's own notation.

    Args:
        text: The program.
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
        layout marks by S(1), costs nothing. An instruction that takes or replaces a slice moves no
        more than the slice. The dearest of several branches counts. A loop counts as often as it is
        known to run.

        Args:
            computation: The name of the computation. Defaults to None: the program's entry.
        """
        instructions = self._computations[computation or self._entry]
        return sum(self._moved(instructions, name) for name in instructions)

    def _moved(self, instructions, name):
        """Returns the bytes that one instruction reads from HBM and writes to it."""
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
        if operation == "dynamic-update-slice":  # it writes into its first operand
            return _size(shapes[1]) + _part(shapes[1], shapes[0])
        if operation == "fusion":
            return self._fused(called, result, shapes)
        return _size(result) + sum(map(_size, shapes))

    def _fused(self, computation, result, shapes):
        """Returns the bytes that a fusion reads from HBM and writes to it.

        Of an operand from which it only takes slices, it reads these alone. If it only replaces a
        slice of an operand, and the outcome is one of its results, it writes that slice alone.

        Args:
            computation: The name of the fusion's computation.
            result: The shape of its result.
            shapes: The shapes of its operands.
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
        """Returns the collectives of the program; those that are alike are one entry.

        As in `bytes_moved`, a loop counts as often as it is known to run; unlike there, every
        branch counts.
        """
        totals: dict[tuple, tuple] = {}
        branches, runs = self._in_branches(), self._runs()
        for kind, size, attributes, computation in self._exchanges():
            key = kind, _group(attributes), computation in branches
            count, total = totals.get(key, (0, 0))
            times = runs.get(computation, 1)  # it is part of the program, whatever calls it
            totals[key] = count + times, total + times * size
        return tuple(Exchange(*key, *sums) for key, sums in totals.items())

    def _exchanges(self):
        """Yields the kind, bytes, attributes and computation of each collective."""
        for computation, instructions in self._computations.items():
            # libtpu names the fusion of a reduce-scatter so.
            scattered = computation.startswith("all-reduce-scatter")
            for result, operation, operands, attributes, _ in instructions.values():
                kind = operation.removesuffix("-start")
                if kind in _COLLECTIVES:
                    shapes = (
                        instructions[operand][0] for operand in operands if operand in instructions
                    )
                    total = sum(_size(shape, anywhere=True) for shape in shapes)
                    size = _size(result, anywhere=True)
                    if operation == "all-gather-start":  # its results are the parts and the whole
                        size -= total
                    elif operation == "collective-permute-start":  # what it sends, too, and flags
                        size = total
                    kind = "reduce-scatter" if scattered else kind
                    yield kind, total if kind == "reduce-scatter" else size, attributes, computation

    def _runs(self) -> collections.Counter[str]:
        """Returns how often each computation runs, as far as the turns of loops are known."""
        runs: collections.Counter[str] = collections.Counter()
        pending = [(self._entry, 1)]
        while pending:
            name, times = pending.pop()
            runs[name] += times
            for _, operation, _, attributes, _ in self._computations.get(name, {}).values():
                if not operation.endswith(("-update", "-done")):  # the start has run the calls
                    called = [*_called(_CALLED, attributes), *_called(_BRANCHES, attributes)]
                    pending += [(each, times * _trips(attributes)) for each in called]
        return runs

    def _in_branches(self) -> set[str]:
        """Returns the computations that run only in a branch."""
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
        """Yields the names of the computations that these computations call, by this pattern."""
        for computation in computations:
            for instruction in self._computations.get(computation, {}).values():
                yield from _called(pattern, instruction[3])


def _called(pattern, attributes: str) -> list[str]:
    """Returns the names of the computations that an instruction calls, by this pattern."""
    labels = []
    for names in pattern.findall(attributes):
        joined = names if isinstance(names, str) else ",".join(names)
        labels += [name.strip(" %") for name in joined.split(",") if name.strip()]
    return labels


def _trips(attributes: str) -> int:
    """Returns how often an instruction is known to run what it calls: once, unless it is a loop."""
    trips = _TRIPS.search(attributes)
    return int(trips[1]) if trips else 1


# XLA writes groups of replicas as lists, as their shape, or as axes of a mesh.
_LISTED = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_SHAPED = re.compile(r"replica_groups=\[\d+,(\d+)\]<=")
_MESHED = re.compile(r"replica_groups=(mesh\[[^\]]*\].*?) \{([^}]*)\}")


def _group(attributes: str) -> int | None:
    """Returns the number of replicas in a collective, or None for all."""
    if listed := _LISTED.search(attributes):
        return len(listed[1].split(","))
    if shaped := _SHAPED.search(attributes):
        return int(shaped[1])
    if meshed := _MESHED.search(attributes):
        lengths = dict(re.findall(r"'(\w+)'=(\d+)", meshed[1]))
        return math.prod(int(lengths[axis]) for axis in re.findall(r"'(\w+)'", meshed[2]))
    return None


def _plain(line: str) -> str:
    """Returns the line without comments."""
    return re.sub(r"/\*.*?\*/", "", line)


def _closing(text: str) -> int:
    """Returns the position of the parenthesis that closes one opened before the text."""
    depth = 1
    for i, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return i
    return len(text)


def _arrays(shape: str) -> list[str]:
    """Returns the text of each array of a shape."""
    return [match[0] for match in _ARRAY.finditer(shape)]


def _size(shape: str, anywhere=False) -> int:
    """Returns the bytes of a shape's arrays in HBM, or in any memory.

    The name of every dtype of numbers has its bits, and pred is stored as a byte. Tokens and opaque
    values hold nothing.
    """
    total = 0
    for dtype, lengths, layout in _ARRAY.findall(shape):
        if anywhere or "S(" not in layout:
            bits = _BITS.match("u8" if dtype == "pred" else dtype)
            count = math.prod(int(length) for length in lengths.split(",") if length)
            total += math.ceil(count * int(bits[1]) / 8) if bits else 0
    return total


def _part(part: str, whole: str) -> int:
    """Returns the bytes of a part of an array in HBM; 0 if the array is in another memory."""
    return 0 if "S(" in whole else _size(part, anywhere=True)


def _is_replacement(inner, label):
    """Returns whether a result of a fusion is an operand of it with another slice.

    Another instruction that reads this result would need all of it.
    """
    _, operation, operands, _, _ = inner[label]
    uses = sum(user[2].count(label) for user in inner.values())
    is_update = operation == "dynamic-update-slice" and uses <= 1
    return is_update and inner[operands[0]][1] == "parameter"


def _read(inner, parameter, replacing, whole):
    """Returns the bytes of an operand that a fusion reads: fewer if it only needs slices.

    Args:
        inner: The instructions of the fusion.
        parameter: The operand's name in the fusion.
        replacing: The names of the instructions whose outcome is the operand with another slice.
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
