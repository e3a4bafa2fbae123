"""Compiled programs of XLA, read: the bytes that they move, and what they exchange."""

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

_SIZES = {
    "pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4, "u32": 4,
    "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16,
}  # fmt: skip
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\](?:\{([^}]*)\})?")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"(?:calls|to_apply|body)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"(?:true|false)_computation=%?([\w.\-]+)|branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'known_trip_count"?:\{"?n"?:"?(\d+)')
# What moves nothing, or moves what its beginning has moved.
_FREE = {
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "opt-barrier",
    "partition-id", "replica-id",
}  # fmt: skip
_PARTIAL = {"slice", "dynamic-slice", "gather"}  # reads what it results in
# Of the bytes of an all-reduce, what a collective sends.
_SHARES = {"all-reduce": 1.0, "reduce-scatter": 0.5, "all-gather": 0.5}
_COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
)  # fmt: skip


class Exchange(NamedTuple):
    """The collectives of a program that are alike."""

    kind: str  # such as all-reduce
    group: int | None  # how many replicas take part; None for all of them
    in_branch: bool  # whether they run in a branch alone
    count: int  # type: ignore[assignment]  # a tuple counts its entries by this name
    size: int  # bytes of their whole arrays


def collectives(exchanges: Iterable[Exchange]) -> dict[str, tuple[int, int]]:
    """By kind: how many there are, and the bytes of the whole arrays."""
    found: dict[str, tuple[int, int]] = {}
    for each in exchanges:
        count, size = found.get(each.kind, (0, 0))
        found[each.kind] = count + each.count, size + each.size
    return found


def reduced(exchanges: Iterable[Exchange], everyone: int, *, in_branches: bool) -> dict[int, float]:
    """Bytes to all-reduce, in branches or in all else, by how many of all replicas take part.

    A reduce-scatter or an all-gather is half of an all-reduce of the whole array.
    """
    found: dict[int, float] = {}
    for each in exchanges:
        if each.kind in _SHARES and each.in_branch == in_branches:
            group = each.group or everyone
            found[group] = found.get(group, 0) + _SHARES[each.kind] * each.size
    return found


class Text:
    """A compiled program, read from XLA's own notation."""

    def __init__(self, text: str):
        self._computations: dict[str, dict] = {}
        current, self._entry = None, ""
        for line in text.splitlines():
            if started := _COMPUTATION.match(line):
                current = self._computations.setdefault(started[2], {})
                self._entry = started[2] if started[1] else self._entry
            elif current is not None and (found := _INSTRUCTION.match(_plain(line))):
                name, result, operation, rest = found.groups()
                end = _closing(rest)
                operands = _NAME.findall(rest[:end])
                current[name] = (result, operation, operands, rest[end:], rest[:end])

    def bytes_moved(self, computation: str | None = None) -> float:
        """Bytes that its instructions read from HBM and write to it.

        An instruction reads its operands and writes its results; what lies in another memory, which
        the layout says by S(1), costs nothing. Of branches the dearest counts, and a loop as often
        as it is known to run.
        """
        instructions = self._computations[computation or self._entry]
        return sum(self._moved(instructions, name) for name in instructions)

    def _moved(self, instructions, name):
        result, operation, operands, attributes, _ = instructions[name]
        if operation in _FREE or operation.endswith("-done"):
            return 0
        if operation == "conditional":
            branches = [b for pair in _BRANCHES.findall(attributes) for b in pair if b]
            names = [n.strip(" %") for b in branches for n in b.split(",")]
            return max(self.bytes_moved(n) for n in names)
        match = _CALLED.search(attributes)
        called = match[1] if match else ""
        if operation in ("while", "call"):
            trips = _TRIPS.search(attributes)
            return self.bytes_moved(called) * (int(trips[1]) if trips else 1)
        if operation == "copy-start":  # its results: the copy, the source, a context
            return _size(_arrays(result)[0]) + _size(instructions[operands[0]][0])
        if operation == "async-start":
            return self.bytes_moved(called)
        if operation == "slice-start":  # its results: the source, the slice, a context
            result = _arrays(result)[1]
        if operation in _PARTIAL or operation == "slice-start":
            return _size(result, anywhere=True) + _size(result)
        if operation == "dynamic-update-slice":
            return 2 * _size(instructions[operands[1]][0])
        inner = self._computations[called] if called and operation == "fusion" else {}
        parameters = {int(i[4]): n for n, i in inner.items() if i[1] == "parameter"}
        moved = _size(result)
        for position, operand in enumerate(operands):
            if operand in instructions:
                whole = _size(instructions[operand][0])
                moved += min(whole, _read(inner, parameters.get(position), whole))
        return moved

    def exchanges(self) -> tuple[Exchange, ...]:
        """The collectives of its replicas, by kind."""
        found: dict[tuple, tuple] = {}
        branches = self._in_branches()
        for kind, size, attributes, computation in self._exchanges():
            key = kind, _group(attributes), computation in branches
            count, total = found.get(key, (0, 0))
            found[key] = count + 1, total + size
        return tuple(Exchange(*key, *sums) for key, sums in found.items())

    def _exchanges(self):
        for computation, instructions in self._computations.items():
            # libtpu's name of a fusion.
            scattered = computation.startswith("all-reduce-scatter")
            for result, operation, operands, attributes, _ in instructions.values():
                kind = operation.removesuffix("-start")
                if kind in _COLLECTIVES:
                    shapes = (instructions[o][0] for o in operands if o in instructions)
                    given = sum(_size(shape, anywhere=True) for shape in shapes)
                    size = _size(result, anywhere=True)
                    if operation == "all-gather-start":  # its results: the parts, and the whole
                        size -= given
                    kind = "reduce-scatter" if scattered else kind
                    yield kind, given if kind == "reduce-scatter" else size, attributes, computation

    def _in_branches(self) -> set[str]:
        """The computations that run in a branch alone."""
        found, todo = set(), list(self._called(_BRANCHES, self._computations))
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += [*self._called(_BRANCHES, [name]), *self._called(_CALLED, [name])]
        return found

    def _called(self, pattern, computations):
        for computation in computations:
            for instruction in self._computations.get(computation, {}).values():
                for names in pattern.findall(instruction[3]):
                    joined = names if isinstance(names, str) else ",".join(names)
                    yield from (n.strip(" %") for n in joined.split(",") if n.strip())


# As lists of replicas, as their shape, or as axes of a mesh.
_LISTED = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_SHAPED = re.compile(r"replica_groups=\[\d+,(\d+)\]<=")
_MESHED = re.compile(r"replica_groups=(mesh\[[^\]]*\].*?) \{([^}]*)\}")


def _group(attributes: str) -> int | None:
    """The number of replicas in a collective."""
    if listed := _LISTED.search(attributes):
        return len(listed[1].split(","))
    if shaped := _SHAPED.search(attributes):
        return int(shaped[1])
    if meshed := _MESHED.search(attributes):
        lengths = dict(re.findall(r"'(\w+)'=(\d+)", meshed[1]))
        return math.prod(int(lengths[axis]) for axis in re.findall(r"'(\w+)'", meshed[2]))
    return None


def _plain(line: str) -> str:
    return re.sub(r"/\*.*?\*/", "", line)


def _closing(text: str) -> int:
    """The position where the parenthesis ends that was open before the text."""
    depth = 1
    for i, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return i
    return len(text)


def _arrays(shape: str) -> list[str]:
    """The arrays of a shape, each as it is written."""
    return [found[0] for found in _ARRAY.finditer(shape)]


def _size(shape: str, anywhere=False) -> int:
    """Bytes of the arrays of a shape that lie in HBM, or in any memory."""
    arrays = (a for a in _ARRAY.findall(shape) if a[0] in _SIZES)
    return sum(
        _SIZES[dtype] * math.prod(int(n) for n in lengths.split(",") if n)
        for dtype, lengths, layout in arrays
        if anywhere or "S(" not in layout
    )


def _read(inner, parameter, whole):
    """The bytes of an operand that a fusion reads: fewer than all, if it takes only slices."""
    users = [i for i in inner.values() if parameter in i[2]] if parameter else []
    if not users or any(i[1] not in _PARTIAL or i[2][0] != parameter for i in users):
        return whole
    return sum(_size(i[0], anywhere=True) for i in users)
