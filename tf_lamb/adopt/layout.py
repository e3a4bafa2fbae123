"""Reads the arguments of a call and the entries of a dict, and replaces them in the same layout.

The commas, comments and quotes of the old code are kept.
"""

from collections.abc import Mapping, Sequence

import libcst as cst

from tf_lamb.adopt.call import Translation

_EQUAL_SIGN = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def arguments_of(node: cst.Call, names: tuple[str, ...]) -> dict[str, cst.BaseExpression] | None:
    """Returns the values of a call's arguments by name, without those that `**` passes.

    Args:
        node: The call.
        names: The names of the arguments that may be passed by position, in order.

    Returns:
        Name -> value. None if the call passes arguments by `*`, or more arguments by position than
        there are names.
    """
    values = {}
    for position, argument in enumerate(node.args):
        if argument.star == "*":
            return None
        if argument.star == "**":
            continue
        if argument.keyword is None and position >= len(names):
            return None
        values[_argument_name(argument, position, names)] = argument.value
    return values


def _argument_name(argument: cst.Arg, position: int, names: tuple[str, ...]) -> str:
    """Returns the name of an argument of a call.

    If the argument is passed by position, its name is the entry of `names` at this position.
    """
    return argument.keyword.value if argument.keyword else names[position]


def new_arguments(
    node: cst.Call,
    names: tuple[str, ...],
    code_by_name: Mapping[str, str],
    translation: Translation,
) -> list[cst.Arg]:
    """Returns the arguments of the new call, with the layout of the old arguments.

    Args:
        node: The old call.
        names: The names of the arguments that may be passed by position, in order.
        code_by_name: Name of each argument of the old call -> the code of its value.
        translation: The arguments of the new call.
    """
    values = arguments_of(node, names) or {}
    value_of_code = {code_by_name[name]: value for name, value in values.items()}
    unplaced = {
        name: cst.Arg(
            value_of_code.get(code) or cst.parse_expression(code), cst.Name(name), _EQUAL_SIGN
        )
        for name, code in translation.new_arguments.items()
    }
    arguments: list[cst.Arg] = []
    for position, argument in enumerate(node.args):
        if argument.star:  # new arguments go before `**`, which reads better than after it
            new_items, unplaced = [*unplaced.values(), argument], {}
        elif (name := _argument_name(argument, position, names)) in unplaced:
            new_items = [unplaced.pop(name)]
        elif name not in translation.unchanged:  # all new ones take the first replaced one's place
            new_items, unplaced = [*unplaced.values()], {}
        elif position and not argument.keyword:
            new_items = [cst.Arg(argument.value, cst.Name(name), _EQUAL_SIGN)]
        else:
            new_items = [argument]
        if new_items:  # the last one gets the comma and comments of the old argument
            new_items[-1] = new_items[-1].with_changes(
                comma=argument.comma, whitespace_after_arg=argument.whitespace_after_arg
            )
        arguments += new_items
    return _with_last_comma([*arguments, *unplaced.values()], arguments, node.args)


def new_entries(node: cst.Dict, translation: Translation) -> cst.Dict:
    """Returns the dict with the settings of this package's optimizer, in the layout of the old one.

    Args:
        node: The old dict, whose keys are all literal strings.
        translation: The entries of the new dict.
    """
    old_values = {entry: value.value for entry, value in entries_of(node).items()}
    unplaced = {
        name: cst.DictElement(cst.SimpleString(f'"{name}"'), cst.parse_expression(code))
        for name, code in translation.new_arguments.items()
    }
    entries: list[cst.DictElement] = []
    for name, entry in entries_of(node).items():
        if name in translation.unchanged:
            new_items = [entry]
        else:
            new_items, unplaced = [*unplaced.values()], {}
            if len(new_items) == 1:  # an unchanged value keeps its line breaks
                (new_item,) = new_items
                is_same_value = new_item.value.deep_equals(old_values[name])
                key = with_quotes_of(entry.key, new_item.key.evaluated_value)
                value = old_values[name] if is_same_value else new_item.value
                new_items = [entry.with_changes(key=key, value=value)]
        if new_items:
            new_items[-1] = new_items[-1].with_changes(comma=entry.comma)
        entries += new_items
    return node.with_changes(
        elements=_with_last_comma([*entries, *unplaced.values()], entries, node.elements)
    )


def _with_last_comma(items: list, placed_items: list, old_items: Sequence) -> list:
    """Returns `items`, with a comma after the last one if the old script had one after its last.

    Args:
        items: The arguments of the new call, or the entries of the new dict.
        placed_items: The first of `items`, which already have the commas of the old script.
        old_items: The arguments of the old call, or the entries of the old dict.
    """
    if not old_items or not items:
        return items
    if len(items) > len(placed_items) > 0:  # a comma at the old end moves to the new end
        last_placed = len(placed_items) - 1
        items[last_placed] = items[last_placed].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return [*items[:-1], items[-1].with_changes(comma=old_items[-1].comma)]


def entries_of(node: cst.Dict) -> dict[str, cst.DictElement]:
    """Returns the entries of a dict whose keys are literal strings, as key -> entry."""
    return {
        str(element.key.evaluated_value): element
        for element in node.elements
        if isinstance(element, cst.DictElement) and isinstance(element.key, cst.SimpleString)
    }


def with_quotes_of(quoted: cst.SimpleString, text: str) -> cst.SimpleString:
    """Returns `text` as a string literal with the same quotes as the literal `quoted`."""
    return cst.SimpleString(f"{quoted.quote}{text}{quoted.quote}")
