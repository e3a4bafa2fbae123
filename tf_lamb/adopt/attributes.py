"""Adds notes on what a script uses of a rewritten optimizer, or of metrics, and its Keras lacks.

Also adds notes on the step and the rate where they cannot become a Python number, which is so under
a strategy of `tf.distribute`.
"""

import re
from typing import NamedTuple

import libcst as cst
from libcst import matchers

from tf_lamb.adopt.aggregation import SUMMED
from tf_lamb.adopt.holders import Holders
from tf_lamb.adopt.reading import Script


class _Way(NamedTuple):
    """Says what to write for an attribute of old optimizers of Keras.

    Attributes:
        code: The code, where {0} is the optimizer. Of a method it replaces the whole call, whose
            first two arguments are {1} and {2}.
        is_in_tf_keras: Whether the optimizers of tf_keras have the attribute, other than its legacy
            ones. Those of Keras 3 do not.
    """

    code: str
    is_in_tf_keras: bool = False


_PROPERTIES = {"lr": _Way("{0}.learning_rate", True), "weights": _Way("{0}.variables")}
_TAPE = "gradients of a tf.GradientTape"
_METHODS = {
    "variables": _Way("{0}.variables", True),
    "get_weights": _Way("[v.numpy() for v in {0}.variables]"),
    "get_slot": _Way("{0}.state_of(i)[{2}], where {1} is variable i of {0}.build"),
    "get_slot_names": _Way("list({0}.state_of(0))"),
    "add_slot": _Way("{0}.add_variable_from_reference({1}, {2})"),
    "_create_slots": _Way("{0}.build({1})"),
    "_create_all_weights": _Way("{0}.build({1})"),
    "_decayed_lr": _Way("{0}.learning_rate"),
    "_get_hyper": _Way("getattr({0}, {1})", True),
    "_set_hyper": _Way("another optimizer, as its {1} cannot be set"),
    "minimize": _Way(f"{{0}}.apply_gradients, with {_TAPE}", True),
    "compute_gradients": _Way(_TAPE, True),
    "_compute_gradients": _Way(_TAPE),
    "get_gradients": _Way(_TAPE),
    "get_updates": _Way(f"{{0}}.apply_gradients, with {_TAPE}"),
}
# Slot of an old optimizer -> its name in ours, where that is another one.
_SLOTS = {"'momentum'": "'v'", '"momentum"': '"v"'}
# Argument of an old optimizer -> its name in ours, where that is another one.
_ARGUMENTS = {"lr": "learning_rate", "weight_decay_rate": "weight_decay"}
_TRAINED_VARIABLE = re.compile(r"[\w.]+\.trainable_(?:variables|weights)\[(\d+)\]")
_REMOVED_ARGUMENTS = ("experimental_aggregate_gradients", "skip_gradients_aggregation", "name")
_MODEL = re.compile(r"(?:^|[._])(?:model|net|network)$", re.IGNORECASE)
# Attribute -> the type of the number that it holds.
_NUMBERS = {"iterations": "int", "learning_rate": "float", "lr": "float", "_decayed_lr": "float"}
_CONVERSIONS = {"int", "float", "range"}


class Attributes:
    """Adds the notes.

    Args:
        script: The script, which receives the notes.
        holders: The expressions that stand for a rewritten optimizer.
        has_strategy: Whether the script uses a strategy of `tf.distribute`.
        is_keras_3: Whether the optimizers are those of Keras 3; else they are those of tf_keras.
    """

    def __init__(self, script: Script, holders: Holders, has_strategy: bool, is_keras_3: bool):
        self._script, self._holders, self._has_strategy = script, holders, has_strategy
        self._is_keras_3 = is_keras_3
        self._added: set[tuple[int, str]] = set()

    def add_notes(self) -> None:
        """Adds a note for each line and each attribute."""
        for node in matchers.findall(self._script.module, matchers.Attribute()):
            if self._holders.holds(node.value) and not self._script.full_name(node):
                self._see_attribute(node)
        for node in matchers.findall(self._script.module, matchers.Call()):
            self._see_call(node)
        if self._is_keras_3 and "def reset_states" not in self._script.code:
            resets = matchers.Call(func=matchers.Attribute(attr=matchers.Name("reset_states")))
            for node in matchers.findall(self._script.module, resets):
                self._rename_reset(node.func)

    def _see_attribute(self, node: cst.Attribute):
        """Adds the notes on one attribute of an optimizer."""
        script, name = self._script, node.attr.value
        code, parent = script.code_of(node), script.parents[node]
        is_called = isinstance(parent, cst.Call) and parent.func is node
        if number := self._number_of(node):
            reason = f"neither Keras 3 nor tf_keras makes a number of {code} under a strategy"
            reason = self._lack(name, f"{code}()" if is_called else code) or reason
            return self._add(node, f"{reason}: write {number}")
        if name in _PROPERTIES and not is_called:
            return self._see_property(node)
        if self._is_keras_3 and name == "learning_rate" and (setter := self._setter_of(node)):
            value = script.code_of(setter.args[1].value)
            return self._add(node, f"Keras 3 does not set {code} this way: write {code} = {value}")
        if name in _METHODS and is_called and (lack := self._lack(name, f"{code}()")):
            self._add(node, f"{lack}: write {self._instead_of_call(node, parent)}")
        if self._is_keras_3 and name == "apply_gradients" and is_called:
            self._see_arguments(node, parent)

    def _see_property(self, node: cst.Attribute):
        """Adds the notes on a property that is read, or set."""
        script, name = self._script, node.attr.value
        owner, code, parent = script.code_of(node.value), script.code_of(node), script.parents[node]
        if not (lack := self._lack(name, code)):
            return
        new_code = _PROPERTIES[name].code.format(owner)
        if setter := self._setter_of(node):
            value = script.code_of(setter.args[1].value)
            self._add(node, f"Keras 3 does not set {code} this way: write {new_code} = {value}")
        elif isinstance(parent, cst.AssignTarget):
            self._add(node, f"setting {code} changes nothing in Keras 3: write {new_code}")
        else:
            self._add(node, f"{lack}: write {new_code}")

    def _see_arguments(self, node: cst.Attribute, call: cst.Call):
        """Adds a note for each argument of `apply_gradients` that Keras 3 does not have.

        `Aggregation` sees the arguments that say that the script has made the sum over replicas.
        """
        code = self._script.code_of(node)
        for argument in call.args:
            name = argument.keyword.value if argument.keyword else ""
            is_summed = self._script.code_of(argument.value) == SUMMED.get(name)
            if name in _REMOVED_ARGUMENTS and not is_summed:
                self._add(node, f"{code} has no argument {name} in Keras 3: leave it out")

    def _lack(self, name: str, code: str) -> str:
        """Returns the words that the script's Keras lacks an attribute; "" if it has it.

        Args:
            name: The name of the attribute.
            code: How the script uses it, such as "optimizer.get_weights()".
        """
        way = (_PROPERTIES | _METHODS).get(name)
        if way is None or (way.is_in_tf_keras and not self._is_keras_3):
            return ""
        host = "Keras 3" if self._is_keras_3 else "tf_keras"
        if way.is_in_tf_keras:
            return f"{host} has no {code}"
        tf_keras_too = ", nor has tf_keras" if self._is_keras_3 else ""
        return f"{host} has no {code}{tf_keras_too} outside of its legacy optimizers"

    def _instead_of_call(self, node: cst.Attribute, call: cst.Call) -> str:
        """Returns what to write for a call of a method of an old optimizer."""
        script = self._script
        given = [argument for argument in call.args if not argument.star]
        # The variable comes first, also in `get_slot(slot_name="m", var=v)`.
        given.sort(key=lambda arg: arg.keyword is not None and arg.keyword.value != "var")
        arguments = [script.code_of(argument.value) for argument in given]
        first, second = (arguments + ["..."] * 2)[:2]
        second = _SLOTS.get(second, second)
        owner = script.code_of(node.value)
        if node.attr.value in ("_get_hyper", "_set_hyper"):
            name = first.strip("\"'")
            name = _ARGUMENTS.get(name, name)
            if node.attr.value == "_set_hyper" and name == "learning_rate":
                return f"{owner}.learning_rate = {second}"
            first = f"{first[0]}{name}{first[-1]}" if first[0] in "\"'" else first
        if node.attr.value == "get_slot" and (variable := _TRAINED_VARIABLE.fullmatch(first)):
            return f"{owner}.state_of({variable[1]})[{second}]"
        return _METHODS[node.attr.value].code.format(owner, first, second)

    def _rename_reset(self, node: cst.Attribute):
        """Plans to rename the `reset_states` of a metric; adds a note if it may be none.

        Args:
            node: The method, as it is called.
        """
        script, owner = self._script, self._script.code_of(node.value)
        text = f"Keras 3 has no {owner}.reset_states()"
        if _MODEL.search(owner):
            return self._add(node, f"{text}: write reset_state() of its stateful layers")
        if not script.is_made_by(node.value, ".metrics."):
            return self._add(node, f"{text}: write {owner}.reset_state(), if it is Keras's")
        script.replacements[node] = lambda attribute: attribute.with_changes(
            attr=cst.Name("reset_state")
        )
        script.add_note(node, f"{text}, and reset_state() is written here")

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
            new_name = _PROPERTIES[attribute].code.format(owner).rpartition(".")[2]
            if lack := self._lack(attribute, f"{owner}.{attribute}"):
                self._add(node, f'{lack}: write "{new_name}" here')

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
        way = (_PROPERTIES | _METHODS).get(name, _Way(f"{{0}}.{name}"))
        value = f"{way.code.format(owner)}.numpy()"
        parent = parents[node]
        if isinstance(parent, cst.Call) and parent.func is node:  # of `_decayed_lr`
            parent = parents[parent]
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
