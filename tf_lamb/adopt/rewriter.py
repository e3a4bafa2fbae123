"""Makes the replacements in a script that `finder.py` has planned, and changes its imports."""

from typing import Any

import libcst as cst

from tf_lamb.adopt.reading import Script, aliases_of, is_import


class Rewriter(cst.CSTTransformer):
    """Replaces nodes of a script, removes unused imports, and adds statements for the new calls.

    Args:
        script: The script, with the planned replacements.
    """

    def __init__(self, script: Script):
        super().__init__()
        self._script = script

    def on_leave(self, original_node, updated_node) -> Any:
        updated_node = super().on_leave(original_node, updated_node)
        if replacement := self._script.replacements.get(original_node):
            return replacement(updated_node)
        return updated_node

    def leave_SimpleStatementLine(self, original_node, updated_node):
        """Removes imports of optimizers that the rewritten script no longer uses."""
        if len(original_node.body) != 1 or not is_import(statement := original_node.body[0]):
            return updated_node
        still_used = [alias for alias in aliases_of(statement) if not self._script.is_unused(alias)]
        if len(still_used) == len(statement.names):
            return updated_node
        if not still_used:
            return cst.RemoveFromParent()
        still_used[-1] = still_used[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return updated_node.with_changes(body=[statement.with_changes(names=still_used)])

    def leave_Module(self, original_node, updated_node):
        """Adds `import tf_lamb` if it is missing, and `register()` if a config needs that call."""
        script = self._script
        old_statements, new_statements = original_node.body, list(updated_node.body)
        index, replaced_import = script.import_position()
        added_statements = (
            [] if script.has_our_import_before(index) else [cst.parse_statement("import tf_lamb")]
        )
        if (
            added_statements
            and replaced_import is not None
            and _is_removed_import(script, replaced_import)
        ):
            # The new import gets the comments of the import that it replaces.
            added_statements[0] = added_statements[0].with_changes(
                leading_lines=replaced_import.leading_lines,
                trailing_whitespace=replaced_import.trailing_whitespace,
            )
        if script.needs_registration:
            added_statements.append(cst.parse_statement("tf_lamb.model_garden.register()"))
        index -= sum(_is_removed_import(script, line) for line in old_statements[:index])
        return updated_node.with_changes(
            body=[*new_statements[:index], *added_statements, *new_statements[index:]]
        )


def _is_removed_import(script: Script, line) -> bool:
    """Returns whether a statement is an import from which the rewriter removes every name."""
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return False
    aliases = aliases_of(line.body[0]) if is_import(line.body[0]) else ()
    return bool(aliases) and all(map(script.is_unused, aliases))
