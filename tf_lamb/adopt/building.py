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
_ANY = matchers.Arg(keyword=None, star="")
_MODELS = re.compile(r"(?:^|\.)keras\.(?:models\.)?(?:Model|Sequential)$")
_INPUTS = re.compile(r"(?:^|\.)keras\.(?:layers\.)?Input(?:Layer)?$")
_SHAPES = {"input_shape", "batch_input_shape", "input_dim"}
# What a script may do after the place of the call, and the call then would be too early: it changes
# which variables are trained, or which of them decay.
_LATER = re.compile(r"\.(?:trainable|enable_lora|exclude_from_weight_decay)(?:\s*=(?!=)|\()")
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
        script = self._script
        if place := self._place():
            line, code = place
            script.insert_below(line, code)
            text = f"Added `{code}` below line {script.positions[line].end.line}."
            reason = self._reason(self._updates[0])
            return script.add_note(self._calls[0], f"{text} {reason}")
        for call, update in self._unbuilt():
            optimizer = self._holders.target_of(call) or script.code_of(update.func.value)
            later = _LATER.search(script.code)
            condition = f", and below the last line with `{later.group()}`" if later else ""
            script.add_note(
                call,
                f"Add `{optimizer}.build({self._variables_of(update)})` below the line that makes "
                "the optimizer, in the strategy's scope, once the model has its weights"
                f"{condition}. {self._reason(update)}",
            )

    def _variables_of(self, update: cst.Call) -> str:
        """Returns the code of the variables of an update, as far as it can be read."""
        script = self._script
        for argument in update.args:
            pairs = argument.value
            if matchers.matches(pairs, matchers.Call(matchers.Name("zip"), args=[_ANY, _ANY])):
                variables = script.code_of(pairs.args[1].value)
                if _TRAINED.search(variables):
                    return variables
        named = _TRAINED.search(" ".join(map(script.code_of, update.args)))
        return named.group() if named else "model.trainable_variables"

    def _reason(self, update: cst.Call) -> str:
        """Returns a sentence on why the optimizer of an update has to be built."""
        return (
            "Without it Keras 3 fails at the first step on several replicas, in line "
            f"{self._script.positions[update].start.line}."
        )

    def _unbuilt(self) -> list[tuple[cst.Call, cst.Call]]:
        """Returns, for each optimizer to build, the call that makes it and its first update.

        It is one pair if no update is by the name to which a call is assigned.
        """
        first_updates: dict[str, cst.Call] = {}
        for update in self._updates:
            first_updates.setdefault(self._script.code_of(update.func.value), update)
        pairs = [
            (call, first_updates.pop(target))
            for call in self._calls
            if (target := self._holders.target_of(call)) in first_updates
        ]
        return pairs or [(self._calls[0], self._updates[0])]

    def _place(self) -> tuple[cst.SimpleStatementLine, str] | None:
        """Returns the line to add the call below, and its code; None if that is not certain.

        It is certain if one optimizer trains one model in all loops, and nothing else, both are
        assigned once, to names of one scope, and the script shows that the model has its weights
        then.
        """
        script = self._script
        if _LATER.search(script.code):
            return None
        by_update = [self._trained_by(update) for update in self._updates]
        trained = [node for nodes in by_update for node in nodes]
        if not all(by_update) or not all(map(self._is_whole, trained)):
            return None
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
        nodes: list = []
        for argument in update.args:
            nodes += matchers.findall(argument, _TRAINED_NODE)
            for name in matchers.findall(argument, matchers.Name()):
                assignment = self._script.assignment_of(name)
                if assignment is not None and matchers.matches(assignment.value, _TRAINED_NODE):
                    nodes.append(assignment.value)
        return nodes

    def _is_whole(self, node: cst.Attribute) -> bool:
        """Returns whether a list of variables is an argument or a value, and no part of one.

        In `model.trainable_variables + [scale]` it is a part.
        """
        return isinstance(self._script.parents[node], (cst.Arg, cst.Assign))

    def _has_weights(self, value: cst.BaseExpression, outer: tuple[cst.CSTNode, ...] = ()) -> bool:
        """Returns whether an expression makes a model that has its weights at once.

        Args:
            value: The expression.
            outer: The expressions that ask for this one, which may be in a recursive function.
                Defaults to none.
        """
        script = self._script
        if value in outer:
            return False
        outer = (*outer, value)
        if isinstance(value, cst.Name):
            assignment = script.assignment_of(value)
            return assignment is not None and self._has_weights(assignment.value, outer)
        if not isinstance(value, cst.Call):
            return False
        name = script.full_name(value.func)
        if _BUILT_MODELS.search(name):
            return True
        if _MODELS.search(name):
            is_sequential = name.endswith("Sequential")
            return self._begins_with_input(value) if is_sequential else len(value.args) >= 2
        returned = script.returned_by(value.func)
        return bool(returned) and all(self._has_weights(model, outer) for model in returned)

    def _begins_with_input(self, call: cst.Call) -> bool:
        """Returns whether the first layer of a `Sequential` has the shape of the input.

        A shape in a model within it, such as `Sequential([MobileNetV2(input_shape=...), ...])`,
        makes no weights of the layers behind that model.
        """
        layers = call.args[0].value if call.args else None
        if not isinstance(layers, (cst.List, cst.Tuple)) or not layers.elements:
            return False
        layer = layers.elements[0].value
        assignment = self._script.assignment_of(layer)
        layer = assignment.value if assignment is not None else layer
        if not isinstance(layer, cst.Call):
            return False
        name = self._script.full_name(layer.func)
        keywords = {argument.keyword.value for argument in layer.args if argument.keyword}
        return bool(_INPUTS.search(name)) or (".layers." in name and bool(_SHAPES & keywords))

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
