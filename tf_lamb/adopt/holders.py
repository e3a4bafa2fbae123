"""Finds which expressions of a script stand for an optimizer whose call is rewritten."""

import re

import libcst as cst
from libcst import matchers

from tf_lamb.adopt.reading import Script

# A name such as `optimizer`, `self.opt` or `model.optimizer`.
_USUAL_NAME = re.compile(r"(^|[._])(opt|optim|optimizer)$", re.IGNORECASE)


class Holders:
    """Tells whether an expression stands for a rewritten optimizer.

    It follows assignments, functions that return the optimizer, and wrappers such as
    `LossScaleOptimizer(optimizer)`. A usual name that the script does not assign, such as a
    parameter `optimizer` or `model.optimizer`, counts as well. Scopes are not told apart.

    Args:
        script: The script.
        calls: The calls that are rewritten.
    """

    def __init__(self, script: Script, calls: set[cst.Call]):
        self._script, self._calls = script, calls
        self._values_by_target = _values_by_target(script)
        self._returns_by_function = {
            function.name.value: [
                statement.value
                for statement in matchers.findall(function, matchers.Return())
                if statement.value is not None
            ]
            for function in matchers.findall(script.module, matchers.FunctionDef())
        }
        self._targets: set[str] = set()  # the code of the targets to which one is assigned
        self._makers: set[str] = set()  # the names of the functions that return one
        size = -1
        while size < len(self._targets) + len(self._makers):  # until a pass finds no other one
            size = len(self._targets) + len(self._makers)
            self._targets |= self._having(self._values_by_target)
            self._makers |= self._having(self._returns_by_function)

    def _having(self, values_by_name) -> set[str]:
        """Returns the names that have a rewritten optimizer among their values."""
        return {name for name, values in values_by_name.items() if any(map(self.holds, values))}

    def holds(self, node: cst.CSTNode) -> bool:
        """Returns whether an expression stands for a rewritten optimizer."""
        if isinstance(node, cst.IfExp):
            return self.holds(node.body) or self.holds(node.orelse)
        if isinstance(node, cst.Call):
            callee = self._script.code_of(node.func).rpartition(".")[2]
            is_wrapped = callee.endswith("Optimizer") and any(
                self.holds(argument.value) for argument in node.args
            )
            return node in self._calls or callee in self._makers or is_wrapped
        if not isinstance(node, (cst.Name, cst.Attribute)) or self._script.full_name(node):
            return False
        name = self._script.code_of(node)
        is_unassigned = name not in self._values_by_target
        return name in self._targets or (is_unassigned and bool(_USUAL_NAME.search(name)))

    def target_of(self, call: cst.Call) -> str:
        """Returns the code of what a call is assigned to, such as "self.opt"; "" if to nothing."""
        for target, values in self._values_by_target.items():
            if call in values:
                return target
        return ""


def _values_by_target(script: Script) -> dict[str, list[cst.BaseExpression]]:
    """Returns the values that a script assigns, by the code of the name or attribute."""
    values: dict[str, list[cst.BaseExpression]] = {}
    kinds = matchers.Assign() | matchers.AnnAssign() | matchers.NamedExpr()
    for node in matchers.findall(script.module, kinds):
        is_plain = isinstance(node, cst.Assign)
        targets = [each.target for each in node.targets] if is_plain else [node.target]
        for target in targets if node.value is not None else ():
            values.setdefault(script.code_of(target), []).append(node.value)
    return values
