"""Adds the call of `build` that an optimizer of Keras 3 needs in a loop on several replicas.

Without it Keras makes the optimizer's variables at the first step, where replicas cannot.
"""

import re

import libcst as cst
from libcst import matchers

from tf_lamb.adopt.holders import Holders
from tf_lamb.adopt.reading import Script

_TRAINED = re.compile(r"[\w.]+\.trainable_(?:variables|weights)\b")
_TRAINED_NODE = matchers.Attribute(
    value=matchers.Name(),
    attr=matchers.Name("trainable_variables") | matchers.Name("trainable_weights"),
)
_MODELS = re.compile(r"(?:^|\.)keras\.(?:models\.)?(?:Model|Sequential)$")
# Functions that return a model with its weights.
_BUILT_MODELS = re.compile(r"(?:^|\.)keras\.(?:applications\.|models\.load_model$|saving\.load_m)")


class Building:
    """Adds the call, or else a note.

    Args:
        script: The script, which receives the call and the note.
        holders: The expressions that stand for a rewritten optimizer.
        calls: The rewritten calls, of Keras 3 only.
        updates: The calls of `apply_gradients` or `apply` in loops of the script's own.
        builds: The methods `build` that the script calls.
    """

    def __init__(
        self,
        script: Script,
        holders: Holders,
        calls: list[cst.Call],
        updates: list[cst.Call],
        builds: list[cst.Attribute],
    ):
        self._script, self._holders, self._calls = script, holders, calls
        self._updates = [node for node in updates if holders.holds(node.func.value)]
        self._is_needed = self._updates and not any(holders.holds(node.value) for node in builds)

    def add(self) -> None:
        """Adds the call if a loop makes a step with an unbuilt optimizer, and it is certain where.

        In any other place a note says what to add.
        """
        if not self._is_needed:
            return
        script, update, call = self._script, self._updates[0], self._calls[0]
        reason = (
            "Without it Keras 3 fails at the first step on several replicas, in line "
            f"{script.positions[update].start.line}."
        )
        if place := self._place():
            line, code = place
            script.insert_below(line, code)
            text = f"Added `{code}` below line {script.positions[line].end.line}."
            return script.add_note(call, f"{text} {reason}")
        optimizer = self._holders.target_of(call) or script.code_of(update.func.value)
        named = _TRAINED.search(" ".join(map(script.code_of, update.args)))
        variables = named.group() if named else "model.trainable_variables"
        script.add_note(
            call,
            f"Add `{optimizer}.build({variables})` below the line that makes the optimizer, in the "
            f"strategy's scope, once the model has its weights. {reason}",
        )

    def _place(self) -> tuple[cst.SimpleStatementLine, str] | None:
        """Returns the line to add the call below, and its code; None if that is not certain.

        It is certain if one optimizer trains one model in all loops, both are assigned once, to
        names of one scope, and the script shows that the model has its weights then.
        """
        script = self._script
        trained = [node for update in self._updates for node in self._trained_by(update)]
        optimizers = {script.assignment_of(update.func.value) for update in self._updates}
        models = {script.assignment_of(node.value) for node in trained}
        if len(self._calls) != 1 or len(optimizers) != 1 or len(models) != 1:
            return None
        (optimizer,), (model,) = optimizers, models
        if optimizer is None or model is None or optimizer.value is not self._calls[0]:
            return None
        gets_more_layers = f"{model.targets[0].target.value}.add(" in script.code
        if gets_more_layers or not self._has_weights(model.value):
            return None
        lines = [self._line_of(optimizer), self._line_of(model)]
        if None in lines or script.scopes[optimizer] is not script.scopes[model]:
            return None
        first, last = sorted(lines, key=lambda line: script.positions[line].start.line)
        if self._is_in_strategy(first) != self._is_in_strategy(last):
            return None
        return last, f"{optimizer.targets[0].target.value}.build({script.code_of(trained[0])})"

    def _trained_by(self, update: cst.Call) -> list[cst.Attribute]:
        """Returns each `model.trainable_variables` in the arguments of an update.

        A name in the arguments may stand for it.
        """
        found: list = []
        for argument in update.args:
            found += matchers.findall(argument, _TRAINED_NODE)
            for name in matchers.findall(argument, matchers.Name()):
                assignment = self._script.assignment_of(name)
                if assignment is not None and matchers.matches(assignment.value, _TRAINED_NODE):
                    found.append(assignment.value)
        return found

    def _has_weights(self, value: cst.BaseExpression) -> bool:
        """Returns whether an expression makes a model that has its weights at once."""
        script = self._script
        if isinstance(value, cst.Name):
            assignment = script.assignment_of(value)
            return assignment is not None and self._has_weights(assignment.value)
        if not isinstance(value, cst.Call):
            return False
        name = script.full_name(value.func)
        if _BUILT_MODELS.search(name):
            return True
        if _MODELS.search(name):
            has_input = re.search(r"\bInput(Layer)?\(|\binput_shape=", script.code_of(value))
            return bool(has_input) if name.endswith("Sequential") else len(value.args) >= 2
        returned = script.returned_by(value.func)
        return bool(returned) and all(map(self._has_weights, returned))

    def _line_of(self, assignment: cst.Assign) -> cst.SimpleStatementLine | None:
        """Returns the line of an assignment; None if it may not run, or may run several times."""
        line = node = self._script.parents[assignment]
        while not isinstance(node, (cst.Module, cst.FunctionDef)):
            if not isinstance(node, (cst.SimpleStatementLine, cst.IndentedBlock, cst.With)):
                return None
            node = self._script.parents[node]
        return line

    def _is_in_strategy(self, line: cst.CSTNode) -> bool:
        """Returns whether a line is in `with strategy.scope():`."""
        node = line
        while not isinstance(node, (cst.Module, cst.FunctionDef)):
            if isinstance(node, cst.With) and any(
                self._script.code_of(item.item).endswith(".scope()") for item in node.items
            ):
                return True
            node = self._script.parents[node]
        return False
