"""The state of another optimizer in our words, and whose of our variables each array is.

Readers fill a `Source`. Arrays pass through untouched.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from tf_lamb.api.migration import peers
from tf_lamb.core.patterns import model_name


@dataclasses.dataclass(frozen=True)
class Source:
    """The state of an optimizer, as a reader found it."""

    origin: str  # what was read, in words
    family: str  # the class of ours that continues it, such as "LAMB"
    step: int
    slots: Mapping[str, Mapping[str, Any]]  # of a variable: our name of a slot -> array
    arguments: Mapping[str, Any]  # in our words; what the source does not say is left out
    unsaid: tuple[str, ...] = ()  # arguments that it had and the source does not say
    weights: Mapping[str, Any] | None = None  # by name of a variable, where the source holds them
    # Arguments that we do not have, in its own words.
    beyond: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Of one of ours, what there is once, by its name in a file.
    scalars: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_peer(cls, peer: peers.Peer, step: int, slots, source_config, **more):
        """Makes the source from a peer's own names; `more` are attributes as they are."""
        arguments = peer.arguments(source_config)
        ours = {
            variable: {peer.slots[slot]: value for slot, value in values.items()}
            for variable, values in slots.items()
        }
        unsaid = peer.unsaid(arguments)
        found = cls(peer.title, peer.family, step, ours, arguments, unsaid)
        return dataclasses.replace(found, **more)

    def after_an_update(self) -> "Source":
        """The source without the micro-batches of an update that has begun."""
        slots = {variable: _of_updates(kept) for variable, kept in self.slots.items()}
        return dataclasses.replace(self, slots=slots, scalars=_of_updates(self.scalars))


def _of_updates(values):
    return {k: v for k, v in values.items() if not k.startswith(("accumulator", "micro_step"))}


def match(
    origin: str,
    wanted: Mapping[str, Mapping[str, tuple]],
    found: Mapping[str, Mapping[str, Any]],
    rename: Mapping[str, str],
) -> dict[str, str]:
    """Path -> name in the source, for every path that is wanted, or one error.

    Names are compared as they are, then without the name of the model, which differs between a
    functional and a subclassed model. Every part that is wanted of a path, with its shape, must be
    there.
    """
    short = _short(found)
    lookup = {short[name]: name for name in found} | {name: name for name in found}
    result = {}
    for path, own in _short(wanted).items():
        name = rename.get(path) or lookup.get(path) or lookup.get(own) or ""
        if name not in found:
            raise ValueError(_missing(origin, path, name, wanted, found))
        for part, own_shape in wanted[path].items():
            if part not in found[name]:
                raise ValueError(
                    f"{origin} is incomplete: it has no {part!r} of {path!r}, only "
                    f"{', '.join(found[name]) or 'nothing'}. Save it again. Nothing was changed."
                )
            shape = tuple(found[name][part].shape)
            if shape != own_shape:
                raise ValueError(
                    f"{part!r} of {path!r} has shape {shape} in {origin}, and {own_shape} in "
                    "this model: it is the state of another model. Build the model as it was "
                    "trained, or name the right variable with rename. Nothing was changed."
                )
        result[path] = name
    twice = [path for path, name in result.items() if list(result.values()).count(name) > 1]
    if twice:
        raise ValueError(
            f"{twice[0]!r} and {twice[1]!r} would both take {result[twice[0]]!r} of {origin}. "
            "Say which is which with rename. Nothing was changed."
        )
    return result


def _missing(origin, path, name, wanted, found):
    """Why a variable has no counterpart, and both ways out."""
    part, shape = next(iter(wanted[path].items()))
    asked = f" under the name {name!r}" if name else ""
    begins = f" If the source never updated it, pass fresh=[{path!r}]: it then begins at zero."
    return (
        f"{origin} holds no {part!r} of {path!r}, shape {shape}{asked}; it has "
        f"{', '.join(map(repr, list(found)[:3]))} and so on. If the variable has another name "
        f"there, pass rename={{{path!r}: name}}.{'' if part == 'weight' else begins} Nothing was "
        "changed."
    )


def _short(names: Iterable[str]) -> dict[str, str]:
    """Name -> the same without the name of the model."""
    names = list(names)
    root = model_name(names)
    return {name: name.removeprefix(root) for name in names}
