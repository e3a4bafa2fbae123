"""Reads and writes the arguments of a call and the entries of a dict, with commas and comments."""

from collections.abc import Mapping, Sequence

import libcst as cst

from tf_lamb.adopt.call import Translated

_EQUAL = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


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


def new_arguments(
    node: cst.Call, names: tuple[str, ...], given: Mapping[str, str], found: Translated
) -> list[cst.Arg]:
    """Returns the arguments of the new call, laid out as those of the old one.

    Args:
        node: The old call.
        names: The names of its arguments by position.
        given: Its arguments by name -> their code.
        found: Its arguments in our words.
    """
    values = arguments_of(node, names) or {}
    of_code = {given[name]: value for name, value in values.items()}
    left = {
        name: cst.Arg(of_code.get(code) or cst.parse_expression(code), cst.Name(name), _EQUAL)
        for name, code in found.new.items()
    }
    arguments: list[cst.Arg] = []
    for position, argument in enumerate(node.args):
        if argument.star:  # ours stand before what is unpacked
            successors, left = [*left.values(), argument], {}
        elif (name := _name(argument, position, names)) in left:
            successors = [left.pop(name)]
        elif name not in found.kept:  # what it has become, or the rest
            successors, left = [*left.values()], {}
        elif position and not argument.keyword:
            successors = [cst.Arg(argument.value, cst.Name(name), _EQUAL)]
        else:
            successors = [argument]
        if successors:  # with the comma and the comments behind
            successors[-1] = successors[-1].with_changes(
                comma=argument.comma, whitespace_after_arg=argument.whitespace_after_arg
            )
        arguments += successors
    return _ended([*arguments, *left.values()], arguments, node.args)


def new_entries(node: cst.Dict, found: Translated) -> cst.Dict:
    """Returns a dict with the entries in our words, laid out as the old one.

    Args:
        node: The old dict, whose keys are all texts.
        found: Its entries in our words.
    """
    of_code = {entry: value.value for entry, value in entries_of(node).items()}
    left = {
        name: cst.DictElement(cst.SimpleString(f'"{name}"'), cst.parse_expression(code))
        for name, code in found.new.items()
    }
    entries: list[cst.DictElement] = []
    for name, entry in entries_of(node).items():
        if name in found.kept:
            successors = [entry]
        else:
            successors, left = [*left.values()], {}
            if len(successors) == 1:  # the value as it was laid out, where it is the same
                (new,) = successors
                is_same = new.value.deep_equals(of_code[name])
                key = quoted_as(entry.key, new.key.evaluated_value)
                value = of_code[name] if is_same else new.value
                successors = [entry.with_changes(key=key, value=value)]
        if successors:
            successors[-1] = successors[-1].with_changes(comma=entry.comma)
        entries += successors
    return node.with_changes(elements=_ended([*entries, *left.values()], entries, node.elements))


def _ended(items: list, laid_out: list, old: Sequence) -> list:
    """Returns items that end as others did.

    Args:
        items: Arguments of a call or entries of a dict.
        laid_out: The first of them, whose commas are those of `old`.
        old: What stood there.
    """
    if not old or not items:
        return items
    if len(items) > len(laid_out) > 0:  # the comma at the end moves behind what is added
        last = len(laid_out) - 1
        items[last] = items[last].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return [*items[:-1], items[-1].with_changes(comma=old[-1].comma)]


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
