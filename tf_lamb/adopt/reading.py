"""Knows a script: what its names refer to, what is to be replaced in it, and what to say of it."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import libcst as cst
from libcst import matchers
from libcst.metadata import (
    ImportAssignment,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    QualifiedNameProvider,
    QualifiedNameSource,
    ScopeProvider,
)

from tf_lamb.adopt.sources import OF_NAME

# What may be removed from a script once nothing refers to it: imports of optimizers alone.
_OPTIMIZERS = ("tensorflow_addons", "official.modeling", *OF_NAME)

# The module of our class -> the Keras that it is of.
KERAS_OF = {
    "tf_lamb": "tensorflow.keras", "tf_lamb.keras": "keras", "tf_lamb.tf_keras": "tf_keras",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Note:
    """Says what became of one place of a script.

    Attributes:
        line: The line, from 1.
        text: What was rewritten, or why it was left.
        details: What is computed otherwise then, a sentence each.
        is_left: Whether the place stays as it is.
    """

    line: int
    text: str
    details: tuple[str, ...] = ()
    is_left: bool = False

    def __str__(self):
        return "\n".join([f"line {self.line}: {self.text}", *(f"    {d}" for d in self.details)])


class Script:
    """Holds what is known of a script, and what is to be replaced in it.

    Attributes:
        replacements: Node -> a function of what it has become, its children rewritten, that returns
            what replaces it.
        referring: The nodes that refer to another package's optimizer and are replaced.
        anchors: The nodes that need ours, those among them.
        notes: What became of each place.
        needs_garden: Whether our names are to be registered in the Model Garden.
    """

    def __init__(self, wrapper: MetadataWrapper, code: str, same_steps: bool):
        self.code, self.same_steps = code, same_steps
        self.module = wrapper.module
        self.positions = wrapper.resolve(PositionProvider)
        self.qualified_names = wrapper.resolve(QualifiedNameProvider)
        self.parents = wrapper.resolve(ParentNodeProvider)
        self.scopes = wrapper.resolve(ScopeProvider)
        self.replacements: dict[cst.CSTNode, Callable[[Any], cst.CSTNode]] = {}
        self.referring: set[cst.CSTNode] = set()
        self.anchors: set[cst.CSTNode] = set()
        self.notes: list[Note] = []
        self.needs_garden = False

    def name_of(self, node: cst.CSTNode) -> str:
        """Returns the full name that a node refers to by an import, or ""."""
        found = self.qualified_names.get(node, ())
        found = found() if callable(found) else found  # some are looked up when asked for
        names = {n.name for n in found if n.source is QualifiedNameSource.IMPORT}
        return names.pop() if len(names) == len(found) == 1 else ""

    def text(self, node: cst.CSTNode) -> str:
        """Returns the code of a node."""
        return self.module.code_for_node(node)

    def note(self, node: cst.CSTNode, text: str, details=(), is_left: bool = False):
        """Notes what became of a node."""
        self.notes.append(Note(self.positions[node].start.line, text, tuple(details), is_left))

    @functools.cached_property
    def imported(self) -> set[str]:
        """The packages that the script imports, without their submodules."""
        return {
            name.name.partition(".")[0]
            for assignment in self._assignments
            for name in assignment.get_qualified_names_for(assignment.name)
        }

    @functools.cached_property
    def _assignments(self) -> list[ImportAssignment]:
        """The names that imports of the script bind."""
        return [
            assignment
            for scope in {scope for scope in self.scopes.values() if scope}
            for assignment in scope.assignments
            if isinstance(assignment, ImportAssignment)
        ]

    def is_unused(self, alias: cst.ImportAlias) -> bool:
        """Returns whether an import of optimizers is of no use once the script is rewritten."""
        assignments = [
            a for a in self._assignments if alias in aliases_of(a.node) and a.name == _bound(alias)
        ]
        names = {n.name for a in assignments for n in a.get_qualified_names_for(a.name)}
        accesses = [access.node for a in assignments for access in a.references]
        return (
            bool(accesses)
            and "__all__" not in self.code
            and all(name.startswith(_OPTIMIZERS) for name in names)
            and all(
                any(node in self.referring for node in self._above(access)) for access in accesses
            )
        )

    def _above(self, node):
        """Yields a node and all around it."""
        while node is not None:
            yield node
            node = self.parents.get(node)

    def is_in_text(self, node: cst.CSTNode) -> bool:
        """Returns whether a node is part of an f-string, whose quotes are not to be met."""
        return any(isinstance(above, cst.FormattedString) for above in self._above(node))

    def namespace_of(self, name: str) -> str:
        """Returns the module of our class for an optimizer, by the Keras of the script."""
        if name.startswith("keras."):
            return "tf_lamb.keras"
        if name.startswith("tensorflow.keras."):
            return "tf_lamb"
        if "tf_keras" in self.imported:
            return "tf_lamb.tf_keras"
        is_keras_3 = "keras" in self.imported and "tensorflow.keras" not in self.keras_names
        return "tf_lamb.keras" if is_keras_3 else "tf_lamb"

    @functools.cached_property
    def keras_names(self) -> dict[str, str]:
        """The Kerases that the script uses -> how it calls each, such as "tf.keras"."""
        found: dict[str, str] = {}
        for node in matchers.findall(self.module, matchers.Attribute() | matchers.Name()):
            if (name := self.name_of(node)) in ("keras", "tf_keras", "tensorflow.keras"):
                found.setdefault(name, self.text(node))
        return found

    def place_of_import(self) -> tuple[int, cst.SimpleStatementLine | None]:
        """Returns where `import tf_lamb` belongs: a line of the module, and an import to replace.

        It is behind the first import of what is replaced, where that is a line of the module; else
        before the first line of code. The second is None where nothing is to be replaced.
        """
        body = self.module.body
        first = int(self.module.get_docstring() is not None)
        while first < len(body) and _is_of_future(body[first]):
            first += 1
        for position, line in enumerate(body):
            for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
                if is_import(statement) and self._binds_replaced(statement):
                    return position + 1, line
        return first, None

    def has_ours_before(self, place: int) -> bool:
        """Returns whether a line of the module before a place is `import tf_lamb`."""
        return any(
            isinstance(statement, cst.Import)
            and any(alias.evaluated_name == _bound(alias) == "tf_lamb" for alias in statement.names)
            for line in self.module.body[:place]
            if isinstance(line, cst.SimpleStatementLine)
            for statement in line.body
        )

    def _binds_replaced(self, statement):
        """Returns whether an import binds a name by which what needs ours is reached."""
        return any(
            node in self.anchors
            for assignment in self._assignments
            if assignment.node is statement
            for access in assignment.references
            for node in self._above(access.node)
        )


def is_import(statement) -> bool:
    """Returns whether a statement imports names, and not all of a module."""
    return isinstance(statement, (cst.Import, cst.ImportFrom)) and bool(aliases_of(statement))


def _is_of_future(line) -> bool:
    """Returns whether a line imports from `__future__`, behind which everything else stands."""
    return isinstance(line, cst.SimpleStatementLine) and any(
        isinstance(statement, cst.ImportFrom)
        and statement.module is not None
        and statement.module.value == "__future__"
        for statement in line.body
    )


def aliases_of(statement) -> tuple:
    """Returns the names that an import has; none for everything of a module."""
    return () if isinstance(statement.names, cst.ImportStar) else tuple(statement.names)


def _bound(alias: cst.ImportAlias) -> str:
    """Returns the name that an import binds."""
    return alias.evaluated_alias or alias.evaluated_name
