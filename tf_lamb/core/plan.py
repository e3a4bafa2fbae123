"""Patterns meet the paths of variables: one `Treatment` for each variable."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat

from tf_lamb.core import matrices
from tf_lamb.core.patterns import (
    PRESETS,
    aliases,
    exact,
    is_preset,
    joined_layers,
    search,
    unique,
)

# A smaller root mean square of weights is near it: 0.02 is usual, 1e-6 to 1e-4 a LayerScale's.
NEAR_ZERO = 1e-3


def channels_of(shape: Sequence[int], axes: int) -> dict:
    """The layout in which norms run over all but the last axes, and over one at least."""
    return {"axes": tuple(range(max(len(shape) - axes, 1)))} if len(shape) > 1 else {}


def slices_of(
    path: str, shape: Sequence[int], group: str, pattern: str, axis: int, blocks: int | None
) -> dict:
    """The layout in which each block along the axis is a layer of its own.

    Raises:
        ValueError: where the variable has no such axis or blocks, or is joined in a group.
    """
    if group:
        raise ValueError(
            f"{path} is in layer_slices ({pattern!r}) and in layer_groups ({group}): a layer "
            "is either a slice or several variables. Narrow one of the patterns."
        )
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
    return {"view": view, "axes": axes, "layout": f"{count} slices along axis {axis}"}


@dataclasses.dataclass(frozen=True)
class Treatment:
    """The plan's decision on one variable.

    Attributes:
        decay: its weight decay; where that follows a schedule, 1.0, or 0.0 for none.
        adapt: whether its layer is adapted: has a trust ratio, or may be projected.
        order: the order in which its axes are laid out before they are viewed, or None for theirs.
        view: the shape in which the rule sees it, or None for its own.
        axes: the axes over which the rule's norms run in that shape, or None for the rule's choice.
        layout: in words, which slices are layers of their own, or what matrix it is.
    """

    decay: float
    adapt: bool
    view: tuple[int, ...] | None = None
    axes: tuple[int, ...] | None = None
    layout: str = ""
    order: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Layer:
    """Variables that share a trust ratio: one, unless the user joined several.

    Attributes:
        members: their positions in the list that the layer was asked for.
        paths, treatments: of each member; a path that others have, too, with its number.
        number: tells this layer from every other of the model.
        may_rest: whether it is stepped only where a gradient is not all zeros.
        multiplier: of its learning rate.
    """

    members: tuple[int, ...]
    paths: tuple[str, ...]
    treatments: tuple[Treatment, ...]
    number: int
    may_rest: bool = False
    multiplier: float = 1.0

    def rate(self, lr):
        """The layer's learning rate; a multiplier of 1 adds nothing to a program."""
        return lr if self.multiplier == 1 else self.multiplier * lr


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
    multipliers: tuple[float, ...] = ()  # of their learning rates; empty if all are 1
    follows_schedule: bool = False  # whether weight decay does
    near_zero: frozenset[int] = frozenset()  # whose trust ratio is of hardly any weight

    @functools.cached_property
    def frozen(self) -> frozenset[int]:
        """The positions of the variables whose multiplier is 0."""
        return frozenset(i for i, each in enumerate(self.multipliers) if each == 0)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The paths; one that several variables have with its number."""
        return tuple(unique(self.paths))

    def layers(self, indices: Iterable[int], missing: Iterable[int] = ()) -> tuple[Layer, ...]:
        """The layers of these variables, as positions among the indices.

        One with a variable that is `missing`, for it has no gradient in this micro-batch, may rest.
        """
        members: dict = {}
        missing = set(missing)
        for position, index in enumerate(indices):
            members.setdefault(self.groups[index] or index, []).append((position, index))
        return tuple(
            Layer(
                tuple(position for position, _ in pairs),
                tuple(self.names[index] for _, index in pairs),
                tuple(self.treatments[index] for _, index in pairs),
                pairs[0][1],
                any(index in missing for _, index in pairs),
                self.multipliers[pairs[0][1]] if self.multipliers else 1.0,
            )
            for pairs in members.values()
        )

    def warning(self) -> str | None:
        """The warning for a pattern that matches no variable, or None."""
        if not self.unmatched:
            return None
        patterns = ", ".join(map(repr, self.unmatched))
        examples = ", ".join(map(repr, self.paths[:3]))
        return (
            f"No variable matches the pattern {patterns}: it has no effect. "
            f"Patterns are searched in paths such as {examples}; `tf_lamb.describe(model)` shows "
            "them all."
        )

    def holding(self, sizes: Mapping[int, float]) -> "Plan":
        """The plan that knows which layers with a trust ratio are near zero.

        Biases and offsets of normalizations start there everywhere, and are not named.

        Args:
            sizes: by position of what is adapted, the root mean square of its weights.
        """
        small = {i for i, size in sizes.items() if size < NEAR_ZERO}
        moving = {self.groups[i] for i in sizes if i not in small} - {""}
        found = (i for i in small if self.groups[i] not in moving)
        own = frozenset(i for i in found if not self.paths[i].endswith(("bias", "beta")))
        return dataclasses.replace(self, near_zero=own)

    def warning_near_zero(self, excluded: Sequence[str] = ()) -> str | None:
        """The warning for layers that are near zero, or None.

        Args:
            excluded: the patterns by which variables are not adapted now.
        """
        if not self.near_zero:
            return None
        small = sorted(self.near_zero)
        names = ", ".join(repr(self.names[i]) for i in small[:3])
        names += f" and {len(small) - 3} more" if len(small) > 3 else ""
        patterns = [*excluded, *dict.fromkeys(map(self._pattern_of, small))]
        listed = ", ".join(map(repr, patterns[: len(excluded) + 3]))
        listed += ", ..." if len(patterns) > len(excluded) + 3 else ""
        return (
            f"At or near zero: {names}. A trust ratio makes a step as short as its weights are, so "
            "these move late, or never, unless others are loaded now. Let them move without one: "
            f"exclude_from_layer_adaptation=[{listed}]."
        )

    def _pattern_of(self, i: int) -> str:
        """A short pattern that finds this one, and of what is adapted none but those near zero."""
        for preset, holds in PRESETS.items():
            if holds(self.paths[i], self.shapes[i]):
                return preset
        name = self.paths[i].rpartition("/")[2]
        others = (k for k, t in enumerate(self.treatments) if t.adapt and k not in self.near_zero)
        is_shared = any(name in self.paths[k] for k in others)
        return exact(self.names[i]) if is_shared else f"{re.escape(name)}$"

    def table(self) -> str:
        """The plan as a table: a line a variable, then a line a treatment."""
        sizes = [math.prod(shape) for shape in self.shapes]
        heads = ("rate",) if self.multipliers else ()
        treated = list(map(self._cells, self.treatments, self.multipliers or repeat(None)))
        rows = [("variable", "parameters", "decay", "adapted", *heads, "layer")]
        for path, size, cells, treatment, group in zip(
            self.names, sizes, treated, self.treatments, self.groups, strict=True
        ):
            layer = f"joined in {group}" if group else treatment.layout
            near = "near 0" if len(rows) - 1 in self.near_zero else ""
            rows.append((path, f"{size:,}", *cells, ", ".join(filter(None, (layer, near)))))
        rows.append(("",) * len(rows[0]))
        totals: dict = {}
        for size, cells in zip(sizes, treated, strict=True):
            totals.setdefault(cells, []).append(size)
        for cells, group_sizes in totals.items():
            count = f"{len(group_sizes)} variable{'s' if len(group_sizes) != 1 else ''}"
            rows.append((count, f"{sum(group_sizes):,}", *cells, ""))
        width = max(len(row[0]) for row in rows)
        rate = "{:>7}  " * len(heads)
        line = f"{{:{width}}}  {{:>12}}  {{:>10}}  {{:>7}}  {rate}{{}}".format
        notes = (f"{preset} is {count:,} of them" for preset, count in self.presets)
        return "\n".join([*(line(*row).rstrip() for row in rows), *notes])

    def _cells(self, treatment: Treatment, multiplier: float | None) -> tuple[str, ...]:
        decay = "schedule" if self.follows_schedule else f"{treatment.decay:g}"
        cells = decay if treatment.decay else "-", "yes" if treatment.adapt else "no"
        if multiplier is None:
            return cells
        return *cells, f"x {multiplier:.3g}" if multiplier else "frozen"


def plan_for(
    paths: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    *,
    weight_decay: float | None,
    exclude_from_weight_decay: Sequence[str] | None,
    exclude_from_layer_adaptation: Sequence[str] | None,
    excluded_by_identity: Sequence[bool],
    layer_groups: Sequence[str] | None = None,
    layer_slices: Mapping[str, tuple[int, int | None]] | None = None,
    depthwise: Sequence[str] | None = None,
    no_matrix: Sequence[str] | None = None,
    matrix_rows: Mapping[str, tuple[int, ...] | None] | None = None,
    learning_rate_multipliers: Mapping[str, float] | None = None,
) -> Plan:
    """Meets the patterns with the paths, once: match, exclude, group, lay out.

    A pattern is searched (`re.search`) in the path of each variable, and in the path without the
    name of the model where the variables share one: the functional `encoder/dense/kernel` and the
    subclassed `my_model/encoder/dense/kernel` then answer `^encoder/` alike.

    Args:
        paths: the stable path of each variable, in the order of the build.
        shapes: their shapes.
        weight_decay: the decay of those that are not excluded; None follows a schedule.
        exclude_from_weight_decay: patterns; None excludes nothing.
        exclude_from_layer_adaptation: patterns; None means "as for weight decay", an empty
            sequence "exclude nothing".
        excluded_by_identity: of each variable, whether it was excluded from weight decay as
            an object, without a pattern.
        layer_groups: patterns; the variables of one Keras layer that match are one layer, unless
            the second list of exclusions was given and holds them. Of layers with one path, the
            k-th of each variable's path belong together.
        layer_slices: pattern -> axis and number of blocks on it, or None for its whole length;
            each block along the axis is a layer of its own.
        depthwise: patterns of kernels whose channels lie on the last two axes; given by the
            optimizers whose norms run within channels.
        no_matrix: patterns of what is no matrix, though it may look like one; given by the
            optimizer that adapts matrices alone.
        matrix_rows: pattern -> the axes that are rows, or None for what is no matrix; the rest is
            told by paths and shapes (`core/matrices.py`).
        learning_rate_multipliers: pattern -> what multiplies the learning rate; 0 freezes.

    Raises:
        ValueError: where a variable has no such axis or blocks, or is both joined and sliced; where
            it cannot be known which variables of layers with one path belong together; where those
            of one layer have several multipliers, or all variables are frozen.
    """
    variables = tuple(zip(aliases(paths), shapes, strict=True))
    lists = {
        "exclude_from_weight_decay": exclude_from_weight_decay,
        "exclude_from_layer_adaptation": exclude_from_layer_adaptation,
        "layer_groups": layer_groups,
        "layer_slices": layer_slices,
        "matrix_rows": matrix_rows,
        "learning_rate_multipliers": learning_rate_multipliers,
    }
    found = {name: search(name, given or (), variables) for name, given in lists.items()}
    undecayed = _all_of(found["exclude_from_weight_decay"])
    unadapted = _all_of(found["exclude_from_layer_adaptation"])
    joined = _all_of(found["layer_groups"])
    two_channel_axes = _all_of(search("depthwise", depthwise or (), variables))

    undecayed |= {i for i, excluded in enumerate(excluded_by_identity) if excluded}
    # As for weight decay; but a bias without decay that is joined shares the ratio of its layer.
    if exclude_from_layer_adaptation is None:
        unadapted = undecayed - joined
    as_matrices: list[dict | str] = []
    if no_matrix is not None:
        none = _all_of(search("no_matrix", no_matrix, variables))
        given = _first(found["matrix_rows"], matrix_rows or {})
        as_matrices = matrices.layouts(
            paths, shapes, excluded=unadapted, no_matrix=none, given=given
        )
        unadapted = frozenset(i for i, each in enumerate(as_matrices) if isinstance(each, str))
    groups = joined_layers(paths, joined - unadapted)
    factors = _first(found["learning_rate_multipliers"], learning_rate_multipliers or {})
    multipliers = tuple(factors[i][1] if i in factors else 1.0 for i in range(len(paths)))
    _check_multipliers(paths, groups, multipliers)
    slices = _first(found["layer_slices"], layer_slices or {})
    treatments = []
    for i, (path, shape, group) in enumerate(zip(paths, shapes, groups, strict=True)):
        layout: dict = {}
        if i in slices:
            pattern, where = slices[i]
            layout = slices_of(path, shape, group, pattern, *where)
        elif depthwise is not None:
            layout = channels_of(shape, 2 if i in two_channel_axes else 1)
        elif as_matrices:
            matrix = as_matrices[i]
            layout = {"layout": f"fallback: {matrix}"} if isinstance(matrix, str) else matrix
        decay = 0.0 if i in undecayed else 1.0 if weight_decay is None else weight_decay
        treatments.append(Treatment(decay, i not in unadapted, **layout))
    counts = {
        (pattern, is_preset(name, pattern)): len(hits)
        for name, each in found.items()
        for pattern, hits in each.items()
    }
    unmatched = tuple(p for (p, preset), count in counts.items() if not count and not preset)
    presets = tuple((p, count) for (p, preset), count in counts.items() if preset)
    shapes = tuple(map(tuple, shapes))
    return Plan(
        tuple(paths), shapes, tuple(treatments), groups, unmatched, presets,
        multipliers if any(each != 1 for each in multipliers) else (), weight_decay is None,
    )  # fmt: skip


def _check_multipliers(paths, groups, multipliers):
    if multipliers and not any(multipliers):
        raise ValueError(
            f"learning_rate_multipliers freezes all {len(paths)} variables, and nothing would be "
            "trained: narrow the patterns whose factor is 0."
        )
    first: dict = {}
    for path, group, multiplier in zip(paths, groups, multipliers, strict=True):
        other, known = first.setdefault(group, (path, multiplier)) if group else (path, multiplier)
        if known != multiplier:
            raise ValueError(
                f"learning_rate_multipliers gives {other} {known:g} and {path} {multiplier:g}, "
                f"which layer_groups joins in {group}: they share one trust ratio, and one rate. "
                "Give them one factor, or narrow one of the patterns."
            )


def _all_of(found: Mapping[str, frozenset[int]]) -> frozenset[int]:
    return frozenset().union(*found.values())


def _first(found: dict[str, frozenset[int]], given: Mapping) -> dict:
    """Position -> the first pattern that finds it, and what is given for that."""
    return {i: (pattern, given[pattern]) for pattern, hits in reversed(found.items()) for i in hits}
