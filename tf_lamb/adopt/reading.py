"""Knows a script: what its names refer to, what is to be replaced in it, and what to say of it."""

import dataclasses
import functools

import libcst as cst
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

# How a script calls the Keras that `tf.keras` is.
_TENSORFLOWS_KERAS = ("tf.keras", "tensorflow.keras", "from tensorflow import keras")
# The module of our class -> the Keras that it is of, as a script calls it.
KERAS_OF = {"tf_lamb": "tf.keras", "tf_lamb.keras": "keras", "tf_lamb.tf_keras": "tf_keras"}


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
        replacements: Node -> the node that replaces it.
        referring: The nodes that refer to another package's optimizer and are replaced.
        notes: What became of each place.
        needs: The modules that the new calls need, in the order in which they were met.
    """

    def __init__(self, wrapper: MetadataWrapper, code: str, same_steps: bool):
        self.code, self.same_steps = code, same_steps
        self.module = wrapper.module
        self.positions = wrapper.resolve(PositionProvider)
        self.qualified_names = wrapper.resolve(QualifiedNameProvider)
        self.parents = wrapper.resolve(ParentNodeProvider)
        self.scopes = wrapper.resolve(ScopeProvider)
        self.replacements: dict[cst.CSTNode, cst.CSTNode] = {}
        self.referring: set[cst.CSTNode] = set()
        self.notes: list[Note] = []
        self.needs: list[str] = []

    def name_of(self, node: cst.CSTNode) -> str:
        """Returns the full name that a node refers to by an import, or ""."""
        found = self.qualified_names.get(node, ())
        names = {
            name.name
            for name in (found() if callable(found) else found)  # found when it is asked for
            if name.source is QualifiedNameSource.IMPORT
        }
        return names.pop() if len(names) == 1 else ""

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
            a
            for a in self._assignments
            if alias in (a.node, *_aliases(a.node)) and a.name == _bound(alias)
        ]
        names = {n.name for a in assignments for n in a.get_qualified_names_for(a.name)}
        accesses = [access.node for a in assignments for access in a.references]
        return (
            bool(accesses)
            and all(name.startswith(_OPTIMIZERS) for name in names)
            and all(
                any(node in self.referring for node in self._above(access)) for access in accesses
            )
        )

    def is_of_module(self, node: cst.CSTNode) -> bool:
        """Returns whether a statement is in no function and no class."""
        return not any(isinstance(n, (cst.FunctionDef, cst.ClassDef)) for n in self._above(node))

    def _above(self, node):
        """Yields a node and all around it."""
        while node is not None:
            yield node
            node = self.parents.get(node)

    def namespace_of(self, name: str) -> str:
        """Returns the module of our class for an optimizer, by the Keras of the script."""
        if name.startswith("keras."):
            return "tf_lamb.keras"
        if name.startswith("tensorflow.keras."):
            return "tf_lamb"
        if "tf_keras" in self.imported:
            return "tf_lamb.tf_keras"
        has_tensorflows = any(text in self.code for text in _TENSORFLOWS_KERAS)
        return "tf_lamb.keras" if "keras" in self.imported and not has_tensorflows else "tf_lamb"

    def need(self, statement: str):
        """Notes a statement that the new calls need."""
        if statement not in self.needs:
            self.needs.append(statement)


def _aliases(node):
    """Returns the names that an import has."""
    return () if isinstance(node.names, cst.ImportStar) else node.names


def _bound(alias: cst.ImportAlias) -> str:
    """Returns the name that an import binds."""
    return alias.evaluated_alias or alias.evaluated_name
