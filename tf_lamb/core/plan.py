"""Patterns and variable paths become one `Treatment` a variable. Only this file knows regexes."""

import dataclasses
import re
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Treatment:
    """What the plan decides for one variable: its weight decay, and whether it is adapted."""

    decay: float
    adapt: bool


@dataclasses.dataclass(frozen=True)
class Plan:
    """The treatments, aligned with the order in which the optimizer was built."""

    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    treatments: tuple[Treatment, ...]
    unmatched: tuple[str, ...]

    def warning(self) -> str | None:
        """What to tell a user whose pattern matches no variable, or None."""
        if not self.unmatched:
            return None
        patterns = ", ".join(map(repr, self.unmatched))
        examples = ", ".join(map(repr, self.paths[:3]))
        return (
            f"No variable matches the exclusion pattern {patterns}: it excludes nothing. "
            f"Patterns are searched in paths such as {examples}; `describe()` shows them all."
        )

    def table(self) -> str:
        """The plan as a table: a line a variable, then a line a treatment."""
        width = max([len("variable"), *map(len, self.paths)])
        row = f"{{:{width}}}  {{:>12}}  {{:>10}}  {{:>7}}".format
        lines = [row("variable", "parameters", "decay", "adapted")]
        for path, size, treatment in zip(self.paths, self.sizes, self.treatments, strict=True):
            lines.append(row(path, f"{size:,}", *_cells(treatment)))
        lines.append("")
        for treatment in dict.fromkeys(self.treatments):
            sizes = [s for s, t in zip(self.sizes, self.treatments, strict=True) if t == treatment]
            count = f"{len(sizes)} variable{'s' if len(sizes) != 1 else ''}"
            lines.append(row(count, f"{sum(sizes):,}", *_cells(treatment)))
        return "\n".join(lines)


def _cells(treatment: Treatment) -> tuple[str, str]:
    decay = f"{treatment.decay:g}" if treatment.decay else "-"
    return decay, "yes" if treatment.adapt else "no"


def check_patterns(argument: str, patterns) -> tuple[str, ...] | None:
    """The patterns as a tuple, or one error that names the argument and the pattern."""
    if patterns is None:
        return None
    if isinstance(patterns, str) or not isinstance(patterns, Sequence):
        raise TypeError(
            f"{argument} takes a list of regexes such as ['bias', 'layer_norm'], "
            f"not {patterns!r}. Did you mean [{patterns!r}]?"
        )
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(
                f"{argument} takes a list of strings, but it holds {pattern!r}, "
                f"a {type(pattern).__name__}. Write each regex as a string."
            )
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"{argument} holds {pattern!r}, which is not a regular expression: {error}. "
                f"To match it as it stands, write {re.escape(pattern)!r}."
            ) from error
    return tuple(patterns)


def exact(path: str) -> str:
    """The pattern that matches this path and no other."""
    return f"^{re.escape(path)}$"


def stable_path(name: str) -> str:
    """A TensorFlow variable's name without what differs between replicas: `:0`, `/replica_1`."""
    return re.sub(r"(/replica_\d+)?(:\d+)?$", "", name)


def plan_for(
    paths: Sequence[str],
    sizes: Sequence[int],
    *,
    weight_decay: float,
    exclude_from_weight_decay: tuple[str, ...] | None,
    exclude_from_layer_adaptation: tuple[str, ...] | None,
    excluded_by_identity: Sequence[bool],
) -> Plan:
    """Meets the patterns with the paths, once.

    A pattern is searched (`re.search`) in the path of each variable, and in the path without the
    name of the model where the variables share one: the functional `encoder/dense/kernel` and the
    subclassed `my_model/encoder/dense/kernel` then answer `^encoder/` alike.

    Args:
        paths: the stable path of each variable, in the order of the build.
        sizes: how many parameters each has.
        weight_decay: the decay of those that are not excluded.
        exclude_from_weight_decay: patterns; None excludes nothing.
        exclude_from_layer_adaptation: patterns; None means "as for weight decay", an empty
            tuple "exclude nothing".
        excluded_by_identity: of each variable, whether it was excluded from weight decay as
            an object, without a pattern.
    """
    aliases = _aliases(paths)
    unmatched = [
        pattern
        for pattern in dict.fromkeys(
            (*(exclude_from_weight_decay or ()), *(exclude_from_layer_adaptation or ()))
        )
        if not any(_matches((pattern,), names) for names in aliases)
    ]
    treatments = []
    for names, identified in zip(aliases, excluded_by_identity, strict=True):
        undecayed = identified or _matches(exclude_from_weight_decay or (), names)
        if exclude_from_layer_adaptation is None:
            unadapted = undecayed
        else:
            unadapted = _matches(exclude_from_layer_adaptation, names)
        treatments.append(Treatment(0.0 if undecayed else weight_decay, not unadapted))
    return Plan(tuple(paths), tuple(sizes), tuple(treatments), tuple(unmatched))


def _aliases(paths: Sequence[str]) -> list[tuple[str, ...]]:
    """Each path as it stands, and without the model's name where there is one to drop."""
    root = _model_name(paths)
    return [
        (path, path.removeprefix(root)) if root and path.startswith(root) else (path,)
        for path in paths
    ]


def _model_name(paths: Sequence[str]) -> str:
    """The first name that all paths share, with its slash, or an empty string.

    A layer of a subclassed model that makes weights before the model is called leaves the model's
    name out of their path: beside `my_model/encoder/dense/kernel` stands `encoder/scale`, in
    tf_keras a bare `scale`. Such paths do not speak against the name.
    """
    for root in dict.fromkeys(path.partition("/")[0] for path in paths if "/" in path):
        inside = [path.split("/") for path in paths if path.startswith(root + "/")]
        layers = {names[1] for names in inside if len(names) > 2}
        outside = [path.split("/") for path in paths if not path.startswith(root + "/")]
        if all(len(names) == 1 or names[0] in layers for names in outside):
            return root + "/"
    return ""


def _matches(patterns: Sequence[str], names: tuple[str, ...]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns for name in names)
