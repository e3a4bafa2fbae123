"""Reads and writes the arguments of a call and the entries of a dict, with commas and comments."""

import libcst as cst

from tf_lamb.adopt.call import Translated
from tf_lamb.adopt.sources import Source


def arguments_of(node: cst.Call, names: tuple[str, ...]) -> dict[str, cst.BaseExpression] | None:
    """Returns the arguments of a call by name; None if it has more by position than names.

    What `**` passes is left out.
    """
    given = {}
    for position, argument in enumerate(node.args):
        if argument.star == "*":
            return None
        if argument.star == "**":
            continue
        if argument.keyword is None and position >= len(names):
            return None
        given[_name(argument, position, names)] = argument.value
    return given


def _name(argument: cst.Arg, position: int, names: tuple[str, ...]) -> str:
    """Returns the name of an argument."""
    return argument.keyword.value if argument.keyword else names[position]


def new_arguments(node: cst.Call, source: Source, found: Translated) -> list[cst.Arg]:
    """Returns the arguments of the new call, laid out as those of the old one.

    Args:
        node: The old call.
        source: The optimizer that it calls.
        found: Its arguments in our words.
    """
    names = tuple(source.defaults)
    left = {name: _keyword(name, value) for name, value in found.new.items()}
    arguments: list[cst.Arg] = []
    for position, argument in enumerate(node.args):
        if argument.star:  # ours stand before what is unpacked
            successors, left = [*left.values(), argument], {}
        elif (name := _name(argument, position, names)) in left:
            successors = [left.pop(name)]
        elif name not in found.kept:  # what it has become, or the rest
            successors, left = [*left.values()], {}
        elif position and not argument.keyword:
            successors = [_keyword(name, argument.value)]
        else:
            successors = [argument]
        if successors and position < len(node.args) - 1:
            # The comma, with the comment behind it.
            successors[-1] = successors[-1].with_changes(comma=argument.comma)
        arguments += successors
    arguments += left.values()
    if node.args and arguments:
        *before, last = arguments
        is_old = before and before[-1] is node.args[-1]
        if is_old:  # its comma was the end of the call
            before[-1] = before[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        arguments = [*before, last.with_changes(comma=node.args[-1].comma)]
    return arguments


def _keyword(name: str, value: str | cst.BaseExpression) -> cst.Arg:
    """Returns an argument by name."""
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    expression = cst.parse_expression(value) if isinstance(value, str) else value
    return cst.Arg(expression, keyword=cst.Name(name), equal=equal)


def entries_of(node: cst.Dict) -> dict[str, cst.DictElement]:
    """Returns the entries of a dict whose keys are texts."""
    return {
        str(element.key.evaluated_value): element
        for element in node.elements
        if isinstance(element, cst.DictElement) and isinstance(element.key, cst.SimpleString)
    }


def quoted_as(other: cst.SimpleString, text: str) -> cst.SimpleString:
    """Returns a text in the quotes of another."""
    return cst.SimpleString(f"{other.quote}{text}{other.quote}")
