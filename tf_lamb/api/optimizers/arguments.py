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
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from tf_lamb.api import frontends
from tf_lamb.api.optimizers.words import (
    DEFAULT_DECAYS,
    HABITS,
    QUALIFIERS,
    SCALES_OF_NS_STEPS,
    WORDS,
    Habit,
    Word,
)
from tf_lamb.core import checks, rules
from tf_lamb.core.messages import join_words

Constructor = TypeVar("Constructor", bound=Callable[..., None])

_MAX_CHARACTERS = 180  # a value whose code is longer is shown as `...`
_MAX_DEPTH = 3  # lists and dicts that are nested deeper are shown as `...`
_HIDDEN = "..."
_DID_YOU_MEAN = "did you mean"  # begins the label of a misspelt argument
_WRITE = "write "  # begins what the error says to write
_LEAVE_OUT = "leave it out"
_SCHEDULE_IS_RATE = "The schedule is passed as the rate itself, in place of a number."
_USUAL_DEFAULT_RATE = 0.001  # the default learning rate in TensorFlow Addons, torch, timm and Keras


def answer_unknown_arguments(constructor: Constructor) -> Constructor:
    """Wraps a constructor, so that its error for an unknown argument shows the corrected call.

    The signature stays the same. If a subclass has its own constructor, the user's call is not
    known here. The error then shows only the arguments to replace.
    """
    parameters = dict([*inspect.signature(constructor).parameters.items()][1:])

    @functools.wraps(constructor)
    def __init__(self, *args: Any, **arguments: Any) -> None:
        if any(name not in parameters for name in arguments):
            cls = type(self)
            call = _Call(cls, parameters, args, arguments, cls.__init__ is __init__)
            raise TypeError(call.error_message())
        constructor(self, *args, **arguments)

    return __init__  # type: ignore[return-value]


class Code(str):
    """Holds the code of an argument whose value is not known, such as "config.betas"."""


class Translation(NamedTuple):
    """Holds what replaces the arguments of another package.

    Attributes:
        arguments: Name -> value, as code, of the arguments of this package to pass. "..." stands
            for a value that `short_code` does not show.
        notes: Sentences about what this package computes differently, or cannot do.
        unsupported: The names of the arguments that are unknown, or that nothing here replaces.
    """

    arguments: dict[str, str]
    notes: str
    unsupported: tuple[str, ...]


def translate(cls: type, arguments: Mapping[str, Any], keras: str | None = None) -> Translation:
    """Finds what replaces arguments that a class of optimizers does not have.

    Args:
        cls: The class, or its framework-independent base class in `tf_lamb.api`.
        arguments: Name -> value of arguments of other packages and of this one. A value may be
            `Code`.
        keras: The name of Keras to use in the returned code, such as "tf.keras". Defaults to None:
            "keras" or "tf_keras", whichever the class is for.

    Returns:
        The arguments to write instead, and notes on them.
    """
    call = _Call(cls, inspect.signature(cls).parameters, (), arguments, True, keras)
    replacements = {name: short_code(value) for name, value in call.replacements.items()}
    return Translation(replacements, call.notes_text(), call.unsupported())


def refusal(cls: type, arguments: Mapping[str, Any]) -> str:
    """Returns the error that the arguments found by `translate` would raise; "" if none.

    Args:
        cls: The class, or its framework-independent base class in `tf_lamb.api`.
        arguments: Name -> value, as for `translate`.
    """
    return _Call(cls, inspect.signature(cls).parameters, (), arguments, True).refusal()


def short_code(value: Any, depth: int = 0) -> str:
    """Returns a value as short Python code; `...` if it is long, or not of a plain type.

    Plain types are None, bool, number (also of NumPy), string, list, tuple, dict and `Code`. No
    method of an object of any other type is called.

    Args:
        value: The value of an argument.
        depth: How many lists, tuples and dicts the value is in. Defaults to 0.
    """
    text = _HIDDEN
    if type(value) is Code or value is None or type(value) is bool:
        return str(value)
    if type(value) is str:
        text = repr(value) if len(value) < _MAX_CHARACTERS else _HIDDEN
    elif type(value) in (int, float) or type(value).__module__ == "numpy":
        text = _number(value)
    elif type(value) in (list, tuple, dict) and depth < _MAX_DEPTH and len(value) < _MAX_CHARACTERS:
        parts = [short_code(item, depth + 1) for item in value]
        if type(value) is dict:
            parts = [
                f"{key}: {short_code(item, depth + 1)}"
                for key, item in zip(parts, value.values(), strict=True)
            ]
            text = f"{{{', '.join(parts)}}}"
        elif type(value) is list:
            text = f"[{', '.join(parts)}]"
        else:
            text = f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    return text if len(text) <= _MAX_CHARACTERS else _HIDDEN


def _number(value: Any) -> str:
    """Returns a number as Python code; `...` for an array, or for an integer of over 15 digits.

    A number of NumPy gets seven digits, as many as float32 holds.
    """
    if type(value) is int:
        return str(value) if abs(value) < 1e15 else _HIDDEN
    if not isinstance(value, numbers.Real):  # an array
        return _HIDDEN
    number = float(value)
    text = repr(number) if type(value) is float else f"{number:.7g}"
    return text if math.isfinite(number) else f"float({text!r})"


class _ForeignArgument(NamedTuple):
    """Holds an argument of the user's call that the class does not have.

    Attributes:
        name: The name in the user's call.
        label: The packages that have the argument, "did you mean ...?" if it is misspelt, or "" if
            it is unknown.
        is_supported: Whether the class can do what the argument asks for. Defaults to True.
        optimizer: The name of the optimizer that can do it, if the class cannot. Defaults to "".
    """

    name: str
    label: str
    is_supported: bool = True
    optimizer: str = ""


class _Call:
    """Holds a call of a constructor with arguments that it does not have, and rewrites the call.

    Attributes:
        replacements: Name -> value of the class's own arguments that the call should have instead.
    """

    def __init__(
        self, cls: type, parameters: Mapping[str, inspect.Parameter], args: Sequence[Any],
        arguments: Mapping[str, Any], is_whole: bool, keras: str | None = None,
    ):  # fmt: skip
        """Finds the arguments that the call should have; `error_message` shows them.

        Args:
            cls: The class that is called.
            parameters: Name -> parameter of its constructor.
            args: The values that were passed by position.
            arguments: The values that were passed by name.
            is_whole: Whether the user wrote this call. If the constructor of a subclass made it,
                the error shows only the arguments to replace.
            keras: As for `translate`. Defaults to None.
        """
        self._cls, self._parameters, self._is_whole = cls, parameters, is_whole
        self._keras = keras
        self._foreign: list[_ForeignArgument] = []
        self._notes: dict[str, None] = {}  # the keys are the notes: an ordered set
        # Those of the notes that say why an argument cannot be had -> the optimizer that has it.
        self._reasons: dict[str, str] = {}
        # Word of another package -> the misspelt name by which the user passed it.
        self._typed: dict[str, str] = {}
        foreign = {name: value for name, value in arguments.items() if name not in parameters}
        if "learning_rate" in parameters and _begins_with_parameters(args, foreign):
            # The first argument of torch's optimizers is the list of the model's parameters.
            (foreign["params"], *args) = args
        self._positional = [*parameters][: len(args)]
        self._user_arguments = dict(zip(self._positional, args, strict=False))
        self._user_arguments |= {name: arguments[name] for name in parameters if name in arguments}
        self.replacements: dict[str, Any] = {}
        rows = self._rows_for_class()
        self._unknown = self._read_misspelt(foreign, rows)
        self._used_rows: list[Word] = []
        self._needs_rate = False  # whether a schedule here begins at the default rate
        self._rewrite(foreign, rows)
        self._add_habits()
        # Arguments that are left have a row in `WORDS`, but only for other values, as for
        # classic_momentum="no".
        left = [self._typed.get(name, name) for name in foreign]
        self._unknown += left
        self._foreign += [_ForeignArgument(name, "", is_supported=False) for name in left]
        order = list(arguments)
        self._foreign.sort(key=lambda word: order.index(word.name) if word.name in order else -1)

    def error_message(self) -> str:
        """Returns the message of the error, with the call that the user should write instead."""
        plural = "s" if len(self._foreign) > 1 else ""
        names = [f"{word.name!r}{word.label and f' ({word.label})'}" for word in self._foreign]
        head = f"{self._cls.__name__} has no argument{plural} {join_words(names)}"
        accepted = ", ".join(self._parameters)
        if len(self._unknown) == len(self._foreign):
            return f"{head}: it takes {accepted}."
        taken = f"It takes {accepted}." if self._unknown else ""
        optimizer, lost_sentence = self._other_optimizer()
        dropped = [
            word.name
            for word in self._foreign
            if not word.is_supported and not (optimizer and word.optimizer)
        ]
        reasons = [note for note, other in self._reasons.items() if not (optimizer and other)]
        if self._unknown:
            verb = "are" if len(self._unknown) > 1 else "is"
            reasons.append(f"{join_words(map(repr, self._unknown))} {verb} unknown.")
        notes = [note for note in self._notes if note not in reasons]
        defaults = [self._rate_sentence(), self._decay_sentence()]
        notes += filter(None, [self._scale_sentence(), *defaults])
        after_call = " ".join(filter(None, [lost_sentence, *notes, taken]))
        call = self._rewritten_call(optimizer or self._cls.__name__)
        if refusal := self.refusal():
            # A call that fails must not be recommended.
            call = call.removeprefix(_WRITE) + " is refused, too" if call != _LEAVE_OUT else call
            end = "" if refusal.endswith((".", "?")) else "."
            call = f"{call[0].upper()}{call[1:]}: {refusal}{end}"
            return " ".join(filter(None, [f"{head}.", *reasons, call, after_call]))
        if not dropped:
            return f"{head}: {call}. {after_call}".rstrip()
        # What is left out is named before the call, as many read no further than the call.
        without = join_words(map(repr, dropped))
        if len(dropped) == len(self._foreign):
            without = "them" if plural else "it"
        call = f"Without {without}, {call}" if call != _LEAVE_OUT else call.capitalize()
        return " ".join(filter(None, [f"{head}.", *reasons, f"{call}.", after_call]))

    def _other_optimizer(self) -> tuple[str, str]:
        """Finds the optimizer of this package that can do what the called class cannot.

        Returns:
            The name of the optimizer, "" if there is none or if the user did not write the call,
            and a sentence on the arguments of the call that this optimizer does not have. These are
            removed from the call.
        """
        names = [word.optimizer for word in self._foreign if word.optimizer]
        if not names or not self._is_whole:
            return "", ""
        lost = []
        for name in [name for name in self._parameters if name in _lacking(self._cls, names[0])]:
            values = {**self._user_arguments, **self.replacements}
            if name in values and values[name] is not self._parameters[name].default:
                lost.append(name)
            self._user_arguments.pop(name, None)
            self.replacements.pop(name, None)
        return names[0], f"{names[0]} has no {join_words(lost, 'or')}." if lost else ""

    def refusal(self) -> str:
        """Returns the error that the rewritten call would raise; "" if it would raise none.

        Values that the error does not show are not checked, as no method of them may be called.
        """
        if not (settings_of := getattr(self._cls, "_settings_of", None)):
            return ""
        values = {name: parameter.default for name, parameter in self._parameters.items()}
        for name, value in {**self._user_arguments, **self.replacements}.items():
            if not _has_code(value) and _HIDDEN not in short_code(value):
                values[name] = value
        if any(value is inspect.Parameter.empty for value in values.values()):
            return ""
        rate = values.pop("learning_rate")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the call itself will warn, when it is made
            try:
                if not callable(rate):
                    checks.number("learning_rate", rate)
                settings_of(values)
            except (TypeError, ValueError) as error:
                return str(error)
        return ""

    def notes_text(self) -> str:
        """Returns what this package computes differently or cannot do, as sentences in a string."""
        return " ".join(self._notes)

    def _rate_sentence(self) -> str:
        """Returns a sentence on the default learning rate, or "" where none is needed.

        It is needed if the call has arguments of another package and passes no rate, and the
        default here is not 0.001, which is the default of most other packages.
        """
        rate = self._parameters.get("learning_rate")
        if rate is None or rate.default in (rate.empty, _USUAL_DEFAULT_RATE) or not self._is_whole:
            return ""
        has_foreign_words = any(
            word.label and _DID_YOU_MEAN not in word.label for word in self._foreign
        )
        has_rate = "learning_rate" in {**self._user_arguments, **self.replacements}
        if not has_foreign_words or (has_rate and not self._needs_rate):
            return ""
        return (
            f"Without learning_rate it begins at {rate.default} here: pass the rate that you had."
        )

    def _decay_sentence(self) -> str:
        """Returns a sentence on the default decay of another package, or "" where none is needed.

        It is needed if the call passes no decay, and has an argument by which it is known to be for
        a package with a default that is not 0.
        """
        if not self._is_whole or "weight_decay" in {**self._user_arguments, **self.replacements}:
            return ""
        names = [base.__name__ for base in self._cls.__mro__ if base.__name__ in DEFAULT_DECAYS]
        decays = DEFAULT_DECAYS[names[0]] if names else {}
        sources = [row.packages for row in self._used_rows if row.packages in decays]
        if not sources or not all(decays[source] for source in sources):
            return ""
        packages = sources[0].split(", ")
        verb = "decay" if len(packages) > 1 else "decays"
        return (
            f"{join_words(packages)} {verb} by {decays[sources[0]]} where no decay is passed: add "
            f"weight_decay={decays[sources[0]]} to keep it."
        )

    def _scale_sentence(self) -> str:
        """Returns a sentence on the scales of Muon's steps if only `ns_steps` tells of a source."""
        form = {**self._user_arguments, **self.replacements}.get("form")
        is_shared = any("ns_steps" in row.conditions for row in self._used_rows) and not any(
            row.packages in DEFAULT_DECAYS["Muon"] for row in self._used_rows
        )
        has_scale = type(form) is dict and "update_scale" in form
        return SCALES_OF_NS_STEPS if is_shared and not has_scale else ""

    def unsupported(self) -> tuple[str, ...]:
        """Returns the names of those passed arguments that this package cannot replace."""
        return tuple(word.name for word in self._foreign if not word.is_supported)

    def _rows_for_class(self) -> list[Word]:
        """Returns the rows of the table `WORDS` that apply to the called class.

        Each row maps arguments of another package to arguments of this package.
        """
        if "learning_rate" not in self._parameters:
            return []
        names = [base.__name__ for base in self._cls.__mro__]
        return [
            row
            for row in WORDS
            if (not row.classes or any(name in row.classes for name in names))
            and row.replacing_arguments.keys() <= self._parameters.keys()
        ]

    def _read_misspelt(self, foreign: dict[str, Any], rows: Sequence[Word]) -> list[str]:
        """Corrects misspelt names of arguments.

        Args:
            foreign: Name -> value of the arguments that the class does not have. It is changed in
                place: a misspelt argument of another package gets its right name, a misspelt
                argument of the class moves to `replacements`, and an unknown one is removed.
            rows: The rows of `WORDS` for this class.

        Returns:
            The names that resemble no known argument.
        """
        known_words = dict.fromkeys(word for row in rows for word in row.conditions)
        unknown = []
        for name in [name for name in foreign if name not in known_words]:
            if others := _optimizers_with(name) if rows else []:
                del foreign[name]
                self._foreign.append(_ForeignArgument(name, "", is_supported=False))
                reason = f"{join_words(others)} {'has' if len(others) == 1 else 'have'} {name}."
                self._notes[reason], self._reasons[reason] = None, ""
                continue
            match = _nearest_name(name, [*self._parameters, *known_words])
            if match in foreign or match in self._typed or match is None:
                unknown.append(name)
                self._foreign.append(_ForeignArgument(name, "", is_supported=False))
                del foreign[name]
                continue
            value = foreign.pop(name)
            if match in self._parameters:
                self._foreign.append(_ForeignArgument(name, f"{_DID_YOU_MEAN} {match}?"))
                self._set_argument(match, value, replaces=False)
            else:
                foreign[match] = value
                self._typed[match] = name
        return unknown

    def _rewrite(self, foreign: dict[str, Any], rows: Sequence[Word]):
        """Replaces arguments of other packages, by the first row of `WORDS` that fits them.

        Args:
            foreign: Name -> value of these arguments. Those with a row are removed.
            rows: The rows of `WORDS` for this class.
        """
        for row in rows:
            words = [word for word in row.conditions if word in foreign]
            if not words or not self._matches_call(row, foreign):
                continue
            self._used_rows.append(row)
            values = {word: foreign.pop(word) for word in words}
            is_same = _is_one_of(values[words[0]], row.noop)
            is_supported = is_same or row.replacement is not None
            self._foreign += [
                _ForeignArgument(
                    self._typed.get(word, word),
                    self._label(word, row, values[word], is_same),
                    is_supported,
                    "" if is_supported else row.optimizer,
                )
                for word in words
            ]
            if is_same:
                continue
            if row.note:
                self._notes[row.note] = None
            if not is_supported:
                self._reasons[row.note] = row.optimizer
            defaults = {name: p.default for name, p in self._parameters.items()}
            values_by_name = {**defaults, **self._user_arguments, **self.replacements, **values}
            for name, tree in row.replacing_arguments.items():
                used_names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
                self._needs_rate |= "learning_rate" in used_names and "learning_rate" not in {
                    **self._user_arguments,
                    **self.replacements,
                }
                replaces = name in used_names or name in row.conditions
                self._set_argument(name, self._evaluate(tree, values_by_name), replaces)

    def _add_habits(self):
        """Adds what the optimizers of other packages compute otherwise, whatever is passed."""
        for habit in HABITS:
            if not self._has_habit(habit):
                continue
            values = {**self._user_arguments, **self.replacements}
            for name, value in habit.arguments.items():
                present = values.get(name)
                if present is None:
                    new = value
                elif type(present) is dict and type(value) is dict:
                    new = {**present, **{key: value[key] for key in value if key not in present}}
                else:
                    new = present
                if new is not present and new != present:
                    self.replacements[name] = new
                    self._notes[habit.note] = None

    def _has_habit(self, habit: Habit) -> bool:
        """Returns whether the user's call, by its arguments, is one of the habit's packages."""
        packages = {row.packages for row in self._used_rows}
        words = {word for row in self._used_rows for word in row.conditions}
        return (
            any(base.__name__ in habit.classes for base in self._cls.__mro__)
            and not packages.isdisjoint(habit.packages)
            and packages.isdisjoint(habit.unless_packages)
            and words.isdisjoint(habit.unless)
        )

    def _label(self, word: str, row: Word, value: Any, is_same: bool) -> str:
        """Returns what the error says in brackets of an argument of another package.

        Args:
            word: The argument, rightly spelt.
            row: The row of `WORDS` for it.
            value: The value that the user passed.
            is_same: Whether the value asks for what the class does anyway.
        """
        own = join_words(row.replacing_arguments) if row.replacement else ""
        name = self._cls.__name__
        # A name that only some classes replace by another one is that of an argument elsewhere.
        is_renamed = row.is_renaming and ast.unparse(row.replacing_arguments[own]) == word
        calls_it = f"{name} calls it {own}" if row.classes and is_renamed else ""
        if is_same:
            calls_it = f"{short_code(value)} is what {name} does without it"
        if not row.packages:
            entry = "an entry of " if own in ("form", "bounds") else ""
            label = f"{_DID_YOU_MEAN} {entry}{own}?" if own else ""
            calls_it = calls_it if is_same else ""
        elif word in self._typed:
            label = f"{_DID_YOU_MEAN} {word}?"
        else:
            label = row.packages
        separator = " " if label.endswith("?") else "; "
        return separator.join(filter(None, [label, calls_it]))

    def _matches_call(self, row: Word, foreign: Mapping[str, Any]) -> bool:
        """Returns whether the call has all arguments of a row, with the values in the row.

        If the row also names an argument of this package, one that is not passed counts as None.
        A call that earlier rows are for has none of the row's `unless_packages`.
        """
        if any(used.packages in row.unless_packages for used in self._used_rows):
            return False
        for word, required_value in row.conditions.items():
            if word in self._parameters:
                value = {**self._user_arguments, **self.replacements}.get(word)
            elif word in foreign:
                value = foreign[word]
            else:
                return False
            if required_value is not ... and not _is_one_of(value, (required_value,)):
                return False
        return True

    def _set_argument(self, name: str, value: Any, replaces: bool):
        """Sets an argument of the rewritten call.

        Args:
            name: The argument.
            value: The new value. If the call already has another one, two dicts or two lists are
                merged, and a schedule replaces a number; otherwise the call's value stays, and a
                note says that there are two.
            replaces: Whether the new value always overrides the call's, without a merge or a note.
        """
        present_value = {**self._user_arguments, **self.replacements}.get(name)
        if present_value is None or replaces:
            self.replacements[name] = value
        elif isinstance(present_value, Mapping) and isinstance(value, Mapping):
            self.replacements[name] = {
                **present_value,
                **{key: value[key] for key in value if key not in present_value},
            }
        elif type(present_value) is list and type(value) is list:
            present_items = [short_code(item) for item in present_value]
            self.replacements[name] = [
                *present_value,
                *(item for item in value if short_code(item) not in present_items),
            ]
        elif name == "learning_rate" and callable(value) and not callable(present_value):
            self.replacements[name] = value
            self._notes[_SCHEDULE_IS_RATE] = None
        elif short_code(present_value) != short_code(value):
            self._notes[f"That gives {name} twice: keep the one that you mean."] = None

    def _evaluate(self, tree: ast.expr, values_by_name: Mapping[str, Any]) -> Any:
        """Returns the value of an expression in the `replacement` of a row of `WORDS`.

        If it depends on a value that is only known as `Code`, the result is `Code`, too.

        Args:
            tree: The expression, as a syntax tree.
            values_by_name: Name -> value, for the names in the expression.

        Raises:
            NotImplementedError: for an expression of another form than those in `WORDS`.
        """

        def value_of(tree):
            return self._evaluate(tree, values_by_name)

        match tree:
            case ast.Constant(value):
                return value
            case ast.UnaryOp(ast.USub(), ast.Constant(float(value))):
                return -value
            case ast.Name("keras"):
                return Code(self._keras or frontends.of(self._cls).host.__name__)
            case ast.Name(name):
                return values_by_name[name]
            case ast.List(items):
                values = [
                    value for item in items for value in self._evaluate_items(item, values_by_name)
                ]
                # What the row adds to the user's list may be in it. Two numbers may be equal.
                return [
                    value
                    for i, value in enumerate(values)
                    if type(value) is not str or value not in _texts(values[:i])
                ]
            case ast.Tuple(items):
                return tuple(map(value_of, items))
            case ast.Dict(keys, values):
                return dict(zip(map(value_of, keys), map(value_of, values), strict=True))
            case ast.Subscript(whole, ast.Constant(int(position))):
                values = value_of(whole)
                if type(values) is Code:
                    return _compose_code("{}[{}]", values, position)
                is_long_enough = type(values) in (list, tuple) and len(values) > position
                return values[position] if is_long_enough else Code(_HIDDEN)
            case ast.BinOp(left, ast.Div(), right):
                numerator, denominator = value_of(left), value_of(right)
                are_numbers = all(
                    type(value) in (int, float) and short_code(value) != _HIDDEN
                    for value in (numerator, denominator)
                )
                if Code in (type(numerator), type(denominator)):
                    return _compose_code("{} / {}", numerator, denominator)
                return (
                    float(f"{numerator / denominator:.7g}")
                    if are_numbers and denominator
                    else Code(_HIDDEN)
                )
            case ast.BinOp(left, ast.Sub(), right):
                minuend, subtrahend = value_of(left), value_of(right)
                if Code in (type(minuend), type(subtrahend)):
                    return _compose_code("{} - {}", minuend, subtrahend)
                are_steps = type(minuend) is type(subtrahend) is int
                return minuend - subtrahend if are_steps else Code(_HIDDEN)
            case ast.Call(function, items):
                name = ast.unparse(function)
                if name.startswith("tf_lamb.keras."):
                    host = frontends.of(self._cls).host.__name__
                    name = name.replace("keras", host, 1)
                else:
                    name = name.replace("keras", value_of(ast.Name("keras")), 1)
                return Code(f"{name}({', '.join(short_code(value_of(item)) for item in items)})")
        raise NotImplementedError(ast.unparse(tree))

    def _evaluate_items(self, tree: ast.expr, values_by_name: Mapping[str, Any]) -> list[Any]:
        """Returns the items that an element of a list expression stands for.

        An element such as `*names` stands for all items of `names`, any other one for its value.
        """
        if not isinstance(tree, ast.Starred):
            return [self._evaluate(tree, values_by_name)]
        value = self._evaluate(tree.value, values_by_name)
        if value is None:
            return []
        if type(value) is Code:
            # `*None` would fail when the user's code runs.
            return [_compose_code("*({} or [])", value)]
        return list(value) if type(value) in (list, tuple) else [value]

    def _rewritten_call(self, class_name: str) -> str:
        """Returns the part of the error that says what to write instead.

        It shows the whole call if the user wrote the call, and otherwise only the arguments.

        Args:
            class_name: The name of the class to call.
        """
        if not self._is_whole:
            replacements = [
                f"{name}={short_code(value)}" for name, value in self.replacements.items()
            ]
            return f"{_WRITE}{join_words(replacements)}" if replacements else _LEAVE_OUT
        values = {**self._user_arguments, **self.replacements}
        parts = [short_code(values[name]) for name in self._positional]
        parts += [
            f"{name}={short_code(values[name])}"
            for name in self._parameters
            if name in values and name not in self._positional
        ]
        return f"{_WRITE}{class_name}({', '.join(parts)})"


def _texts(values: Sequence[Any]) -> list[str]:
    """Returns those of some values that are strings."""
    return [value for value in values if type(value) is str]


def _has_code(value: Any) -> bool:
    """Returns whether a value is `Code`, or a list, a tuple or a dict that holds some."""
    items = value.values() if type(value) is dict else value
    is_nested = type(value) in (list, tuple, dict)
    return type(value) is Code or (is_nested and any(map(_has_code, items)))


def _spelling(name: str) -> str:
    """Returns the letters and digits of a name, by which "Beta1" and "beta_1" are the same."""
    return name.lower().replace("_", "")


def _nearest_name(name: str, candidates: Sequence[str]) -> str | None:
    """Returns the name that a misspelt one probably stands for; None if it resembles none.

    Args:
        name: The misspelt name.
        candidates: The right names. Of two that are equally near the first is returned.
    """
    bare = "_".join(part for part in name.lower().split("_") if part not in QUALIFIERS)
    for spelling in filter(None, (_spelling(name), _spelling(bare))):
        for candidate in candidates:
            if spelling == _spelling(candidate):
                return candidate
    if close := difflib.get_close_matches(name, candidates, 1, checks.MIN_SIMILARITY):
        return close[0]
    # Letters in another order, such as "eplison", count little for difflib.
    letters = sorted(_spelling(name))
    swapped = [word for word in candidates if sorted(_spelling(word)) == letters and len(word) > 3]
    return swapped[0] if swapped else None


def _optimizers_with(name: str) -> list[str]:
    """Returns the names of this package's optimizers whose rules have a hyper-parameter."""
    return [optimizer for optimizer, rule in rules.OURS.items() if name in rule.hyper]


def _lacking(cls: type, optimizer: str) -> set[str]:
    """Returns the hyper-parameters of a class that another optimizer of this package lacks."""
    names = [base.__name__ for base in cls.__mro__ if base.__name__ in rules.OURS]
    hyper = {word for name in names for word in rules.OURS[name].hyper}
    return hyper - rules.OURS[optimizer].hyper.keys()


def _compose_code(form: str, *values: Any) -> Code:
    """Returns the code of an expression; `...` if it has a value that `short_code` does not show.

    Args:
        form: The expression, with `{}` for each value.
        *values: The values.
    """
    texts = [short_code(value) for value in values]
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
        return short_code(tuple(value)) in map(short_code, values)
    is_plain = value is None or type(value) in (bool, int, float, str)
    return is_plain and any(
        value == candidate and (type(value) is bool) == (type(candidate) is bool)
        for candidate in values
    )
