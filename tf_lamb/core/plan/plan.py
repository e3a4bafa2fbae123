"""Patterns and variable paths become one `Treatment` a variable; `searching` searches regexes."""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from tf_lamb.core.plan import paths as paths_
from tf_lamb.core.plan import searching
from tf_lamb.core.plan.presets import PRESETS


@dataclasses.dataclass(frozen=True)
class Treatment:
    """What the plan decides for one variable.

    Attributes:
        decay: its weight decay.
        adapt: whether its layer is adapted: has a trust ratio, or may be projected.
        view: the shape in which the rule sees it, or None for its own.
        axes: the axes over which the rule's norms run in that shape, or None for the rule's choice.
        sliced: in words, which slices are layers of their own.
    """

    decay: float
    adapt: bool
    view: tuple[int, ...] | None = None
    axes: tuple[int, ...] | None = None
    sliced: str = ""


@dataclasses.dataclass(frozen=True)
class Layer:
    """Variables that share a trust ratio: one, unless the user joined several.

    Attributes:
        members: their positions in the list that the layer was asked for.
        paths, treatments: of each member.
        number: tells this layer from every other of the model.
    """

    members: tuple[int, ...]
    paths: tuple[str, ...]
    treatments: tuple[Treatment, ...]
    number: int


def paths_of(layers: Iterable[Layer]) -> list[str]:
    """The path of each variable, in the order of the list that the layers were asked for."""
    members = (pair for each in layers for pair in zip(each.members, each.paths, strict=True))
    return [path for _, path in sorted(members)]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The treatments, aligned with the order in which the optimizer was built."""

    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    treatments: tuple[Treatment, ...]
    groups: tuple[str, ...]  # variables of one group are one layer; an empty name is no group
    unmatched: tuple[str, ...]
    presets: tuple[tuple[str, int], ...] = ()  # how many variables each stands for

    def layers(self, indices: Iterable[int]) -> tuple[Layer, ...]:
        """The layers of these variables, as positions among the indices."""
        members: dict = {}
        for position, index in enumerate(indices):
            members.setdefault(self.groups[index] or index, []).append((position, index))
        return tuple(
            Layer(
                tuple(position for position, _ in pairs),
                tuple(self.paths[index] for _, index in pairs),
                tuple(self.treatments[index] for _, index in pairs),
                pairs[0][1],
            )
            for pairs in members.values()
        )

    def warning(self) -> str | None:
        """What to tell a user whose pattern matches no variable, or None."""
        if not self.unmatched:
            return None
        patterns = ", ".join(map(repr, self.unmatched))
        examples = ", ".join(map(repr, self.paths[:3]))
        return (
            f"No variable matches the pattern {patterns}: it has no effect. "
            f"Patterns are searched in paths such as {examples}; `describe()` shows them all."
        )

    def table(self) -> str:
        """The plan as a table: a line a variable, then a line a treatment."""
        sizes = [math.prod(shape) for shape in self.shapes]
        rows = [("variable", "parameters", "decay", "adapted", "layer")]
        for path, size, treatment, group in zip(
            self.paths, sizes, self.treatments, self.groups, strict=True
        ):
            layer = f"joined in {group}" if group else treatment.sliced
            rows.append((path, f"{size:,}", *_cells(treatment), layer))
        rows.append(("",) * 5)
        totals: dict = {}
        for size, treatment in zip(sizes, self.treatments, strict=True):
            totals.setdefault(_cells(treatment), []).append(size)
        for cells, group_sizes in totals.items():
            count = f"{len(group_sizes)} variable{'s' if len(group_sizes) != 1 else ''}"
            rows.append((count, f"{sum(group_sizes):,}", *cells, ""))
        width = max(len(row[0]) for row in rows)
        line = f"{{:{width}}}  {{:>12}}  {{:>10}}  {{:>7}}  {{}}".format
        notes = (f"{preset} is {count:,} of them" for preset, count in self.presets)
        return "\n".join([*(line(*row).rstrip() for row in rows), *notes])


def _cells(treatment: Treatment) -> tuple[str, str]:
    decay = f"{treatment.decay:g}" if treatment.decay else "-"
    return decay, "yes" if treatment.adapt else "no"


def exact(path: str) -> str:
    """The pattern that matches this path and no other."""
    return f"^{re.escape(path)}$"


def stable_path(name: str) -> str:
    """A TensorFlow variable's name without what differs between replicas: `:0`, `/replica_1`."""
    return re.sub(r"(/replica_\d+)?(:\d+)?$", "", name)


def plan_for(
    paths: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    *,
    weight_decay: float,
    exclude_from_weight_decay: Sequence[str] | None,
    exclude_from_layer_adaptation: Sequence[str] | None,
    excluded_by_identity: Sequence[bool],
    layer_groups: Sequence[str] | None = None,
    layer_slices: Mapping[str, tuple[int, int | None]] | None = None,
    depthwise: Sequence[str] | None = None,
) -> Plan:
    """Meets the patterns with the paths, once.

    A pattern is searched (`re.search`) in the path of each variable, and in the path without the
    name of the model where the variables share one: the functional `encoder/dense/kernel` and the
    subclassed `my_model/encoder/dense/kernel` then answer `^encoder/` alike.

    Args:
        paths: the stable path of each variable, in the order of the build.
        shapes: their shapes.
        weight_decay: the decay of those that are not excluded.
        exclude_from_weight_decay: patterns; None excludes nothing.
        exclude_from_layer_adaptation: patterns; None means "as for weight decay", an empty
            sequence "exclude nothing".
        excluded_by_identity: of each variable, whether it was excluded from weight decay as
            an object, without a pattern.
        layer_groups: patterns; the variables of one Keras layer that match are one layer, unless
            the second list of exclusions was given and holds them.
        layer_slices: pattern -> axis and number of blocks on it, or None for its whole length;
            each block along the axis is a layer of its own.
        depthwise: patterns of kernels whose channels lie on the last two axes; given by the
            optimizers whose norms run within channels.

    Raises:
        ValueError: where a variable has no such axis or blocks, or is both joined and sliced, or a
            pattern takes too long to search.
    """
    aliases = paths_.aliases(paths)
    every_name = list(dict.fromkeys(name for names in aliases for name in names))
    undecaying, unadapting, grouping, slicing = found = [
        searching.search(argument, [p for p in patterns or () if p not in PRESETS], every_name)
        for argument, patterns in {
            "exclude_from_weight_decay": exclude_from_weight_decay,
            "exclude_from_layer_adaptation": exclude_from_layer_adaptation,
            "layer_groups": layer_groups,
            "layer_slices": layer_slices,
        }.items()
    ]
    two_channel_axes = searching.search("depthwise", depthwise or (), every_name)
    treatments, groups = [], []
    for path, shape, names, identified in zip(
        paths, shapes, aliases, excluded_by_identity, strict=True
    ):
        own = (names, path, shape)
        undecayed = identified or _excludes(exclude_from_weight_decay, undecaying, *own)
        group = path.rpartition("/")[0] or path if _matches(grouping, names) else ""
        if exclude_from_layer_adaptation is None:
            unadapted = undecayed and not group
        else:
            unadapted = _excludes(exclude_from_layer_adaptation, unadapting, *own)
            group = "" if unadapted else group
        layout: dict = {}
        pattern = next((p for p, hits in slicing.items() if not hits.isdisjoint(names)), None)
        if pattern is not None and group:
            raise ValueError(
                f"{path} is in layer_slices ({pattern!r}) and in layer_groups ({group}): a layer "
                "is either a slice or several variables. Narrow one of the patterns."
            )
        if pattern is not None and layer_slices is not None:
            layout = _sliced(path, shape, *layer_slices[pattern])
        elif depthwise is not None and len(shape) > 1:
            channel_axes = 2 if _matches(two_channel_axes, names) and len(shape) > 2 else 1
            layout = {"axes": tuple(range(len(shape) - channel_axes))}
        decay = 0.0 if undecayed else weight_decay
        treatments.append(Treatment(decay, not unadapted, **layout))
        groups.append(group)
    hits_of = {pattern: hits for each in found for pattern, hits in each.items()}
    given = {*(exclude_from_weight_decay or ()), *(exclude_from_layer_adaptation or ())}
    return Plan(
        tuple(paths), tuple(map(tuple, shapes)), tuple(treatments), tuple(groups),
        tuple(pattern for pattern, hits in hits_of.items() if not hits),
        tuple((p, sum(map(PRESETS[p], paths, shapes))) for p in PRESETS if p in given),
    )  # fmt: skip


def _excludes(patterns, found, names, path, shape):
    """Whether a pattern matches the variable, or a preset among them stands for it."""
    presets = (PRESETS[pattern] for pattern in patterns or () if pattern in PRESETS)
    return _matches(found, names) or any(is_one(path, shape) for is_one in presets)


def _sliced(path: str, shape: Sequence[int], axis: int, blocks: int | None) -> dict:
    """The layout in which each block along the axis is a layer of its own."""
    rank = len(shape)
    if not -rank <= axis < rank:
        raise ValueError(
            f"layer_slices asks for axis {axis} of {path}, whose shape is {tuple(shape)}. "
            f"Its axes are 0 to {rank - 1}; narrow the pattern, or name one of them."
            if rank
            else f"layer_slices asks for axis {axis} of {path}, a scalar. Narrow the pattern."
        )
    axis %= rank
    count = shape[axis] if blocks is None else blocks
    if count == 0:  # the variable is empty, so there is nothing to slice
        return {}
    if shape[axis] % count:
        raise ValueError(
            f"layer_slices asks for {count} blocks on axis {axis} of {path}, whose shape is "
            f"{tuple(shape)}: {shape[axis]} is not a multiple of {count}."
        )
    view = (*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :])
    axes = tuple(i for i in range(len(view)) if i != axis)
    return {"view": view, "axes": axes, "sliced": f"{count} slices along axis {axis}"}


def groups_of(argument: str, patterns: Sequence[str], paths: Sequence[str]) -> list[int]:
    """Of each path the position of the first pattern that it matches, or one behind the last."""
    found = searching.search(argument, patterns, paths)
    return [
        next((i for i, p in enumerate(patterns) if path in found[p]), len(patterns))
        for path in paths
    ]


def _matches(found: Mapping[str, frozenset[str]], names: tuple[str, ...]) -> bool:
    return any(not hits.isdisjoint(names) for hits in found.values())
