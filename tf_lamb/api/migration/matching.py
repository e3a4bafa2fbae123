"""Which variable of a source is which of a model, by name and shape; a doubt is an error."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tf_lamb.core.plan.paths import model_name


def match(
    origin: str,
    wanted: Mapping[str, tuple],
    found: Mapping[str, Mapping[str, Any]],
    parts: Mapping[str, Sequence[str]],
    rename: Mapping[str, str],
) -> dict[str, str]:
    """Path -> name in the source, for every path that is wanted, or one error.

    Names are compared as they are, then without the name of the model, which differs between a
    functional and a subclassed model. Every part of a path must be there, in its shape.
    """
    short = _short(found)
    lookup = {short[name]: name for name in found} | {name: name for name in found}
    result = {}
    for path, own in _short(wanted).items():
        name = rename.get(path) or lookup.get(path) or lookup.get(own) or ""
        if name not in found:
            raise ValueError(_missing(origin, path, name, wanted, found, lookup, parts[path]))
        for part in parts[path]:
            if part not in found[name]:
                raise ValueError(
                    f"{origin} is incomplete: it has no {part!r} of {path!r}, only "
                    f"{', '.join(found[name]) or 'nothing'}. Save it again. Nothing was changed."
                )
            shape = tuple(found[name][part].shape)
            if shape != wanted[path]:
                raise ValueError(
                    f"{part!r} of {path!r} has shape {shape} in {origin}, and {wanted[path]} in "
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


def _missing(origin, path, name, wanted, found, lookup, parts):
    """Why a variable has no counterpart, and both ways out."""
    taken = {lookup.get(other) for other in wanted}
    alike = [
        other
        for other, values in found.items()
        if other not in taken and any(tuple(v.shape) == wanted[path] for v in values.values())
    ]
    hint = f"pass rename={{{path!r}: {alike[0]!r}}}" if alike else "say so with rename={path: name}"
    asked = f" under the name {name!r}" if name else ""
    fresh = "" if parts == ("weight",) else (
        f" If the source never updated it, pass fresh=[{path!r}]: it then begins at zero."
    )  # fmt: skip
    return (
        f"{origin} holds no {parts[0]!r} of {path!r}, shape {wanted[path]}{asked}; it has "
        f"{', '.join(map(repr, list(found)[:3]))} and so on. If the variable has another name "
        f"there, {hint}.{fresh} Nothing was changed."
    )


def _short(names: Iterable[str]) -> dict[str, str]:
    """Name -> the same without the name of the model."""
    names = list(names)
    root = model_name(names)
    return {name: name.removeprefix(root) for name in names}
