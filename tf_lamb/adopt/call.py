"""Translates the arguments of one optimizer's call, and notes what ours computes differently.

Messages and comments here call the other package "there", and this package "here".
"""

import ast
import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from tf_lamb.adopt.sources import Source
from tf_lamb.api.migration import peers
from tf_lamb.api.optimizers.arguments import Code, shown, translation
from tf_lamb.core import rules

_LEGACY_ARGUMENTS = ("lr", "decay", "weight_decay_rate", "clipnorm", "clipvalue", "global_clipnorm")
_LISTS = ("exclude_from_weight_decay", "exclude_from_layer_adaptation")
# Argument of our class -> how the updates differ where its value is not that of the other package.
_MEANINGS = {
    "weight_decay_mode": "weight decay is outside of the trust ratio there, and inside here",
    "exclude_from_layer_adaptation": (
        "what has no weight decay keeps its trust ratio there, and has none here"
    ),
    "form": "the ratio divides by another norm, or momentum stands elsewhere",
}  # fmt: skip


class Translated(NamedTuple):
    """Holds the arguments of the rewritten call, which is one of our class.

    Attributes:
        unchanged: The arguments of the old call that stay as they are.
        new: Argument of our class -> its value, as code.
        notes: What changes, a sentence each.
        obstacles: Why the call cannot be rewritten, a sentence each; empty if it can be.
    """

    unchanged: tuple[str, ...]
    new: Mapping[str, str]
    notes: tuple[str, ...]
    obstacles: tuple[str, ...] = ()


def value_of(code: str) -> Any:
    """Returns the value of a literal such as `0.9`; `Code` for any other expression."""
    try:
        return ast.literal_eval(code)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return Code(code)


def translated(
    source: Source,
    code_by_name: Mapping[str, str],
    script: str,
    keras: str | None,
    same_steps: bool,
    is_whole: bool = True,
) -> Translated:
    """Translates the arguments of a call.

    Args:
        source: The optimizer that is called.
        code_by_name: Name of each argument of the call -> the code of its value.
        script: The whole script as text, on which some notes depend.
        keras: How the script names Keras, such as "tf.keras"; None if it does not.
        same_steps: Whether to add the arguments with which our optimizer makes the same updates as
            `source`.
        is_whole: Whether `code_by_name` has all arguments: False if `**` passes others. Defaults to
            True.

    Returns:
        The translation.
    """
    values = {name: value_of(code) for name, code in code_by_name.items()}
    if obstacles := _why_unreadable(source, values, keras):
        return Translated((), {}, (), obstacles)
    notes = _remove_without_counterpart(source, values)
    signature = inspect.signature(source.cls).parameters
    replacement = translation(source.cls, values, keras)
    unchanged = tuple(
        name for name in values if name in signature and name not in replacement.arguments
    )
    if obstacles := _why_untranslatable(replacement):
        return Translated(unchanged, {}, (), obstacles)
    as_written = {shown(value): code_by_name[name] for name, value in values.items()}
    new = {name: as_written.get(text, text) for name, text in replacement.arguments.items()}
    renamed = [name for name in values if name not in signature]
    if renamed:
        notes.append(_replacement_sentence(renamed, new))
    if replacement.notes:
        notes.append(replacement.notes)

    our_arguments = {name: values[name] for name in unchanged} | {
        argument: value_of(text) for argument, text in new.items()
    }
    differing = _differing_values(source, values, our_arguments, script)
    if same_steps and not is_whole:
        notes.append("Nothing is added to keep the steps, as ** may pass it, too.")
    if same_steps and is_whole:
        added = {name: shown(peer_value) for name, (peer_value, _) in differing.items()}
        new |= added
        if added:
            pairs = " and ".join(f"{name}={text}" for name, text in added.items())
            notes.append(f"Added to keep the steps of before: {pairs}.")
    else:
        notes += [_difference_sentence(name, *pair) for name, pair in differing.items()]
    text = f"{script if source.is_of_keras else ''} {' '.join(code_by_name)}"
    notes += [sentence for part, sentence in source.warnings.items() if part in text]
    return Translated(unchanged, new, tuple(notes))


def _why_unreadable(source, values, keras):
    """Returns why the arguments cannot be translated, a sentence each; () if they can be.

    The reasons are that the optimizer does not have an argument, or that a value is known only when
    the script runs.

    Args:
        source: The optimizer that is called.
        values: The arguments of the call, by name.
        keras: How the script names Keras; None if it does not.
    """
    sentences = []
    accepted = (*source.defaults, *(() if source.is_of_keras else _LEGACY_ARGUMENTS))
    if unknown := [name for name in values if name not in accepted]:
        sentences.append(f"{source.peer.title} has no {', '.join(unknown)}.")
    for name in (*_LISTS, "exclude_layers"):
        value = values.get(name)
        is_list = isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value)
        if value is not None and not isinstance(value, Code) and not is_list:
            sentences.append(f"{name} is no list of texts.")
    if type(values.get("exclude_embeddings")) is Code:
        sentences.append("exclude_embeddings is known when the script runs.")
    if values.get("decay"):
        if keras is None:
            sentences.append(
                "decay becomes a schedule of Keras's, which the script does not import."
            )
        if type(values.get("learning_rate", values.get("lr"))) is Code:
            sentences.append("decay with a rate that is known when the script runs.")
    return tuple(sentences)


def _remove_without_counterpart(source, values) -> list[str]:
    """Removes the arguments from `values` that our class has no counterpart for.

    These are an empty `exclude_from_layer_adaptation`, which the other package takes as None, and
    the `adam_weight_decay` of Keras's Muon, which decays the variables that Adam updates.

    Returns:
        Notes on what the removal changes, a sentence each.
    """
    notes = []
    adapted = _LISTS[1]
    is_empty = values.get(adapted) in ([], (), Code("list()"), Code("tuple()"))
    if adapted in source.defaults and is_empty:
        del values[adapted]
        notes.append(f"{adapted}=[] means there that nothing is given: it is left out.")
    if "adam_weight_decay" in source.defaults:
        config = {**source.defaults, **values}
        values.pop("adam_weight_decay", None)
        if config["adam_weight_decay"] != config["weight_decay"]:
            adam_decay = shown(config["adam_weight_decay"])
            notes.append(
                f"Keras decays Adam's variables by adam_weight_decay={adam_decay}; here "
                "weight_decay is for all, and exclude_from_weight_decay for what has none."
            )
        if config["adam_lr_ratio"] != 1:
            notes.append("Keras decays Adam's variables at the whole rate; here at their own.")
    return notes


def _why_untranslatable(replacement):
    """Returns why a translation cannot be written into the script, a sentence each."""
    sentences = []
    if replacement.impossible:
        words = ", ".join(replacement.impossible)
        sentences.append(f"nothing here stands for {words}. {replacement.notes}".strip())
    hidden = [name for name, text in replacement.arguments.items() if "..." in text]
    if hidden:
        sentences.append(f"the value of {', '.join(hidden)} is to be written by hand.")
    return tuple(sentences)


def _replacement_sentence(words, new):
    """Returns the sentence that says which arguments of the call became which of our class.

    Args:
        words: The arguments that are replaced, by their names in the call.
        new: Argument of our class -> its value, as code.
    """
    subject, has_one = " and ".join(words), len(words) == 1
    if not new:
        return f"{subject} {'is' if has_one else 'are'} left out."
    pairs = " ".join(", ".join(f"{name}={text}" for name, text in new.items()).split())
    return f"{subject} {'becomes' if has_one else 'become'} {pairs}."


def _differing_values(source, values, our_arguments, script):
    """Returns the arguments of our class with which the new call makes other updates than before.

    Args:
        source: The optimizer that was called.
        values: The arguments of the old call, by name.
        our_arguments: The arguments of the new call, by name.
        script: The whole script as text.

    Returns:
        Argument of our class -> (value with which the updates stay the same, value in the new
        call).
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
    changed = peers.changes(
        peer_values, our_values, defaults, unsaid=_LISTS[1:] if form_class else ()
    )
    if not peer_values.get("weight_decay") and not our_values.get("weight_decay"):
        # Without weight decay these forms compute the same.
        changed.pop("weight_decay_mode", None)
        if source.peer.family == "LARS" and peer_values.get("form", {}).get("momentum") == "inside":
            changed.pop("form", None)
    if source.peer.fixed.get(_LISTS[1]) == [] and ".exclude_from_weight_decay(" in script:
        changed[_LISTS[1]] = ([], our_values[_LISTS[1]])
    if "form" in changed:
        peer_form, our_form = (form or {} for form in changed["form"])
        changed["form"] = _entries_unlike(peer_form, our_form), _entries_unlike(our_form, peer_form)
    if "learning_rate" in our_arguments:
        changed.pop("learning_rate", None)
    return changed


def _entries_unlike(form, other_form):
    """Returns the entries of `form` that `other_form` lacks, or has with another value."""
    return {key: value for key, value in form.items() if other_form.get(key, ...) != value}


def _difference_sentence(name, peer_value, our_value):
    """Returns the sentence on an argument that differs, and on the value that keeps the updates."""
    meaning = _MEANINGS.get(
        name, f"{name} is {shown(peer_value)} there, and {shown(our_value)} here"
    )
    return f"{meaning[0].upper()}{meaning[1:]}; {name}={shown(peer_value)} keeps it."
