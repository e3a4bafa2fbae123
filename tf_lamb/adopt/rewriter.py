"""Replaces what was found in a script, and lets its imports follow."""

from typing import Any

import libcst as cst

from tf_lamb.adopt.reading import Script


class Rewriter(cst.CSTTransformer):
    """Replaces nodes and imports, and adds the statements that the new calls need."""

    def __init__(self, script: Script):
        super().__init__()
        self._script = script
        self._needs = [
            need
            for need in script.needs
            if need != "import tf_lamb" or "tf_lamb" not in script.imported
        ]

    def on_leave(self, original_node, updated_node) -> Any:
        if replacement := self._script.replacements.get(original_node):
            return replacement
        return super().on_leave(original_node, updated_node)

    def leave_SimpleStatementLine(self, original_node, updated_node):
        """Takes imports out that nothing refers to any longer."""
        if not _is_import(original_node):
            return updated_node
        statement = original_node.body[0]
        kept = [alias for alias in statement.names if not self._script.is_unused(alias)]
        if len(kept) == len(statement.names):
            return updated_node
        if kept:
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            return updated_node.with_changes(body=[statement.with_changes(names=kept)])
        if (
            self._needs
            and self._needs[0] == "import tf_lamb"
            and self._script.is_of_module(original_node)
        ):
            new = cst.parse_statement(self._needs.pop(0))
            return new.with_changes(
                leading_lines=updated_node.leading_lines,
                trailing_whitespace=updated_node.trailing_whitespace,
            )
        return cst.RemoveFromParent()

    def leave_Module(self, original_node, updated_node):
        """Puts what else is needed behind the imports of the module, or behind its docstring."""
        if not self._needs:
            return updated_node
        old, new = original_node.body, list(updated_node.body)
        from_end = next((i for i, line in enumerate(reversed(old)) if _is_import(line)), None)
        if from_end is None:
            from_end = len(old) - (original_node.get_docstring() is not None)
        place = len(new) - from_end
        lines = [cst.parse_statement(need) for need in self._needs]
        return updated_node.with_changes(body=[*new[:place], *lines, *new[place:]])


def _is_import(node) -> bool:
    """Returns whether a node is a line with one import, other than of everything or the future."""
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1:
        return False
    statement = node.body[0]
    if isinstance(statement, cst.ImportFrom):
        return not isinstance(statement.names, cst.ImportStar)
    return isinstance(statement, cst.Import)
