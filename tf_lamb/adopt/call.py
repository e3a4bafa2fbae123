"""Translates the arguments of a call of another package's optimizer to those of `tf_lamb`'s.

Also collects notes on what the optimizer of `tf_lamb` computes differently. In notes, "here" is
`tf_lamb`.
"""

import ast
import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from tf_lamb.adopt.sources import Source
from tf_lamb.api.migration.changes import argument_changes
from tf_lamb.api.optimizers.arguments import Code, short_code, translate
from tf_lamb.core import rules

_LEGACY_ARGUMENTS = ("lr", "decay", "weight_decay_rate", "clipnorm", "clipvalue", "global_clipnorm")
_EXCLUSION_LISTS = ("exclude_from_weight_decay", "exclude_from_layer_adaptation")
_CLIPPINGS = ("clipnorm", "global_clipnorm", "clipvalue")
# Argument of this package's class -> how the updates differ if its value is not the same as in the
# other package.
_DIFFERENCE_TEXTS = {
    "weight_decay_mode": "Weight decay was outside of the trust ratio, and is inside here.",
    "exclude_from_layer_adaptation": (
        "Variables excluded from decay also lose their trust ratio here."
    ),
    "form": "The trust ratio divides by another norm here, or momentum is applied elsewhere.",
}  # fmt: skip


class Translation(NamedTuple):
    """Holds the arguments of the new call, which makes an optimizer of this package.

    Attributes:
        unchanged: The names of the arguments of the old call that the new call keeps.
        new_arguments: The other arguments of the new call, as name -> Python code of the value.
        notes: Sentences on what changes.
        obstacles: Sentences on why the call cannot be rewritten; empty if it can be.
        added: The names of those of `new_arguments` that are added to keep the steps.
        can_keep_steps: Whether more arguments would keep the steps.
    """

    unchanged: tuple[str, ...]
    new_arguments: Mapping[str, str]
    notes: tuple[str, ...]
    obstacles: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    can_keep_steps: bool = False


def literal_value(code: str) -> Any:
    """Returns the value of a literal such as `0.9`; any other code is returned as a `Code`."""
    try:
        return ast.literal_eval(code)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return Code(code)


def translate_call(
    source: Source,
    code_by_name: Mapping[str, str],
    script_code: str,
    keras_name: str | None,
    same_steps: bool,
    has_all_arguments: bool = True,
) -> Translation:
    """Translates the arguments of a call of another package's optimizer.

    Args:
        source: The optimizer that is called.
        code_by_name: Name of each argument of the call -> the code of its value.
        script_code: The whole script as text, on which some notes depend.
        keras_name: The name that the script uses for Keras, such as "tf.keras"; None if it does not
            import Keras.
        same_steps: Whether to add the arguments with which the optimizer of this package makes the
            same updates as `source`.
        has_all_arguments: Whether `code_by_name` has all arguments. False if the call also passes
            arguments by `**`. Defaults to True.

    Returns:
        The translation. If the call cannot be rewritten, it has `obstacles`.
    """
    values = {name: literal_value(code) for name, code in code_by_name.items()}
    if obstacles := _why_unreadable(source, values, keras_name):
        return Translation((), {}, (), obstacles)
    notes = _remove_without_counterpart(source, values)
    signature = inspect.signature(source.cls).parameters
    replacement = translate(source.cls, values, keras_name)
    unchanged = tuple(
        name for name in values if name in signature and name not in replacement.arguments
    )
    if obstacles := _why_untranslatable(replacement):
        return Translation(unchanged, {}, (), obstacles)
    code_by_value = {short_code(value): code_by_name[name] for name, value in values.items()}
    new_arguments = {
        name: code_by_value.get(text, text) for name, text in replacement.arguments.items()
    }
    renamed_arguments = [name for name in values if name not in signature]
    if renamed_arguments:
        notes.append(_replacement_sentence(renamed_arguments, new_arguments))
    if replacement.notes:
        notes.append(replacement.notes)

    our_arguments = {name: values[name] for name in unchanged} | {
        argument: literal_value(text) for argument, text in new_arguments.items()
    }
    differing_values = _differing_values(source, values, our_arguments, script_code)
    if same_steps and not has_all_arguments:
        notes.append("No arguments are added to keep the steps, because ** may pass them already.")
    added_arguments: dict[str, str] = {}
    if same_steps and has_all_arguments:
        added_arguments = {
            name: short_code(peer_value) for name, (peer_value, _) in differing_values.items()
        }
        new_arguments |= added_arguments
        if added_arguments:
            pairs = " and ".join(f"{name}={text}" for name, text in added_arguments.items())
            notes.append(f"Added to keep each step as before: {pairs}.")
    else:
        notes += [_difference_sentence(name, *pair) for name, pair in differing_values.items()]
    if source.is_keras_own:
        text = f"{script_code} {' '.join(code_by_name)}"
        notes += [
            sentence
            for words, sentence in source.warnings.items()
            if all(word in text for word in words.split())
        ]
    else:
        notes += _legacy_notes(source, values, script_code)
    return Translation(
        unchanged, new_arguments, tuple(notes), added=tuple(added_arguments),
        can_keep_steps=bool(differing_values) and not same_steps and has_all_arguments,
    )  # fmt: skip


def _legacy_notes(source, values, script_code):
    """Returns sentences on what legacy optimizers of Keras, such as Addons' LAMB, do otherwise.

    Args:
        source: The optimizer that was called.
        values: The arguments of the old call, name -> value.
        script_code: The whole script as text.
    """
    notes = []
    searched = "Patterns are searched in dense/bias here, and were searched in dense/bias:0."
    lists = [values[name] for name in _EXCLUSION_LISTS if values.get(name) is not None]
    patterns: list[str] = []
    are_known = True
    for value in lists:
        strings = _strings_of(value, script_code)
        are_known = are_known and strings is not None
        patterns += strings or []
    suffixed = [repr(pattern) for pattern in patterns if "$" in pattern or ":0" in pattern]
    if not are_known:
        notes.append(f"{searched} A pattern with $ or :0 may match different variables here.")
    elif suffixed:
        names = " and ".join(dict.fromkeys(suffixed))
        notes.append(f"{searched} {names} may match different variables here.")
    # Model Garden's LARS refuses the gradients of an embedding that have repeated rows.
    clips = any(values.get(name) is not None for name in _CLIPPINGS)
    if clips and source.peer.family == "LAMB":
        notes.append(
            "The gradients of a row of an embedding that a batch uses more than once are summed "
            f"and then clipped here. {source.peer.title} clips them first."
        )
    return notes


def _strings_of(value, script_code) -> list[str] | None:
    """Returns the strings in a list; None if they are known only when the script runs.

    Args:
        value: The value of an argument: a list, or the `Code` of one.
        script_code: The whole script as text, which may assign the list to a name.
    """
    if type(value) is not Code:
        return list(value)
    try:
        tree = ast.parse(script_code)
    except SyntaxError:  # libcst also reads the syntax of newer Pythons
        return None
    assigned = [
        literal_value(ast.unparse(node.value))
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and value in map(ast.unparse, node.targets)
    ]
    is_changed = any(  # by `+=`, or by a method such as `append`
        (isinstance(node, ast.AugAssign) and ast.unparse(node.target) == value)
        or (isinstance(node, ast.Attribute) and ast.unparse(node.value) == value)
        for node in ast.walk(tree)
    )
    if is_changed or not assigned or not all(isinstance(names, list | tuple) for names in assigned):
        return None
    return [name for names in assigned for name in names if isinstance(name, str)]


def _why_unreadable(source, values, keras_name):
    """Returns sentences on why the arguments of a call cannot be translated; () if they can be.

    A reason is, for example, that the optimizer does not have an argument, or that a value is known
    only when the script runs.

    Args:
        source: The optimizer that is called.
        values: The arguments of the call, name -> value.
        keras_name: The name that the script uses for Keras; None if it does not import Keras.
    """
    sentences = []
    accepted = (*source.defaults, *(() if source.is_keras_own else _LEGACY_ARGUMENTS))
    if unknown := [name for name in values if name not in accepted]:
        sentences.append(f"{source.peer.title} has no {', '.join(unknown)}.")
    for name in (*_EXCLUSION_LISTS, "exclude_layers"):
        value = values.get(name)
        is_list = isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)
        if value is not None and not isinstance(value, Code) and not is_list:
            sentences.append(f"{name} is not a list of strings.")
    if type(values.get("exclude_embeddings")) is Code:
        sentences.append("exclude_embeddings is known only when the script runs.")
    if values.get("decay"):
        if keras_name is None:
            sentences.append(
                "decay becomes a schedule of Keras, but the script does not import Keras."
            )
        if type(values.get("learning_rate", values.get("lr"))) is Code:
            sentences.append(
                "decay becomes a schedule, for which the learning rate has to be in the call as a "
                "number."
            )
    return tuple(sentences)


def _remove_without_counterpart(source, values) -> list[str]:
    """Removes arguments from `values` that have no counterpart in this package's optimizer.

    One is an empty `exclude_from_layer_adaptation`, which the other package treats as None. The
    other is the `adam_weight_decay` of Keras's Muon, for the variables that Muon updates by Adam.

    Returns:
        A list of sentences on what the removal changes.
    """
    notes = []
    adaptation_list = _EXCLUSION_LISTS[1]
    is_empty = values.get(adaptation_list) in ([], (), Code("list()"), Code("tuple()"))
    if adaptation_list in source.defaults and is_empty:
        del values[adaptation_list]
        notes.append(f"{source.peer.title} ignores {adaptation_list}=[], so it is left out.")
    if "adam_weight_decay" in source.defaults:
        config = {**source.defaults, **values}
        values.pop("adam_weight_decay", None)
        if config["adam_weight_decay"] != config["weight_decay"]:
            adam_decay = short_code(config["adam_weight_decay"])
            notes.append(
                f"Keras decays Adam's variables by adam_weight_decay={adam_decay}. Here "
                "weight_decay applies to all variables. Name those without decay in "
                "exclude_from_weight_decay."
            )
        if config["adam_lr_ratio"] != 1:
            notes.append(
                "Keras decays Adam's variables at the full learning rate. Here they decay at their "
                "own rate."
            )
    return notes


def _why_untranslatable(replacement):
    """Returns sentences on why a translation cannot be written into the script; () if it can be.

    `replacement` is the result of `translate`.
    """
    sentences = []
    if replacement.unsupported:
        words_text = ", ".join(replacement.unsupported)
        sentences.append(f"tf_lamb has no counterpart of {words_text}. {replacement.notes}".strip())
    hidden = [name for name, text in replacement.arguments.items() if "..." in text]
    if hidden:
        sentences.append(f"write the value of {', '.join(hidden)} by hand.")
    return tuple(sentences)


def _replacement_sentence(old_names, new_arguments):
    """Returns a sentence on the old arguments, and on the new arguments that replace them.

    Args:
        old_names: The names of the arguments of the old call that are replaced.
        new_arguments: Argument of this package's class -> the code of its value.
    """
    names_text, has_one = " and ".join(old_names), len(old_names) == 1
    if not new_arguments:
        return f"{names_text} {'is' if has_one else 'are'} left out."
    pairs = " ".join(", ".join(f"{name}={text}" for name, text in new_arguments.items()).split())
    return f"{names_text} {'becomes' if has_one else 'become'} {pairs}."


def _differing_values(source, values, our_arguments, script_code):
    """Returns the arguments whose values make the new call compute other updates than the old one.

    Args:
        source: The optimizer that was called.
        values: The arguments of the old call, name -> value.
        our_arguments: The arguments of the new call, name -> value.
        script_code: The whole script as text.

    Returns:
        Argument of this package's class -> (value with which the updates stay the same, value in
        the new call).
    """
    parameters = inspect.signature(source.cls).parameters.values()
    defaults = {parameter.name: parameter.default for parameter in parameters}
    form_class = rules.OURS[source.peer.family].hyper.get("form")
    peer_config = {**source.defaults, **values}
    peer_values, our_values = source.peer.arguments(peer_config), {**defaults, **our_arguments}
    if type(our_values.get("form")) is Code:  # known only when the script runs
        peer_values.pop("form", None)
        our_values.pop("form")
    elif form_class:
        our_values["form"] = {**dataclasses.asdict(form_class()), **(our_values["form"] or {})}
    changed = argument_changes(
        peer_values, our_values, defaults, omitted=_EXCLUSION_LISTS[1:] if form_class else ()
    )
    if not peer_values.get("weight_decay") and not our_values.get("weight_decay"):
        # Without weight decay, `weight_decay_mode` does not change the updates, and in LARS neither
        # does `form` if momentum is "inside".
        changed.pop("weight_decay_mode", None)
        if source.peer.family == "LARS" and peer_values.get("form", {}).get("momentum") == "inside":
            changed.pop("form", None)
    if (
        source.peer.fixed_arguments.get(_EXCLUSION_LISTS[1]) == []
        and ".exclude_from_weight_decay(" in script_code
    ):
        changed[_EXCLUSION_LISTS[1]] = ([], our_values[_EXCLUSION_LISTS[1]])
    if "form" in changed:
        peer_form, our_form = (form or {} for form in changed["form"])
        changed["form"] = (
            _differing_entries(peer_form, our_form),
            _differing_entries(our_form, peer_form),
        )
    if "learning_rate" in our_arguments:
        changed.pop("learning_rate", None)
    return changed


def _differing_entries(form, other_form):
    """Returns the entries of the dict `form` that `other_form` lacks, or has with another value.

    Both are values of the argument `form` of an optimizer.
    """
    return {key: value for key, value in form.items() if other_form.get(key, ...) != value}


def _difference_sentence(name, peer_value, our_value):
    """Returns sentences on an argument whose value differs between the old and the new call.

    They also say which value of the argument keeps the updates as they were.
    """
    meaning = _DIFFERENCE_TEXTS.get(
        name, f"{name} was {short_code(peer_value)}, and is {short_code(our_value)} here."
    )
    return f"{meaning} Pass {name}={short_code(peer_value)} to keep it."
