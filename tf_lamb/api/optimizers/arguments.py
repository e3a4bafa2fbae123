"""Replaces arguments of other packages, such as `lr`, and corrects misspelt ones.

The error for an argument that an optimizer does not have shows the user's call rewritten.
"""

import ast
import difflib
import functools
import inspect
import math
import numbers
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from tf_lamb.api import frontends
from tf_lamb.api.optimizers.words import WORDS, Word

Constructor = TypeVar("Constructor", bound=Callable[..., None])

_LIKENESS = 0.75  # `difflib`'s least ratio for a misspelt name: below it unrelated names match
_LONGEST = 100  # the most characters of a value that is shown; a longer one is shown as `...`
_DEEPEST = 3  # the most levels of nested lists and dicts that are shown
_HIDDEN = "..."
_MEANT = "did you mean"  # begins the label of a misspelt argument
_RATE_OF_OTHERS = 0.001  # the default learning rate in TensorFlow Addons, torch, timm and Keras


def answered(constructor: Constructor) -> Constructor:
    """Wraps a constructor, so that its error for an unknown argument shows the call rewritten.

    The signature stays the same. A subclass may have a constructor with other arguments: then the
    error does not know the user's call, and shows only the arguments to replace.
    """
    parameters = dict([*inspect.signature(constructor).parameters.items()][1:])

    @functools.wraps(constructor)
    def __init__(self, *args: Any, **arguments: Any) -> None:
        if any(name not in parameters for name in arguments):
            cls = type(self)
            call = _Call(cls, parameters, args, arguments, cls.__init__ is __init__)
            raise TypeError(call.answer())
        constructor(self, *args, **arguments)

    return __init__  # type: ignore[return-value]


class Code(str):
    """Holds the code of an argument whose value is not known, such as "config.betas"."""


class Translation(NamedTuple):
    """Holds what replaces the arguments of another package.

    Attributes:
        arguments: Name -> value, as code, of the arguments of this package. "..." stands for a
            value that `shown` does not show.
        notes: Sentences about what this package computes differently, or cannot do.
        impossible: The names of the arguments that are unknown, or that nothing here replaces.
    """

    arguments: dict[str, str]
    notes: str
    impossible: tuple[str, ...]


def translation(cls: type, arguments: Mapping[str, Any], keras: str | None = None) -> Translation:
    """Finds what replaces arguments that a class of optimizers does not have.

    Args:
        cls: The class, or its framework-independent base class in `tf_lamb.api`.
        arguments: Name -> value of arguments of other packages and of this one. A value may be
            `Code`.
        keras: What Keras is called in the code that is returned, such as "tf.keras". Defaults to
            None: the package that the class is for, "keras" or "tf_keras".

    Returns:
        The arguments to write instead, and notes on them.
    """
    call = _Call(cls, inspect.signature(cls).parameters, (), arguments, True, keras)
    new = {name: shown(value) for name, value in call.new.items()}
    return Translation(new, call.sentences(), call.impossible())


def shown(value: Any, depth: int = 0) -> str:
    """Returns a value as short Python code, or `...` if it is long or of another type than these.

    The types are None, bool, number, string, list, tuple, dict and `Code`. No method of an object
    of another type is called.

    Args:
        value: The value of an argument.
        depth: How many lists, tuples and dicts the value is in. Defaults to 0.
    """
    text = _HIDDEN
    if type(value) is Code or value is None or type(value) is bool:
        return str(value)
    if type(value) is str:
        text = repr(value) if len(value) < _LONGEST else _HIDDEN
    elif type(value) in (int, float) or type(value).__module__ == "numpy":
        text = _number(value)
    elif type(value) in (list, tuple, dict) and depth < _DEEPEST and len(value) < _LONGEST:
        parts = [shown(item, depth + 1) for item in value]
        if type(value) is dict:
            parts = [
                f"{key}: {shown(item, depth + 1)}"
                for key, item in zip(parts, value.values(), strict=True)
            ]
            text = f"{{{', '.join(parts)}}}"
        elif type(value) is list:
            text = f"[{', '.join(parts)}]"
        else:
            text = f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    return text if len(text) <= _LONGEST else _HIDDEN


def _number(value: Any) -> str:
    """Returns a number as Python code; one of NumPy with seven digits, as many as float32 holds."""
    if type(value) is int:
        return str(value) if abs(value) < 1e15 else _HIDDEN
    if not isinstance(value, numbers.Real):  # an array
        return _HIDDEN
    number = float(value)
    text = repr(number) if type(value) is float else f"{number:.7g}"
    return text if math.isfinite(number) else f"float({text!r})"


class _Foreign(NamedTuple):
    """Holds an argument of the user's call that the class does not have.

    Attributes:
        name: The name in the user's call.
        label: The packages that have the argument, "did you mean ...?" if it is misspelt, or "" if
            it is unknown.
        has_place: Whether the rewritten call does what the argument asks for. Defaults to True.
    """

    name: str
    label: str
    has_place: bool = True


class _Call:
    """Holds a call of a constructor with arguments that it does not have, and rewrites the call.

    Attributes:
        new: Name -> value of the class's own arguments that replace these.
    """

    def __init__(
        self, cls: type, parameters: Mapping[str, inspect.Parameter], args: Sequence[Any],
        arguments: Mapping[str, Any], is_whole: bool, keras: str | None = None,
    ):  # fmt: skip
        """Rewrites a call.

        Args:
            cls: The class that is called.
            parameters: Name -> parameter of its constructor.
            args: The values that were passed by position.
            arguments: The values that were passed by name.
            is_whole: Whether the user wrote this call. If the constructor of a subclass did, the
                error shows only the arguments to replace.
            keras: As for `translation`. Defaults to None.
        """
        self._cls, self._parameters, self._is_whole = cls, parameters, is_whole
        self._keras = keras
        self._foreign: list[_Foreign] = []
        self._notes: dict[str, None] = {}  # the keys are the notes, in order and each once
        foreign = {name: value for name, value in arguments.items() if name not in parameters}
        if "learning_rate" in parameters and _begins_with_parameters(args, foreign):
            # torch's optimizers take the model's parameters first.
            (foreign["params"], *args) = args
        self._positional = [*parameters][: len(args)]
        self._given = dict(zip(self._positional, args, strict=False))
        self._given |= {name: arguments[name] for name in parameters if name in arguments}
        self.new: dict[str, Any] = {}
        entries = self._entries()
        self._unknown = self._read_misspelt(foreign, entries)
        self._rewrite(foreign, entries)
        # What is left has a row in `WORDS`, but for other values: classic_momentum="no", say.
        self._unknown += foreign
        self._foreign += [_Foreign(name, "", has_place=False) for name in foreign]
        order = list(arguments)
        self._foreign.sort(key=lambda word: order.index(word.name) if word.name in order else -1)

    def answer(self) -> str:
        """Returns the text of the error."""
        plural = "s" if len(self._foreign) > 1 else ""
        names = [f"{word.name!r}{word.label and f' ({word.label})'}" for word in self._foreign]
        head = f"{self._cls.__name__} has no argument{plural} {_listed(names)}"
        accepted = ", ".join(self._parameters)
        if len(self._unknown) == len(self._foreign):
            return f"{head}: it takes {accepted}."
        if self._unknown:
            self._notes[f"{_listed(map(repr, self._unknown))} is unknown; it takes {accepted}."] = (
                None
            )
        notes = " ".join(filter(None, [self.sentences(), self._about_the_rate()]))
        call = self._rewritten()
        if any(word.has_place for word in self._foreign):
            return " ".join(filter(None, [f"{head}: {call}.", notes]))
        return f"{head}. {notes} Without {'them' if plural else 'it'}, {call}."

    def sentences(self) -> str:
        """Returns what this package computes differently, or cannot do, in sentences."""
        return " ".join(self._notes)

    def _about_the_rate(self) -> str:
        """Returns a sentence on the default learning rate, or "" where none is needed.

        It is needed where a call with arguments of another package does not pass the rate, because
        the default of most other packages is another one.
        """
        rate = self._parameters.get("learning_rate")
        if rate is None or rate.default in (rate.empty, _RATE_OF_OTHERS) or not self._is_whole:
            return ""
        of_others = any(word.label and _MEANT not in word.label for word in self._foreign)
        if not of_others or "learning_rate" in {**self._given, **self.new}:
            return ""
        return (
            f"Without learning_rate it begins at {rate.default} here: pass the rate that you had."
        )

    def impossible(self) -> tuple[str, ...]:
        """Returns the names of the arguments that are unknown, or that nothing here replaces."""
        return tuple(word.name for word in self._foreign if not word.has_place)

    def _entries(self) -> list[Word]:
        """Returns the rows of `WORDS` that are for this class."""
        if "learning_rate" not in self._parameters:
            return []
        names = [base.__name__ for base in self._cls.__mro__]
        return [
            entry
            for entry in WORDS
            if (not entry.classes or any(name in entry.classes for name in names))
            and entry.arguments.keys() <= self._parameters.keys()
        ]

    def _read_misspelt(self, foreign: dict[str, Any], entries: Sequence[Word]) -> list[str]:
        """Corrects misspelt names of arguments.

        Args:
            foreign: Name -> value of the arguments that the class does not have. A misspelt
                argument of another package gets its right name in here. One of the class itself
                moves to the rewritten call, and an unknown one is dropped.
            entries: The rows of `WORDS` for this class.

        Returns:
            The names that resemble no known argument.
        """
        known_words = dict.fromkeys(word for entry in entries for word in entry.conditions)
        unknown = []
        for name in [name for name in foreign if name not in known_words]:
            candidates = [*self._parameters, *known_words]
            match = next(iter(difflib.get_close_matches(name, candidates, 1, _LIKENESS)), None)
            if match in foreign or match is None:
                unknown.append(name)
                self._foreign.append(_Foreign(name, "", has_place=False))
                del foreign[name]
                continue
            value = foreign.pop(name)
            self._foreign.append(_Foreign(name, f"{_MEANT} {match}?"))
            if match in self._parameters:
                self._put(match, value, replaces=False)
            else:
                foreign[match] = value
        return unknown

    def _rewrite(self, foreign: dict[str, Any], entries: Sequence[Word]):
        """Replaces arguments of other packages, by the first row of `WORDS` that fits them.

        Args:
            foreign: Name -> value of these arguments. Those with a row are removed.
            entries: The rows of `WORDS` for this class.
        """
        labelled = {word.label: word for word in self._foreign}
        for entry in entries:
            words = [word for word in entry.conditions if word in foreign]
            if not words or not self._holds(entry, foreign):
                continue
            values = {word: foreign.pop(word) for word in words}
            is_same = _is_one_of(values[words[0]], entry.same)
            has_place = is_same or entry.becomes is not None
            self._foreign += [
                _Foreign(word, entry.packages, has_place)
                for word in words
                if f"{_MEANT} {word}?" not in labelled
            ]
            if is_same:
                continue
            if entry.note:
                self._notes[entry.note] = None
            defaults = {name: p.default for name, p in self._parameters.items()}
            named = {**defaults, **self._given, **self.new, **values}
            for name, tree in entry.arguments.items():
                used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
                replaces = name in used or name in entry.conditions
                self._put(name, self._value(tree, named), replaces)

    def _holds(self, entry: Word, foreign: Mapping[str, Any]) -> bool:
        """Returns whether the call has all arguments of a row, with the values that these require.

        An argument of the class that the call does not pass counts as None.
        """
        for word, required in entry.conditions.items():
            if word in self._parameters:
                value = {**self._given, **self.new}.get(word)
            elif word in foreign:
                value = foreign[word]
            else:
                return False
            if required is not ... and not _is_one_of(value, (required,)):
                return False
        return True

    def _put(self, name: str, value: Any, replaces: bool):
        """Sets an argument of the rewritten call.

        Args:
            name: The argument.
            value: Its value. If the call has the argument, two dicts or lists are merged. Of any
                other two values the call's stays, and a note says that there are two.
            replaces: Whether the value replaces the call's in any case.
        """
        before = {**self._given, **self.new}.get(name)
        if before is None or replaces:
            self.new[name] = value
        elif isinstance(before, Mapping) and isinstance(value, Mapping):
            self.new[name] = {**before, **{key: value[key] for key in value if key not in before}}
        elif type(before) is list and type(value) is list:
            present = [shown(item) for item in before]
            self.new[name] = [*before, *(item for item in value if shown(item) not in present)]
        elif shown(before) != shown(value):
            self._notes[f"That gives {name} twice: keep the one that you mean."] = None

    def _value(self, tree: ast.expr, named: Mapping[str, Any]) -> Any:
        """Returns the value of an expression of a row of `WORDS`.

        Args:
            tree: The expression, as a syntax tree.
            named: Name -> value of what the expression may refer to. What is computed from `Code`
                is `Code`, too.
        """

        def value_of(tree):
            return self._value(tree, named)

        match tree:
            case ast.Constant(value):
                return value
            case ast.UnaryOp(ast.USub(), ast.Constant(float(value))):
                return -value
            case ast.Name("keras"):
                return Code(self._keras or frontends.of(self._cls).host.__name__)
            case ast.Name(name):
                return named[name]
            case ast.List(items):
                return [value for item in items for value in self._items(item, named)]
            case ast.Tuple(items):
                return tuple(map(value_of, items))
            case ast.Dict(keys, values):
                return dict(zip(map(value_of, keys), map(value_of, values), strict=True))
            case ast.Subscript(whole, ast.Constant(int(position))):
                values = value_of(whole)
                if type(values) is Code:
                    return _composed("{}[{}]", values, position)
                is_long_enough = type(values) in (list, tuple) and len(values) > position
                return values[position] if is_long_enough else Code(_HIDDEN)
            case ast.BinOp(left, ast.Div(), right):
                above, below = value_of(left), value_of(right)
                are_numbers = all(
                    type(value) in (int, float) and shown(value) != _HIDDEN
                    for value in (above, below)
                )
                if Code in (type(above), type(below)):
                    return _composed("{} / {}", above, below)
                return float(f"{above / below:.7g}") if are_numbers and below else Code(_HIDDEN)
            case ast.Call(function, items):
                name = ast.unparse(function).replace("keras", value_of(ast.Name("keras")), 1)
                return Code(f"{name}({', '.join(shown(value_of(item)) for item in items)})")
        raise NotImplementedError(ast.unparse(tree))

    def _items(self, tree: ast.expr, named: Mapping[str, Any]) -> list[Any]:
        """Returns the items that an expression in a list stands for: several if it has a star."""
        if not isinstance(tree, ast.Starred):
            return [self._value(tree, named)]
        value = self._value(tree.value, named)
        if value is None:
            return []
        if type(value) is Code:
            return [_composed("*({} or [])", value)]  # `*None` would fail when the user's code runs
        return list(value) if type(value) in (list, tuple) else [value]

    def _rewritten(self) -> str:
        """Returns what to write instead: the whole call, or arguments alone for a subclass."""
        if not self._is_whole:
            new = [f"{name}={shown(value)}" for name, value in self.new.items()]
            return f"write {_listed(new)}" if new else "leave it out"
        values = {**self._given, **self.new}
        parts = [shown(values[name]) for name in self._positional]
        parts += [
            f"{name}={shown(values[name])}"
            for name in self._parameters
            if name in values and name not in self._positional
        ]
        return f"write {self._cls.__name__}({', '.join(parts)})"


def _composed(form: str, *values: Any) -> Code:
    """Returns the code of an expression, or `...` if the code of a value in it is not shown.

    Args:
        form: The expression, with `{}` for each value.
        *values: The values.
    """
    texts = [shown(value) for value in values]
    if _HIDDEN in texts:
        return Code(_HIDDEN)
    return Code(form.format(*(t if re.fullmatch(r"[\w.]+", t) else f"({t})" for t in texts)))


def _begins_with_parameters(args: Sequence[Any], foreign: Mapping[str, Any]) -> bool:
    """Returns whether the first positional argument is a model's parameters, as in torch."""
    if not args:
        return False
    is_number = isinstance(args[0], numbers.Real)
    return type(args[0]) in (list, tuple) or isinstance(args[0], Iterator) or (
        "lr" in foreign and not is_number
    )  # fmt: skip


def _is_one_of(value: Any, values: Sequence[Any]) -> bool:
    """Returns whether a value equals one of some plain values; False if it is not plain itself.

    None, bools, numbers, strings, and lists of these are plain. True does not equal 1.
    """
    if type(value) in (list, tuple):
        return shown(tuple(value)) in map(shown, values)
    is_plain = value is None or type(value) in (bool, int, float, str)
    return is_plain and any(
        value == candidate and (type(value) is bool) == (type(candidate) is bool)
        for candidate in values
    )


def _listed(texts) -> str:
    """Joins texts by commas, and the last by "and"."""
    *leading, last = texts
    return f"{', '.join(leading)} and {last}" if leading else last
