"""Reads and writes the arguments of a call and the entries of a dict, with commas and comments."""

from collections.abc import Mapping, Sequence

import libcst as cst

from tf_lamb.adopt.call import Translated

_EQUAL = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def arguments_of(node: cst.Call, names: tuple[str, ...]) -> dict[str, cst.BaseExpression] | None:
    """Returns the values of a call's arguments by name, without those that `**` passes.

    Args:
        node: The call.
        names: The names of the arguments that may be passed by position, in order.

    Returns:
        Name -> value. None where `*` passes arguments, or more are passed by position than there
        are names.
    """
    values = {}
    for position, argument in enumerate(node.args):
        if argument.star == "*":
            return None
        if argument.star == "**":
            continue
        if argument.keyword is None and position >= len(names):
            return None
        values[_name(argument, position, names)] = argument.value
    return values


def _name(argument: cst.Arg, position: int, names: tuple[str, ...]) -> str:
    """Returns the name of an argument, which may be passed by position."""
    return argument.keyword.value if argument.keyword else names[position]


def new_arguments(
    node: cst.Call, names: tuple[str, ...], code_by_name: Mapping[str, str], translation: Translated
) -> list[cst.Arg]:
    """Returns the arguments of the new call, laid out as those of the old one.

    Args:
        node: The old call.
        names: The names of the arguments that may be passed by position, in order.
        code_by_name: Name of each of its arguments -> the code of its value.
        translation: The arguments of the new call.
    """
    values = arguments_of(node, names) or {}
    value_of_code = {code_by_name[name]: value for name, value in values.items()}
    remaining = {
        name: cst.Arg(value_of_code.get(code) or cst.parse_expression(code), cst.Name(name), _EQUAL)
        for name, code in translation.new.items()
    }
    arguments: list[cst.Arg] = []
    for position, argument in enumerate(node.args):
        if argument.star:  # `f(**rest, name=1)` would be valid, but reads worse
            successors, remaining = [*remaining.values(), argument], {}
        elif (name := _name(argument, position, names)) in remaining:
            successors = [remaining.pop(name)]
        elif name not in translation.unchanged:  # a replaced argument: all new ones stand here
            successors, remaining = [*remaining.values()], {}
        elif position and not argument.keyword:
            successors = [cst.Arg(argument.value, cst.Name(name), _EQUAL)]
        else:
            successors = [argument]
        if successors:  # they keep the comma and the comments that followed the old argument
            successors[-1] = successors[-1].with_changes(
                comma=argument.comma, whitespace_after_arg=argument.whitespace_after_arg
            )
        arguments += successors
    return _with_last_comma([*arguments, *remaining.values()], arguments, node.args)


def new_entries(node: cst.Dict, translation: Translated) -> cst.Dict:
    """Returns the dict of our optimizer's settings, laid out as the old one.

    Args:
        node: The old dict, whose keys are all literal strings.
        translation: The entries of the new dict.
    """
    old_values = {entry: value.value for entry, value in entries_of(node).items()}
    remaining = {
        name: cst.DictElement(cst.SimpleString(f'"{name}"'), cst.parse_expression(code))
        for name, code in translation.new.items()
    }
    entries: list[cst.DictElement] = []
    for name, entry in entries_of(node).items():
        if name in translation.unchanged:
            successors = [entry]
        else:
            successors, remaining = [*remaining.values()], {}
            if len(successors) == 1:  # an equal value keeps the line breaks of the script
                (new,) = successors
                is_same = new.value.deep_equals(old_values[name])
                key = quoted_as(entry.key, new.key.evaluated_value)
                value = old_values[name] if is_same else new.value
                successors = [entry.with_changes(key=key, value=value)]
        if successors:
            successors[-1] = successors[-1].with_changes(comma=entry.comma)
        entries += successors
    return node.with_changes(
        elements=_with_last_comma([*entries, *remaining.values()], entries, node.elements)
    )


def _with_last_comma(items: list, laid_out: list, old: Sequence) -> list:
    """Returns the items, with a comma after the last one only if the old script had it there.

    Args:
        items: The arguments of the new call, or the entries of the new dict.
        laid_out: The first of them, which have the commas of the old script.
        old: The arguments of the old call, or the entries of the old dict.
    """
    if not old or not items:
        return items
    if len(items) > len(laid_out) > 0:  # the comma at the end moves behind what is added
        last_laid_out = len(laid_out) - 1
        items[last_laid_out] = items[last_laid_out].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return [*items[:-1], items[-1].with_changes(comma=old[-1].comma)]


def entries_of(node: cst.Dict) -> dict[str, cst.DictElement]:
    """Returns the entries of a dict by key, without those whose key is no literal string."""
    return {
        str(element.key.evaluated_value): element
        for element in node.elements
        if isinstance(element, cst.DictElement) and isinstance(element.key, cst.SimpleString)
    }


def quoted_as(quoted: cst.SimpleString, text: str) -> cst.SimpleString:
    """Returns a text as a string literal, with the quotes of another literal."""
    return cst.SimpleString(f"{quoted.quote}{text}{quoted.quote}")
