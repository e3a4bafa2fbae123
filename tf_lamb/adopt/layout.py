"""Reads the arguments of a call and the entries of a dict, and replaces them in the same layout.

The commas, comments and quotes of the old code are kept.
"""

from collections.abc import Iterable, Mapping, Sequence

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
    layout = _Layout(node.args, node.whitespace_before_args)
    for position, argument in enumerate(node.args):
        if argument.star:  # new arguments go before `**`, which reads better than after it
            new_items, unplaced = [*unplaced.values(), argument], {}
        elif (name := _argument_name(argument, position, names)) in unplaced:
            new_items = [unplaced.pop(name)]
        elif name not in translation.unchanged:
            replacing = _replacing(code_by_name[name], unplaced, code_by_name, translation)
            new_items = [unplaced.pop(each) for each in replacing]
        elif position and not argument.keyword:
            new_items = [cst.Arg(argument.value, cst.Name(name), _EQUAL_SIGN)]
        else:
            new_items = [argument]
        layout.place(new_items, argument.comma)
    if not node.args:
        return [*unplaced.values()]
    return _finished(layout, unplaced.values(), node.args[-1])


def with_argument(node: cst.Call, name: str, code: str) -> cst.Call:
    """Returns a call with one more argument at its end, in the layout of the others."""
    added = cst.Arg(cst.parse_expression(code), cst.Name(name), _EQUAL_SIGN)
    if not node.args:
        return node.with_changes(args=[added])
    layout = _Layout(node.args, node.whitespace_before_args)
    for argument in node.args:
        layout.place([argument], argument.comma)
    return node.with_changes(args=_finished(layout, [added], node.args[-1]))


def _finished(layout: "_Layout", added: Iterable[cst.Arg], last: cst.Arg) -> list[cst.Arg]:
    """Returns the arguments of a layout and those that are added, with the end of the old call.

    Args:
        layout: The layout, in which all other arguments are placed.
        added: The arguments that are added after them.
        last: The last argument of the old call.
    """
    has_comma = isinstance(last.comma, cst.Comma)
    end = last.comma.whitespace_after if has_comma else last.whitespace_after_arg
    items, end = layout.finish(added, end)
    items = [item.with_changes(whitespace_after_arg=cst.SimpleWhitespace("")) for item in items]
    if items and has_comma:
        items[-1] = items[-1].with_changes(comma=last.comma.with_changes(whitespace_after=end))
    elif items:
        items[-1] = items[-1].with_changes(whitespace_after_arg=end)
    return items


def new_entries(node: cst.Dict, translation: Translation) -> cst.Dict:
    """Returns the dict with the settings of this package's optimizer, in the layout of the old one.

    Args:
        node: The old dict, whose keys are all literal strings.
        translation: The entries of the new dict.
    """
    old_entries = entries_of(node)
    old_values = {name: entry.value for name, entry in old_entries.items()}
    code_by_name = {name: cst.Module([]).code_for_node(old_values[name]) for name in old_values}
    unplaced = {
        name: cst.DictElement(cst.SimpleString(f'"{name}"'), cst.parse_expression(code))
        for name, code in translation.new_arguments.items()
    }
    layout = _Layout(node.elements, node.lbrace.whitespace_after)
    for name, entry in old_entries.items():
        if name in translation.unchanged:
            new_items = [entry]
        else:
            replacing = _replacing(code_by_name[name], unplaced, code_by_name, translation)
            new_items = [unplaced.pop(each) for each in replacing]
            if len(new_items) == 1:  # an unchanged value keeps its line breaks
                (new_item,) = new_items
                is_same_value = new_item.value.deep_equals(old_values[name])
                key = with_quotes_of(entry.key, new_item.key.evaluated_value)
                value = old_values[name] if is_same_value else new_item.value
                new_items = [entry.with_changes(key=key, value=value)]
        layout.place(new_items, entry.comma)
    if not node.elements:
        return node.with_changes(elements=[*unplaced.values()])
    items, end = layout.finish(unplaced.values(), node.rbrace.whitespace_before)
    if items:
        items[-1] = items[-1].with_changes(comma=node.elements[-1].comma)
    return node.with_changes(elements=items, rbrace=node.rbrace.with_changes(whitespace_before=end))


def _replacing(
    code: str,
    unplaced: Mapping[str, cst.CSTNode],
    code_by_name: Mapping[str, str],
    translation: Translation,
) -> list[str]:
    """Returns the names of the new arguments that take the place of an old one.

    That is the first one with the same value, which is the old one under a new name. If there is
    none, all new ones go there that stand for no other old one and were not added.

    Args:
        code: The code of the value of the old argument.
        unplaced: The new arguments that have no place, by their names.
        code_by_name: Name of each old argument -> the code of its value.
        translation: The arguments of the new call.
    """
    replacements = [name for name in unplaced if name not in translation.added]
    same = [name for name in replacements if translation.new_arguments[name] == code]
    if same:
        return same[:1]
    codes = set(code_by_name.values())
    return [name for name in replacements if translation.new_arguments[name] not in codes]


class _Layout:
    """Puts commas, spaces and line breaks between the arguments of a call or the entries of a dict.

    Args:
        old_items: The old arguments or entries.
        opening: The whitespace before the first of them.
    """

    def __init__(self, old_items: Sequence, opening: cst.BaseParenthesizableWhitespace):
        commas = [item.comma for item in old_items[:-1]]
        spaces = [comma.whitespace_after for comma in commas if isinstance(comma, cst.Comma)]
        breaks = [
            space for space in (*spaces, opening) if isinstance(space, cst.ParenthesizedWhitespace)
        ]
        # An added item has the indentation of the old ones; a comment stays with its old item.
        self._line_break = (
            breaks[0].with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
            if breaks
            else cst.SimpleWhitespace(" ")
        )
        # New items get lines of their own if an old one has. Else they share one line.
        has_own_lines = len(old_items) == 1 or any(space in breaks for space in spaces)
        self._separator = self._line_break if has_own_lines else cst.SimpleWhitespace(" ")
        self._items: list = []

    def place(self, new_items: list, comma) -> None:
        """Puts new items in the place of an old one.

        Args:
            new_items: The new items; none if the old one is left out.
            comma: The comma after the old one, which the last new one gets.
        """
        commas = [cst.Comma(whitespace_after=self._separator)] * (len(new_items) - 1) + [comma]
        self._items += [
            item.with_changes(comma=comma) for item, comma in zip(new_items, commas, strict=False)
        ]

    def finish(self, added_items, end) -> tuple[list, cst.BaseParenthesizableWhitespace]:
        """Returns all items, without a comma after the last one, and the whitespace after it.

        Args:
            added_items: The items that are added after the others.
            end: The whitespace after the last old item, with a comment if there is one.
        """
        items = [*self._items]
        if items and added_items:
            comma = items[-1].comma
            # A comment stays in the line of its item: the added ones come below.
            last_space = comma.whitespace_after if _has_break(comma) else end
            comma = comma if isinstance(comma, cst.Comma) else cst.Comma()
            items[-1] = items[-1].with_changes(
                comma=comma.with_changes(
                    whitespace_after=_with_comment_of(last_space, self._line_break)
                )
            )
            if isinstance(self._line_break, cst.ParenthesizedWhitespace):
                end = _without_comment(end)
        elif items and _has_break(items[-1].comma):
            end = _with_comment_of(items[-1].comma.whitespace_after, end)
        items += [
            item.with_changes(comma=cst.Comma(whitespace_after=self._separator))
            for item in added_items
        ]
        if items:
            items[-1] = items[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return items, end


def _has_break(comma) -> bool:
    """Returns whether a line break follows a comma, which may be missing."""
    return isinstance(comma, cst.Comma) and isinstance(
        comma.whitespace_after, cst.ParenthesizedWhitespace
    )


def _with_comment_of(space, new_space):
    """Returns the whitespace `new_space`, with the comment that `space` has in its first line."""
    is_possible = all(isinstance(each, cst.ParenthesizedWhitespace) for each in (space, new_space))
    if is_possible and space.first_line.comment and not new_space.first_line.comment:
        return new_space.with_changes(first_line=space.first_line)
    return new_space


def _without_comment(space):
    """Returns whitespace without the comment in its first line."""
    if isinstance(space, cst.ParenthesizedWhitespace):
        return space.with_changes(first_line=cst.TrailingWhitespace())
    return space


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
