"""Adds notes on attributes of a rewritten optimizer that a script uses and Keras 3 lacks.

Also adds notes on the step and the rate where Keras 3 cannot make them a Python number, which is
so under a strategy of `tf.distribute`.
"""

import libcst as cst
from libcst import matchers

from tf_lamb.adopt.holders import Holders
from tf_lamb.adopt.reading import Script

# Attribute of Keras 2's optimizers -> what to write in Keras 3. Of a method, the whole call is
# replaced.
_PROPERTIES = {"lr": "{0}.learning_rate", "weights": "{0}.variables"}
_METHODS = {
    "variables": "{0}.variables",
    "get_weights": "[v.numpy() for v in {0}.variables]",
    "_decayed_lr": "{0}.learning_rate",
    "minimize": "{0}.apply_gradients, with gradients of a tf.GradientTape",
}
_REMOVED_ARGUMENTS = ("experimental_aggregate_gradients", "skip_gradients_aggregation", "name")
_NUMBERS = {"iterations": "int", "learning_rate": "float", "lr": "float"}  # by attribute
_CONVERSIONS = {"int", "float", "range"}


class Attributes:
    """Adds the notes.

    Args:
        script: The script, which receives the notes.
        holders: The expressions that stand for a rewritten optimizer.
        has_strategy: Whether the script uses a strategy of `tf.distribute`.
    """

    def __init__(self, script: Script, holders: Holders, has_strategy: bool):
        self._script, self._holders, self._has_strategy = script, holders, has_strategy
        self._added: set[tuple[int, str]] = set()

    def add_notes(self) -> None:
        """Adds a note for each line and each attribute."""
        for node in matchers.findall(self._script.module, matchers.Attribute()):
            if self._holders.holds(node.value) and not self._script.full_name(node):
                self._see_attribute(node)
        for node in matchers.findall(self._script.module, matchers.Call()):
            self._see_call(node)

    def _see_attribute(self, node: cst.Attribute):
        """Adds the notes on one attribute of an optimizer."""
        script, name = self._script, node.attr.value
        owner, code, parent = script.code_of(node.value), script.code_of(node), script.parents[node]
        is_called = isinstance(parent, cst.Call) and parent.func is node
        if number := self._number_of(node):
            reason = f"Keras 3 cannot make a number of {code} under a strategy"
            reason = f"Keras 3 has no {code}" if name in _PROPERTIES else reason
            return self._add(node, f"{reason}: write {number}")
        if name in _PROPERTIES and not is_called:
            new_code = _PROPERTIES[name].format(owner)
            if setter := self._setter_of(node):
                value = script.code_of(setter.args[1].value)
                return self._add(
                    node, f"Keras 3 does not set {code} this way: write {new_code} = {value}"
                )
            if isinstance(parent, cst.AssignTarget):
                return self._add(
                    node, f"setting {code} changes nothing in Keras 3: write {new_code}"
                )
            return self._add(node, f"Keras 3 has no {code}: write {new_code}")
        if name == "learning_rate" and (setter := self._setter_of(node)):
            value = script.code_of(setter.args[1].value)
            return self._add(node, f"Keras 3 does not set {code} this way: write {code} = {value}")
        if name in _METHODS and is_called:
            self._add(node, f"Keras 3 has no {code}(): write {_METHODS[name].format(owner)}")
        if name == "apply_gradients" and is_called:
            names = [arg.keyword.value for arg in parent.args if arg.keyword]
            for argument in names:
                if argument in _REMOVED_ARGUMENTS:
                    self._add(node, f"{code} has no argument {argument} in Keras 3: leave it out")

    def _see_call(self, node: cst.Call):
        """Adds a note on `getattr(optimizer, "lr")`, and on `hasattr` and `setattr`."""
        is_access = isinstance(node.func, cst.Name) and node.func.value in (
            "getattr", "hasattr", "setattr",
        )  # fmt: skip
        if not is_access or len(node.args) < 2 or not self._holders.holds(node.args[0].value):
            return
        name, owner = node.args[1].value, self._script.code_of(node.args[0].value)
        if isinstance(name, cst.SimpleString) and name.evaluated_value in _PROPERTIES:
            attribute = str(name.evaluated_value)
            new_name = _PROPERTIES[attribute].format(owner).rpartition(".")[2]
            self._add(node, f'Keras 3 has no {owner}.{attribute}: write "{new_name}" here')

    def _setter_of(self, node) -> cst.Call | None:
        """Returns the call `backend.set_value(node, value)`; None if the node is not in one."""
        call = self._script.parents[self._script.parents[node]]
        is_setter = (
            isinstance(call, cst.Call)
            and len(call.args) == 2
            and call.args[0].value is node
            and self._script.code_of(call.func).rpartition(".")[2] == "set_value"
        )
        return call if is_setter else None

    def _number_of(self, node: cst.Attribute) -> str:
        """Returns what to write for the number that the script makes of an attribute.

        Returns "" if the script makes no number of it, or uses no strategy.
        """
        parents, name = self._script.parents, node.attr.value
        if not self._has_strategy or name not in _NUMBERS:
            return ""
        owner = self._script.code_of(node.value)
        value = f"{_PROPERTIES.get(name, '{0}.' + name).format(owner)}.numpy()"
        parent = parents[node]
        if isinstance(parent, cst.FormattedStringExpression):
            return f"{_NUMBERS[name]}({value})"
        if isinstance(parent, cst.Arg) and isinstance(call := parents[parent], cst.Call):
            function = self._script.code_of(call.func)
            if function in _CONVERSIONS and len(call.args) == 1:
                kind = function if function != "range" else "int"
                return f"{kind}({value})"
            if function == "range" or function.endswith(".format"):
                return f"{_NUMBERS[name]}({value})"
        if isinstance(parent, cst.Element):  # of a tuple, as in "%d %f" % (step, rate)
            parent = parents[parents[parent]]
        if isinstance(parent, cst.BinaryOperation) and isinstance(parent.operator, cst.Modulo):
            is_format = isinstance(parent.left, (cst.SimpleString, cst.ConcatenatedString))
            return f"{_NUMBERS[name]}({value})" if is_format else ""
        return ""

    def _add(self, node, text):
        """Adds a note, unless its line has the same one."""
        key = (self._script.positions[node].start.line, text)
        if key not in self._added:
            self._added.add(key)
            self._script.add_note(node, text, is_left=True)
