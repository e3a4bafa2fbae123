"""Moves the clipping of gradients that a script sums over replicas into the rewritten optimizer.

An optimizer of Keras 3 sums over the replicas in `apply_gradients`, and clips the sum. So a script
that makes its own sum, and clips it, has to leave out both.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import libcst as cst
from libcst import matchers

from tf_lamb.adopt.holders import Holders
from tf_lamb.adopt.layout import with_argument
from tf_lamb.adopt.reading import Script

# Argument of `apply_gradients` -> the value with which it says that the script has made the sum.
SUMMED = {"experimental_aggregate_gradients": "False", "skip_gradients_aggregation": "True"}
# Function of TensorFlow -> the argument of optimizers that clips in the same way.
_CLIPPINGS = {
    "tensorflow.clip_by_global_norm": "global_clipnorm",
    "tensorflow.clip_by_norm": "clipnorm",
    "tensorflow.clip_by_value": "clipvalue",
}
_SUM = ("ReduceOp.SUM", "'SUM'", '"SUM"', "'sum'", '"sum"')
_MEAN = ("ReduceOp.MEAN", "'MEAN'", '"MEAN"', "'mean'", '"mean"')
_SIMPLE_BLOCK = (cst.IndentedBlock, cst.With)


class _Change(NamedTuple):
    """Holds a line that computes gradients from gradients.

    Attributes:
        line: The line.
        call: The call of the function that computes them.
        old: The name of the gradients before.
        new: The name of the gradients after it.
        names: All the nodes of these names in the line.
    """

    line: cst.SimpleStatementLine
    call: cst.Call
    old: cst.Name
    new: cst.Name
    names: tuple[cst.Name, ...]


class Aggregation:
    """Rewrites such a script where it is certain; else adds a note.

    Args:
        script: The script, which receives the changes and the notes.
        holders: The expressions that stand for a rewritten optimizer.
        calls: The rewritten calls, of Keras 3 only.
        updates: The calls of `apply_gradients` or `apply` in the script.
    """

    def __init__(
        self, script: Script, holders: Holders, calls: list[cst.Call], updates: list[cst.Call]
    ):
        self._script, self._holders, self._calls = script, holders, calls
        self._updates = [
            node
            for node in updates
            if node.func.attr.value == "apply_gradients" and holders.holds(node.func.value)
        ]

    def add(self) -> None:
        """Rewrites each update of summed gradients, or adds a note on it."""
        for update in self._updates:
            for argument in update.args:
                name = argument.keyword.value if argument.keyword else ""
                is_summed = name in SUMMED and self._code(argument.value) == SUMMED[name]
                if is_summed and not self._rewrite(update, argument):
                    self._add_note(update, name)

    def _code(self, node: cst.CSTNode) -> str:
        return self._script.code_of(node)

    def _line_number(self, node: cst.CSTNode) -> int:
        return self._script.positions[node].start.line

    def _add_note(self, update: cst.Call, name: str):
        """Adds a note on what to leave out, and what to write for it."""
        text = (
            f"{self._code(update.func)} has no argument {name} in Keras 3: leave it out, and your "
            "sum over the replicas, too, which the optimizer makes."
        )
        details = [
            f"Instead of {self._code(call.func)} in line {self._line_number(call)}, which clips "
            f"your sum, pass {clipping} to the optimizer, which clips its own."
            for call in self._clippings_before(update)
            if (clipping := "=".join(self._clipping_of(call)))
        ]
        details += [
            f"Your line {self._line_number(call)} takes the mean over the replicas instead: "
            "without it, divide the loss by strategy.num_replicas_in_sync."
            for call in self._totals_before(update)
            if self._code(call.args[0].value).endswith(_MEAN)
        ]
        details.append(
            "Or keep your sum, and divide the gradients by strategy.num_replicas_in_sync in the "
            "line before the update."
        )
        self._script.add_note(update, text, details, is_left=True)

    def _clippings_before(self, update: cst.Call) -> list[cst.Call]:
        """Returns the calls that clip between the sum over the replicas and an update."""
        line = self._line_number(update)
        first = min(map(self._line_number, self._totals_before(update)), default=0)
        return [
            node
            for node in matchers.findall(self._function_of(update), matchers.Call())
            if self._script.full_name(node.func) in _CLIPPINGS
            and first <= self._line_number(node) <= line
        ]

    def _totals_before(self, update: cst.Call) -> list[cst.Call]:
        """Returns the calls before an update that sum over the replicas, or take the mean."""
        line = self._line_number(update)
        return [
            node
            for node in matchers.findall(self._function_of(update), matchers.Call())
            if self._code(node.func).endswith(("all_reduce", ".reduce", ".batch_reduce"))
            and node.args
            and self._line_number(node) <= line
        ]

    def _function_of(self, node: cst.CSTNode) -> cst.CSTNode:
        """Returns the function that a node is in, or else the module."""
        while not isinstance(node, (cst.FunctionDef, cst.Module)):
            node = self._script.parents[node]
        return node

    def _clipping_of(self, call: cst.Call) -> tuple[str, str]:
        """Returns the argument of an optimizer that clips as a call does, and its value."""
        name = _CLIPPINGS[self._script.full_name(call.func)]
        index = 2 if name == "clipvalue" else 1
        keyword = "clip_value_max" if name == "clipvalue" else "clip_norm"
        named = [a.value for a in call.args if a.keyword and a.keyword.value == keyword]
        placed = [a.value for a in call.args[index : index + 1] if not a.keyword and not a.star]
        values = named or placed
        return name, self._code(values[0]) if values else "..."

    def _rewrite(self, update: cst.Call, argument: cst.Arg) -> bool:
        """Plans to leave out a sum over the replicas; returns whether it is certain how.

        It is certain if the sum, perhaps one clipping by a number, and the update are lines of one
        block, and no other line uses what the first two compute.

        Args:
            update: The call of `apply_gradients`.
            argument: Its argument that says that the script has made the sum.
        """
        script, lines_and_name = self._script, self._changes_before(update)
        if lines_and_name is None:
            return False
        changes, used = lines_and_name
        total, *clips = changes
        settings = [self._clipping_of(clip.call) for clip in clips]
        if clips and not self._can_clip(update, clips[0].call, settings[0]):
            return False
        for change in changes:
            script.replacements[change.line] = lambda _: cst.RemoveFromParent()
        if used.value != total.old.value:
            old_name = total.old.value
            script.replacements[used] = lambda name: name.with_changes(value=old_name)
        index = update.args.index(argument)
        is_last = index == len(update.args) - 1
        script.replacements[update] = lambda call: _without_argument(call, index, is_last)
        text = (
            "Keras 3's optimizers sum over the replicas in apply_gradients, so "
            f"{argument.keyword.value} is left out here, and your sum in line "
            f"{self._line_number(total.line)}"
        )
        details = []
        for clip, (name, value) in zip(clips, settings, strict=True):
            make = script.replacements[self._calls[0]]
            script.replacements[self._calls[0]] = _clipping_too(make, name, value)
            clipping = self._code(clip.call.func)
            text += (
                f", and {clipping} in line {self._line_number(clip.line)} becomes {name}={value} "
                "of the optimizer"
            )
            if "Embedding" in script.code:
                details.append(
                    "The gradients of a row of an embedding that a batch uses more than once are "
                    f"summed and then clipped here; {clipping} clips them first."
                )
        script.add_note(update, f"{text}.", details)
        return True

    def _can_clip(self, update: cst.Call, clip: cst.Call, setting: tuple[str, str]) -> bool:
        """Returns whether the optimizer can clip instead of the script, in every update.

        Args:
            update: The call of `apply_gradients`.
            clip: The call that clips.
            setting: The argument of the optimizer that clips, and its value.
        """
        name, value = setting
        bounds = [self._code(argument.value) for argument in clip.args]
        if any(a.keyword or a.star for a in clip.args) or len(bounds) != 2 + (name == "clipvalue"):
            return False
        is_symmetric = name != "clipvalue" or bounds[1] == f"-{value}"
        if not value.replace(".", "").isdigit() or not float(value) or not is_symmetric:
            return False
        if len(self._calls) != 1 or len(self._updates) != 1:
            return False
        (call,) = self._calls
        has_others = any(
            argument.star or (argument.keyword and argument.keyword.value in _CLIPPINGS.values())
            for argument in call.args
        )
        return not has_others and self._holders.target_of(call) == self._code(update.func.value)

    def _changes_before(self, update: cst.Call) -> tuple[list[_Change], cst.Name] | None:
        """Returns the lines of the sum and the clipping, and the name in the update.

        Returns None if they are not certain.
        """
        parents = self._script.parents
        line = parents[parents[update]]
        if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
            return None
        block = outer = parents[line]
        while isinstance(outer, _SIMPLE_BLOCK):
            outer = parents[outer]
        if not isinstance(outer, cst.FunctionDef) or not isinstance(block, cst.IndentedBlock):
            return None
        pairs = update.args[0].value
        if not isinstance(pairs, cst.Call) or self._code(pairs.func) != "zip" or not pairs.args:
            return None
        if not isinstance(used := pairs.args[0].value, cst.Name):
            return None
        changes = [
            change
            for statement in block.body[: block.body.index(line)]
            if (change := self._change_of(statement)) is not None
        ]
        sums = [change for change in changes if self._is_sum(change.call)]
        if len(sums) != 1:
            return None
        changes = changes[changes.index(sums[0]) :]
        if len(changes) > 2 or changes[-1].new.value != used.value:
            return None
        if len(changes) == 2 and changes[1].old.value != changes[0].new.value:
            return None
        expected = {used, *(name for change in changes for name in change.names)}
        names = {name.value for change in changes for name in (change.old, change.new)}
        start, end = self._line_number(changes[0].line), self._line_number(line)
        for node in matchers.findall(outer, matchers.Name()):
            is_between = start <= self._line_number(node) <= end
            is_later = self._line_number(node) > end and node.value in {
                change.new.value for change in changes
            }
            if node.value in names and node not in expected and (is_between or is_later):
                return None
        return changes, used

    def _is_sum(self, call: cst.Call) -> bool:
        """Returns whether a call sums over the replicas."""
        function = self._code(call.func)
        return function.endswith(".all_reduce") and self._code(call.args[0].value).endswith(_SUM)

    def _change_of(self, statement: cst.CSTNode) -> _Change | None:
        """Returns a line that sums gradients over the replicas, or clips them; None if it is other.

        The function may take all gradients at once, or one by one in a list comprehension.
        """
        if not matchers.matches(
            statement, matchers.SimpleStatementLine([matchers.Assign([matchers.AssignTarget()])])
        ):
            return None
        assignment = statement.body[0]
        target, value = assignment.targets[0].target, assignment.value
        names: list[cst.Name] = []
        if isinstance(value, cst.ListComp):
            loop, call = value.for_in, value.elt
            is_plain = isinstance(loop.target, cst.Name) and not loop.ifs and not loop.inner_for_in
            if not is_plain or not isinstance(loop.iter, cst.Name):
                return None
            old, inner = loop.iter, loop.target.value
            names += [n for n in matchers.findall(value, matchers.Name()) if n.value == inner]
        else:
            call, old, inner = value, None, ""
        if not isinstance(call, cst.Call):
            return None
        clipping = _CLIPPINGS.get(self._script.full_name(call.func))
        is_sum = self._code(call.func).endswith("all_reduce")
        if not (clipping or is_sum) or len(call.args) <= is_sum:
            return None
        changed = call.args[int(is_sum)].value
        if not isinstance(changed, cst.Name) or (inner and changed.value != inner):
            return None
        if (clipping in ("clipnorm", "clipvalue")) and not inner:
            return None
        if clipping == "global_clipnorm":
            if inner or not isinstance(target, cst.Tuple) or len(target.elements) != 2:
                return None
            norm = target.elements[1].value
            function = self._function_of(statement)
            uses = matchers.findall(function, matchers.Name(getattr(norm, "value", "")))
            if not isinstance(norm, cst.Name) or (norm.value != "_" and len(uses) > 1):
                return None
            target = target.elements[0].value
        old = old or changed
        if not isinstance(target, cst.Name):
            return None
        return _Change(statement, call, old, target, (old, target, *names))


def _clipping_too(make: Callable[[Any], Any], name: str, value: str) -> Callable[[Any], Any]:
    """Returns the planned replacement `make` of a call, with one argument more."""
    return lambda call: with_argument(make(call), name, value)


def _without_argument(call: cst.Call, index: int, is_last: bool) -> cst.Call:
    """Returns a call without one of its arguments."""
    arguments = [*call.args[:index], *call.args[index + 1 :]]
    if is_last and arguments:
        removed = call.args[index]
        arguments[-1] = arguments[-1].with_changes(
            comma=removed.comma, whitespace_after_arg=removed.whitespace_after_arg
        )
    return call.with_changes(args=arguments)
