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
    source: Source, given: Mapping[str, str], script: str, keras: str, same_steps: bool
) -> Translated:
    """Translates the arguments of a call.

    Args:
        source: The optimizer that is called.
        given: Its arguments by name -> their code.
        script: The whole script, of which some warnings depend.
        keras: How the script names Keras, such as "tf.keras".
        same_steps: Whether arguments are added that keep the steps of before.

    Returns:
        The translation.
    """
    notes, values = [], {name: value_of(code) for name, code in given.items()}
    adapted = "exclude_from_layer_adaptation"
    if source.defaults.get(adapted, ...) is None and values.get(adapted) == []:
        del values[adapted]
        notes.append(f"{adapted}=[] means there that nothing is given: it is left out.")
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
    if same_steps:
        keep = {name: shown(there) for name, (there, _) in differing.items()}
        new |= keep
        if keep:
            pairs = " and ".join(f"{name}={text}" for name, text in keep.items())
            notes.append(f"Added to keep the steps of before: {pairs}.")
    else:
        notes += [_difference(name, *pair) for name, pair in differing.items()]
    text = f"{script if source.peer.title.startswith('Keras') else ''} {' '.join(given)}"
    notes += [
        sentence
        for beginning, sentence in source.warnings.items()
        if beginning in text and not (same_steps and adapted in new and adapted in sentence)
    ]
    return Translated(kept, new, tuple(notes))


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
    pairs = ", ".join(f"{name}={text}" for name, text in new.items())
    return f"{subject} {'becomes' if has_one else 'become'} {pairs}."


def _differing(source, values, ours, script):
    """Returns argument of ours -> (value that keeps the steps of before, value in the new call)."""
    parameters = inspect.signature(source.cls).parameters.values()
    defaults = {parameter.name: parameter.default for parameter in parameters}
    form = rules.OURS[source.peer.family].hyper.get("form")
    config_there = {**source.defaults, **values}
    there, here = source.peer.arguments(config_there), {**defaults, **ours}
    if form and not isinstance(here["form"], Code):
        here["form"] = {**dataclasses.asdict(form()), **(here["form"] or {})}
    changed = peers.changes(there, here, defaults, unsaid=_LISTS[1:] if form else ())
    if not there.get("weight_decay") and not here.get("weight_decay"):
        # Decay alone tells these forms apart.
        changed.pop("weight_decay_mode", None)
        if source.peer.family == "LARS" and there["form"]["momentum"] == "inside":
            changed.pop("form", None)
    if source.peer.fixed.get(_LISTS[1]) == [] and ".exclude_from_weight_decay(" in script:
        changed[_LISTS[1]] = ([], here[_LISTS[1]])
    if "form" in changed:
        form_there, form_here = (one or {} for one in changed["form"])
        changed["form"] = _without(form_there, form_here), _without(form_here, form_there)
    return {name: pair for name, pair in changed.items() if name != "learning_rate"}


def _without(one, other):
    """Returns the entries of a dict that another does not have with the same value."""
    return {key: value for key, value in one.items() if other.get(key, ...) != value}


def _difference(name, there, here):
    """Returns a sentence about an argument of another value, with the way back."""
    meaning = _MEANINGS.get(name, f"{name} is {shown(there)} there, and {shown(here)} here")
    return f"{meaning[0].upper()}{meaning[1:]}; {name}={shown(there)} keeps it."
