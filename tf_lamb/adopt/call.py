"""Translates the arguments of one call, and says what is computed otherwise then."""

import ast
import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from tf_lamb.adopt.sources import Source
from tf_lamb.api.migration import peers
from tf_lamb.api.optimizers.arguments import Code, shown, translation
from tf_lamb.core import rules

_OF_LEGACY = ("lr", "decay", "weight_decay_rate", "clipnorm", "clipvalue", "global_clipnorm")
_LISTS = ("exclude_from_weight_decay", "exclude_from_layer_adaptation")
# Argument -> what another value of it means.
_MEANINGS = {
    "weight_decay_mode": "weight decay is outside of the trust ratio there, and inside here",
    "exclude_from_layer_adaptation": (
        "what has no weight decay keeps its trust ratio there, and has none here"
    ),
    "form": "the ratio divides by another norm, or momentum stands elsewhere",
}  # fmt: skip


class Translated(NamedTuple):
    """Holds the arguments of a call for our class.

    Attributes:
        kept: The arguments of the call that stay as they are.
        new: Argument of ours -> its value, as code.
        notes: What changes, a sentence each.
        obstacles: Why the call cannot be rewritten, a sentence each; empty if it can be.
    """

    kept: tuple[str, ...]
    new: Mapping[str, str]
    notes: tuple[str, ...]
    obstacles: tuple[str, ...] = ()


def value_of(code: str) -> Any:
    """Returns the value of a literal; `Code` for anything else."""
    try:
        return ast.literal_eval(code)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return Code(code)


def translated(
    source: Source,
    given: Mapping[str, str],
    script: str,
    keras: str | None,
    same_steps: bool,
    is_whole: bool = True,
) -> Translated:
    """Translates the arguments of a call.

    Args:
        source: The optimizer that is called.
        given: Its arguments by name -> their code.
        script: The whole script, which some warnings depend on.
        keras: How the script names Keras, such as "tf.keras"; None if it does not.
        same_steps: Whether arguments are added that keep the steps of before.
        is_whole: Whether these are all arguments. Defaults to True.

    Returns:
        The translation.
    """
    values = {name: value_of(code) for name, code in given.items()}
    if obstacles := _strange(source, values, keras):
        return Translated((), {}, (), obstacles)
    notes = _left_out(source, values)
    signature = inspect.signature(source.cls).parameters
    found = translation(source.cls, values, keras)
    kept = tuple(name for name in values if name in signature and name not in found.arguments)
    if obstacles := _obstacles(found):
        return Translated(kept, {}, (), obstacles)
    as_written = {shown(value): given[name] for name, value in values.items()}
    new = {name: as_written.get(text, text) for name, text in found.arguments.items()}
    renamed = [name for name in values if name not in signature]
    if renamed:
        notes.append(_sentence(renamed, new))
    if found.notes:
        notes.append(found.notes)

    ours = {name: values[name] for name in kept} | {n: value_of(text) for n, text in new.items()}
    differing = _differing(source, values, ours, script)
    if same_steps and not is_whole:
        notes.append("Nothing is added to keep the steps, as ** may pass it, too.")
    if same_steps and is_whole:
        keep = {name: shown(there) for name, (there, _) in differing.items()}
        new |= keep
        if keep:
            pairs = " and ".join(f"{name}={text}" for name, text in keep.items())
            notes.append(f"Added to keep the steps of before: {pairs}.")
    else:
        notes += [_difference(name, *pair) for name, pair in differing.items()]
    text = f"{script if source.is_of_keras else ''} {' '.join(given)}"
    notes += [sentence for part, sentence in source.warnings.items() if part in text]
    return Translated(kept, new, tuple(notes))


def _strange(source, values, keras):
    """Returns why the arguments are none that the source takes, or none that can be read."""
    sentences = []
    known = (*source.defaults, *(() if source.is_of_keras else _OF_LEGACY))
    if unknown := [name for name in values if name not in known]:
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


def _left_out(source, values) -> list[str]:
    """Takes arguments out of `values` that say nothing, or cannot be said; returns sentences."""
    notes = []
    adapted = _LISTS[1]
    is_empty = values.get(adapted) in ([], (), Code("list()"), Code("tuple()"))
    if adapted in source.defaults and is_empty:
        del values[adapted]
        notes.append(f"{adapted}=[] means there that nothing is given: it is left out.")
    if "adam_weight_decay" in source.defaults:
        both = {**source.defaults, **values}
        values.pop("adam_weight_decay", None)
        if both["adam_weight_decay"] != both["weight_decay"]:
            there = shown(both["adam_weight_decay"])
            notes.append(
                f"Keras decays Adam's variables by adam_weight_decay={there}; here weight_decay is "
                "for all, and exclude_from_weight_decay for what has none."
            )
        if both["adam_lr_ratio"] != 1:
            notes.append("Keras decays Adam's variables at the whole rate; here at their own.")
    return notes


def _obstacles(found):
    """Returns why a translation is none."""
    sentences = []
    if found.impossible:
        words = ", ".join(found.impossible)
        sentences.append(f"nothing here stands for {words}. {found.notes}".strip())
    hidden = [name for name, text in found.arguments.items() if "..." in text]
    if hidden:
        sentences.append(f"the value of {', '.join(hidden)} is to be written by hand.")
    return tuple(sentences)


def _sentence(words, new):
    """Returns which words were replaced by which arguments."""
    subject, has_one = " and ".join(words), len(words) == 1
    if not new:
        return f"{subject} {'is' if has_one else 'are'} left out."
    pairs = " ".join(", ".join(f"{name}={text}" for name, text in new.items()).split())
    return f"{subject} {'becomes' if has_one else 'become'} {pairs}."


def _differing(source, values, ours, script):
    """Returns argument of ours -> (value that keeps the steps of before, value in the new call)."""
    parameters = inspect.signature(source.cls).parameters.values()
    defaults = {parameter.name: parameter.default for parameter in parameters}
    form = rules.OURS[source.peer.family].hyper.get("form")
    config_there = {**source.defaults, **values}
    there, here = source.peer.arguments(config_there), {**defaults, **ours}
    if type(here.get("form")) is Code:  # of a value that is known when the script runs
        there.pop("form", None)
        here.pop("form")
    elif form:
        here["form"] = {**dataclasses.asdict(form()), **(here["form"] or {})}
    changed = peers.changes(there, here, defaults, unsaid=_LISTS[1:] if form else ())
    if not there.get("weight_decay") and not here.get("weight_decay"):
        # Decay alone tells these forms apart.
        changed.pop("weight_decay_mode", None)
        if source.peer.family == "LARS" and there.get("form", {}).get("momentum") == "inside":
            changed.pop("form", None)
    if source.peer.fixed.get(_LISTS[1]) == [] and ".exclude_from_weight_decay(" in script:
        changed[_LISTS[1]] = ([], here[_LISTS[1]])
    if "form" in changed:
        form_there, form_here = (one or {} for one in changed["form"])
        changed["form"] = _without(form_there, form_here), _without(form_here, form_there)
    if "learning_rate" in ours:
        changed.pop("learning_rate", None)
    return changed


def _without(one, other):
    """Returns the entries of a dict that another does not have with the same value."""
    return {key: value for key, value in one.items() if other.get(key, ...) != value}


def _difference(name, there, here):
    """Returns a sentence about an argument of another value, with the way back."""
    meaning = _MEANINGS.get(name, f"{name} is {shown(there)} there, and {shown(here)} here")
    return f"{meaning[0].upper()}{meaning[1:]}; {name}={shown(there)} keeps it."
