"""Holds a parsed script: what its names refer to, the planned replacements, and the notes."""

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

from tf_lamb.adopt.sources import SOURCE_BY_NAME

# Only imports of these modules and optimizers are removed, and only if the rewritten script no
# longer uses them.
_REMOVABLE_IMPORTS = ("tensorflow_addons", "official.modeling", *SOURCE_BY_NAME)

# Module of this package that the rewritten script uses -> the Keras for which it has optimizers.
KERAS_BY_MODULE = {
    "tf_lamb": "tensorflow.keras", "tf_lamb.keras": "keras", "tf_lamb.tf_keras": "tf_keras",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Note:
    """Says what was rewritten in one line of a script, or why it was not.

    Attributes:
        line: The number of the line, from 1.
        text: What was rewritten, or why it was not.
        details: Sentences on what this package's optimizer computes differently.
        is_left: Whether the place was not rewritten.
    """

    line: int
    text: str
    details: tuple[str, ...] = ()
    is_left: bool = False

    def __str__(self):
        return "\n".join([f"line {self.line}: {self.text}", *(f"    {d}" for d in self.details)])


class Script:
    """Holds a parsed script, and what is to be replaced in it.

    Args:
        wrapper: The parsed script.
        code: The script as text.
        same_steps: Whether to add arguments with which this package's optimizers make the same
            updates as the old ones.

    Attributes:
        replacements: Node -> a function that takes this node, after its children were rewritten,
            and returns the node that replaces it.
        replaced_references: The nodes that refer to another package's optimizer and are replaced.
        nodes_needing_import: The nodes whose new code needs `import tf_lamb`: those of
            `replaced_references`, and the Model Garden configs.
        notes: The notes on what was rewritten and what was not.
        needs_registration: Whether the script has to register this package's optimizers in Model
            Garden.
        can_keep_steps: Whether `same_steps` would add arguments to a call or a config.
    """

    def __init__(self, wrapper: MetadataWrapper, code: str, same_steps: bool):
        self.code, self.same_steps = code, same_steps
        self.module = wrapper.module
        self.positions = wrapper.resolve(PositionProvider)
        self.qualified_names = wrapper.resolve(QualifiedNameProvider)
        self.parents = wrapper.resolve(ParentNodeProvider)
        self.scopes = wrapper.resolve(ScopeProvider)
        self.replacements: dict[cst.CSTNode, Callable[[Any], cst.CSTNode]] = {}
        self.replaced_references: set[cst.CSTNode] = set()
        self.nodes_needing_import: set[cst.CSTNode] = set()
        self.notes: list[Note] = []
        self.needs_registration = False
        self.can_keep_steps = False

    def full_name(self, node: cst.CSTNode) -> str:
        """Returns the full name of what a node refers to, such as "keras.optimizers.Lamb".

        Returns "" if the script has not imported it, or if the name is ambiguous.
        """
        qualified = self.qualified_names.get(node, ())
        qualified = (
            qualified() if callable(qualified) else qualified
        )  # for some nodes libcst has a function
        names = {
            candidate.name
            for candidate in qualified
            if candidate.source is QualifiedNameSource.IMPORT
        }
        return names.pop() if len(names) == len(qualified) == 1 else ""

    def code_of(self, node: cst.CSTNode) -> str:
        """Returns the code of a node."""
        return self.module.code_for_node(node)

    def add_note(self, node: cst.CSTNode, text: str, details=(), is_left: bool = False):
        """Adds a note on a node.

        Args:
            node: The node, whose first line the note names.
            text: What was rewritten, or why it was not.
            details: Sentences on what this package's optimizer computes differently. Defaults to
                ().
            is_left: Whether the node was not rewritten. Defaults to False.
        """
        self.notes.append(Note(self.positions[node].start.line, text, tuple(details), is_left))

    def assignment_of(self, node: cst.CSTNode) -> cst.Assign | None:
        """Returns the assignment that a name has its value from.

        Returns None if the node is no name, or if it has not just one value, by an assignment such
        as `name = value`.
        """
        scope = self.scopes.get(node)
        if not isinstance(node, cst.Name) or scope is None:
            return None
        assignments = list(scope[node.value])
        target = getattr(assignments[0], "node", None) if len(assignments) == 1 else None
        parent = self.parents.get(self.parents.get(target))
        is_plain = isinstance(parent, cst.Assign) and len(parent.targets) == 1
        return parent if is_plain and parent.targets[0].target is target else None

    def is_made_by(self, node: cst.CSTNode, part: str) -> bool:
        """Returns whether a name stands for what a function of Keras returned.

        Args:
            node: The name.
            part: A part of the full name of the function, such as ".metrics.".
        """
        assignment = self.assignment_of(node)
        if assignment is None or not isinstance(assignment.value, cst.Call):
            return False
        name = self.full_name(assignment.value.func)
        return name.startswith(("keras.", "tensorflow.keras.")) and part in name

    def returned_by(self, node: cst.CSTNode) -> list[cst.BaseExpression]:
        """Returns the expressions that a function of the script returns; [] if it is not known.

        Args:
            node: What is called, such as the name of the function.
        """
        scope = self.scopes.get(node)
        if not isinstance(node, cst.Name) or scope is None:
            return []
        assignments = list(scope[node.value])
        function = getattr(assignments[0], "node", None) if len(assignments) == 1 else None
        if not isinstance(function, cst.FunctionDef):
            return []
        returns = matchers.findall(function, matchers.Return())
        return [statement.value for statement in returns if statement.value is not None]

    def insert_below(self, line: cst.SimpleStatementLine, code: str) -> None:
        """Plans to insert a line of code below another one, in the same block."""
        added = cst.parse_statement(code)
        self.replacements[line] = lambda new_line: cst.FlattenSentinel([new_line, added])

    @functools.cached_property
    def imported_packages(self) -> set[str]:
        """The packages that the script imports, without their submodules."""
        return {
            name.name.partition(".")[0]
            for assignment in self._assignments
            for name in assignment.get_qualified_names_for(assignment.name)
        }

    @functools.cached_property
    def _assignments(self) -> list[ImportAssignment]:
        """The names that the imports of the script define."""
        return [
            assignment
            for scope in {scope for scope in self.scopes.values() if scope}
            for assignment in scope.assignments
            if isinstance(assignment, ImportAssignment)
        ]

    def is_unused(self, alias: cst.ImportAlias) -> bool:
        """Returns whether an import can be removed, because the rewritten script does not use it.

        Only the imports in `_REMOVABLE_IMPORTS` can be removed, and none if the script has
        `__all__`, which may export them.
        """
        assignments = [
            assignment
            for assignment in self._assignments
            if alias in aliases_of(assignment.node) and assignment.name == _bound_name(alias)
        ]
        names = {
            n.name
            for assignment in assignments
            for n in assignment.get_qualified_names_for(assignment.name)
        }
        accesses = [access.node for assignment in assignments for access in assignment.references]
        return (
            bool(accesses)
            and "__all__" not in self.code
            and all(name.startswith(_REMOVABLE_IMPORTS) for name in names)
            and all(
                any(node in self.replaced_references for node in self._ancestors(access))
                for access in accesses
            )
        )

    def kept_imports(self) -> dict[int, str]:
        """Returns why each import is kept that has uses which are not replaced, by its line."""
        texts: dict[int, list[str]] = {}
        for assignment in self._assignments:
            kept = {
                self.positions[access.node].start.line
                for access in assignment.references
                if not self.replaced_references.intersection(self._ancestors(access.node))
            }
            uses = sorted(kept)
            lines = f"{'line' if len(uses) == 1 else 'lines'} {', '.join(map(str, uses))}"
            reason = f"because of {lines}" if uses else "because no line here uses it: remove it"
            if not uses and assignment.references:
                reason = "because other files may import it from here: look, and remove it"
            text = f"the import of {assignment.name} is left as it is, {reason}"
            for alias in aliases_of(assignment.node):
                if _bound_name(alias) == assignment.name:
                    texts.setdefault(self.positions[alias].start.line, []).append(text)
        return {line: "; ".join(dict.fromkeys(reasons)) for line, reasons in texts.items()}

    def _ancestors(self, node):
        """Yields a node of the syntax tree, then its parent, and so on up to the root."""
        while node is not None:
            yield node
            node = self.parents.get(node)

    def is_in_f_string(self, node: cst.CSTNode) -> bool:
        """Returns whether a node is part of an f-string.

        New code there could contain the quotes of the f-string, which is a syntax error.
        """
        return any(isinstance(ancestor, cst.FormattedString) for ancestor in self._ancestors(node))

    def module_for(self, name: str) -> str:
        """Returns the module of this package to import an optimizer from, such as "tf_lamb.keras".

        Args:
            name: The full name of the optimizer to replace. The module is for the Keras of this
                name, or else for the Keras that the script imports.
        """
        if name.startswith("keras."):
            return "tf_lamb.keras"
        if name.startswith("tensorflow.keras."):
            return "tf_lamb"
        if "tf_keras" in self.imported_packages:
            return "tf_lamb.tf_keras"
        is_keras_3 = (
            "keras" in self.imported_packages and "tensorflow.keras" not in self.keras_names
        )
        return "tf_lamb.keras" if is_keras_3 else "tf_lamb"

    @functools.cached_property
    def keras_names(self) -> dict[str, str]:
        """Full name of each Keras that the script uses -> its name in the script, as "tf.keras"."""
        code_by_keras: dict[str, str] = {}
        for node in matchers.findall(self.module, matchers.Attribute() | matchers.Name()):
            if (name := self.full_name(node)) in ("keras", "tf_keras", "tensorflow.keras"):
                code_by_keras.setdefault(name, self.code_of(node))
        return code_by_keras

    def import_position(self) -> tuple[int, cst.SimpleStatementLine | None]:
        """Returns where to insert `import tf_lamb`.

        Returns:
            The index of the statement of the module to insert it before, and the import that stands
            before this place: the first import of an optimizer that is replaced. If no statement of
            the module imports such an optimizer, the place is after the docstring and the imports
            from `__future__`, and the import is None.
        """
        body = self.module.body
        first_code = int(self.module.get_docstring() is not None)
        while first_code < len(body) and _is_future_import(body[first_code]):
            first_code += 1
        for index, statement_line in enumerate(body):
            for statement in (
                statement_line.body if isinstance(statement_line, cst.SimpleStatementLine) else ()
            ):
                if is_import(statement) and self._binds_replaced_name(statement):
                    return index + 1, statement_line
        return first_code, None

    def has_our_import_before(self, index: int) -> bool:
        """Returns whether one of the first `index` statements of the module is `import tf_lamb`."""
        return any(
            isinstance(statement, cst.Import)
            and any(
                alias.evaluated_name == _bound_name(alias) == "tf_lamb" for alias in statement.names
            )
            for statement_line in self.module.body[:index]
            if isinstance(statement_line, cst.SimpleStatementLine)
            for statement in statement_line.body
        )

    def _binds_replaced_name(self, statement):
        """Returns whether code that was replaced uses a name that this import statement defines."""
        return any(
            node in self.nodes_needing_import
            for assignment in self._assignments
            if assignment.node is statement
            for access in assignment.references
            for node in self._ancestors(access.node)
        )


def is_import(statement) -> bool:
    """Returns whether a statement is an import, other than `from module import *`."""
    return isinstance(statement, (cst.Import, cst.ImportFrom)) and bool(aliases_of(statement))


def _is_future_import(line) -> bool:
    """Returns whether a line imports from `__future__`, which has to come before other code."""
    return isinstance(line, cst.SimpleStatementLine) and any(
        isinstance(statement, cst.ImportFrom)
        and statement.module is not None
        and statement.module.value == "__future__"
        for statement in line.body
    )


def aliases_of(statement) -> tuple:
    """Returns the names that an import lists; () for `import *`."""
    return () if isinstance(statement.names, cst.ImportStar) else tuple(statement.names)


def _bound_name(alias: cst.ImportAlias) -> str:
    """Returns the name that an import defines in the script, which is its alias if it has one."""
    return alias.evaluated_alias or alias.evaluated_name
