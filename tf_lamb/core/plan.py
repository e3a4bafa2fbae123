"""Makes the plan of an optimizer: one `Treatment` for each variable, from the user's patterns."""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tf_lamb.core import layouts
from tf_lamb.core.patterns import (
    PRESETS,
    aliases,
    exact_pattern,
    is_preset,
    joined_layers,
    model_name,
    search,
    unique_names,
)

# A variable whose root mean square is below this counts as near zero. A trust ratio makes its steps
# as small as its weights. Kernels usually start at a root mean square of about 0.02, and LayerScale
# weights at 1e-6 to 1e-4.
NEAR_ZERO = 1e-3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Treatment(layouts.Layout):
    """Holds what the plan decides for one variable: its layout and its weight decay.

    The user's `treatments` argument has the same name, but is only one input of this decision.

    Attributes:
        decay: The weight decay; 0.0 for a variable without decay. If decay follows a schedule, this
            is the factor of the scheduled value: 1.0 or 0.0.
    """

    decay: float

    def stacked(self, count: int, shape: Sequence[int]) -> "Treatment":
        """Returns the treatment of several such variables that are stacked along a new first axis.

        No norm runs over the new axis, so that each variable keeps its own trust ratio.

        Args:
            count: How many variables are stacked.
            shape: The shape of one variable.
        """
        axes = range(len(self.view or shape)) if self.axes is None else self.axes
        return dataclasses.replace(
            self,
            split_shape=self.split_shape and (count, *self.split_shape),
            order=self.order and (0, *(axis + 1 for axis in self.order)),
            view=self.view and (count, *self.view),
            axes=tuple(axis + 1 for axis in axes),
        )


@dataclasses.dataclass(frozen=True)
class Layer:
    """Holds the variables that share a trust ratio: one variable, unless the user joins several.

    Attributes:
        members: The positions of the variables in the list that `Plan.layers` was called with.
        paths: The paths of the variables, with a number where several variables have one path.
        treatments: The `Treatment` of each variable.
        number: A number that no other layer of the model has.
        may_lack_gradient: For each variable, whether it may have no gradient in an update. An
            update leaves such a variable as it is if its accumulated gradient is all zeros.
        multiplier: The factor by which the learning rate of the layer is multiplied. Defaults to 1.
    """

    members: tuple[int, ...]
    paths: tuple[str, ...]
    treatments: tuple[Treatment, ...]
    number: int
    may_lack_gradient: tuple[bool, ...]
    multiplier: float = 1.0

    @property
    def may_rest(self) -> bool:
        """Whether all variables of the layer may be without a gradient in an update."""
        return all(self.may_lack_gradient)

    def rate(self, lr):
        """Returns the layer's learning rate.

        There is no multiplication by a multiplier of 1, because it would add an operation to a
        compiled step.

        Args:
            lr: The learning rate of the optimizer.
        """
        return lr if self.multiplier == 1 else self.multiplier * lr


def paths_of(layers: Iterable[Layer]) -> list[str]:
    """Returns the paths of all variables of some layers.

    The order is that in which the variables were passed to `Plan.layers`.

    Args:
        layers: All layers that one call of `Plan.layers` returned.
    """
    pairs = (pair for layer in layers for pair in zip(layer.members, layer.paths, strict=True))
    return [path for _, path in sorted(pairs)]


@dataclasses.dataclass(frozen=True)
class Plan:
    """Holds the treatment of each variable of an optimizer.

    All sequences are in the order of the variables that the optimizer was built for. A position is
    an index in this order.

    Attributes:
        paths: The path of each variable.
        shapes: The shape of each variable.
        treatments: The `Treatment` of each variable.
        groups: For each variable that the user joins with others to one layer, the name of that
            layer; "" for every other variable.
        unmatched: The user's patterns that match no variable.
        multipliers: For each variable the factor of its learning rate; empty if all are 1.
        follows_schedule: Whether weight decay follows a schedule.
        near_zero: The positions of the variables whose weights are near zero, so that a trust ratio
            makes their steps too short.
        overwritten: The positions of the variables with Keras's `overwrite_with_gradient`, such as
            the scales of float8 layers. The "gradient" of such a variable is its next value.
    """

    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    treatments: tuple[Treatment, ...]
    groups: tuple[str, ...]
    unmatched: tuple[str, ...]
    multipliers: tuple[float, ...] = ()
    follows_schedule: bool = False
    near_zero: frozenset[int] = frozenset()
    overwritten: frozenset[int] = frozenset()

    @functools.cached_property
    def frozen(self) -> frozenset[int]:
        """The positions of the variables that are in `overwritten` or have a learning rate of 0."""
        return self.overwritten | {
            i for i, multiplier in enumerate(self.multipliers) if multiplier == 0
        }

    @functools.cached_property
    def _numbers(self) -> tuple[int, ...]:
        """The `Layer.number` of each variable: how many variables before it are not overwritten.

        Positions are not used as numbers, because the positions of the overwritten variables may
        change when a model is saved and loaded.
        """
        is_counted = [int(i not in self.overwritten) for i in range(len(self.paths))]
        return (0, *itertools.accumulate(is_counted))[:-1]

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The paths; a path that several variables share gets a number, as in `path#1of2`."""
        return tuple(unique_names(self.paths))

    def layers(
        self, indices: Iterable[int], may_lack_gradient: Iterable[int] = ()
    ) -> tuple[Layer, ...]:
        """Returns the layers of some variables.

        Args:
            indices: The positions of the variables in the plan.
            may_lack_gradient: The positions in the plan of the variables that may have no gradient
                in an update. Defaults to none.
        """
        members_by_group: dict = {}
        may_lack_gradient = set(may_lack_gradient)
        for position, index in enumerate(indices):
            members_by_group.setdefault(self.groups[index] or index, []).append((position, index))
        return tuple(
            Layer(
                tuple(position for position, _ in pairs),
                tuple(self.names[index] for _, index in pairs),
                tuple(self.treatments[index] for _, index in pairs),
                self._numbers[pairs[0][1]],
                tuple(index in may_lack_gradient for _, index in pairs),
                self.multipliers[pairs[0][1]] if self.multipliers else 1.0,
            )
            for pairs in members_by_group.values()
        )

    def unmatched_warning(self) -> str | None:
        """Returns the warning for patterns that match no variable, or None."""
        if not self.unmatched:
            return None
        patterns = list(map(repr, self.unmatched))
        if len(patterns) == 1:
            effect = f"No variable matches the pattern {patterns[0]}: it has no effect. "
        else:
            lines = "".join(f"\n  {pattern}" for pattern in patterns)
            effect = f"No variable matches the patterns below: they have no effect.{lines}\n"
        examples = ", ".join(map(repr, self.paths[:3]))
        return (
            f"{effect}Patterns are searched in paths such as {examples}; "
            "`tf_lamb.describe(model)` shows them all."
        )

    def with_near_zero(self, rms_by_position: Mapping[int, float]) -> "Plan":
        """Returns a copy of the plan that records which variables are near zero.

        Biases and offsets of normalizations are left out, because they start near zero in every
        model. Variables that are joined to share one trust ratio are left out unless all of them
        are near zero.

        Args:
            rms_by_position: Position of a variable in the plan -> its root mean square, for each
                variable with layer adaptation.
        """
        small_positions = {i for i, rms in rms_by_position.items() if rms < NEAR_ZERO}
        moving_groups = {self.groups[i] for i in rms_by_position if i not in small_positions} - {""}
        candidates = (i for i in small_positions if self.groups[i] not in moving_groups)
        near_zero_positions = frozenset(
            i for i in candidates if not self.paths[i].endswith(("bias", "beta"))
        )
        return dataclasses.replace(self, near_zero=near_zero_positions)

    def near_zero_warning(
        self, excluded: Sequence[str] = (), keeps_norm: bool = False
    ) -> str | None:
        """Returns the warning for variables that are near zero, or None if there are none.

        Args:
            excluded: The patterns of the variables that are now excluded from layer adaptation. The
                warning suggests a longer list, which also has the variables near zero. Defaults to
                none.
            keeps_norm: Whether a step leaves the norm of a layer as it is. Defaults to False.
        """
        if not self.near_zero:
            return None
        positions = sorted(self.near_zero)
        names = ", ".join(repr(self.names[i]) for i in positions[:3])
        names += f" and {len(positions) - 3} more" if len(positions) > 3 else ""
        suggested_patterns = ", ".join(
            map(repr, [*excluded, *dict.fromkeys(map(self._pattern_of, positions))])
        )
        if keeps_norm:
            effect = (
                "A constant norm keeps these as short as they are, or as their first step makes "
                "them, unless others are loaded now. Let them grow: "
            )
        else:
            effect = (
                "A trust ratio makes a step as short as its weights are, so these move late, or "
                "never, unless others are loaded now. Let them move without one: "
            )
        return (
            f"At or near zero: {names}. {effect}"
            f"exclude_from_layer_adaptation=[{suggested_patterns}]."
        )

    def _pattern_of(self, position: int) -> str:
        """Returns a short pattern with which the user can exclude a variable near zero.

        The pattern is a preset, such as "norm_and_bias", if one matches the variable. Otherwise it
        is a regex that, among the variables with layer adaptation, matches only those near zero.

        Args:
            position: The position of the variable in the plan.
        """
        for preset, matches_preset in PRESETS.items():
            if matches_preset(self.paths[position], self.shapes[position]):
                return preset
        name = self.paths[position].rpartition("/")[2]
        adapted_positions = (
            other_position
            for other_position, treatment in enumerate(self.treatments)
            if treatment.adapt and other_position not in self.near_zero
        )
        if not any(name in self.paths[other_position] for other_position in adapted_positions):
            return f"{re.escape(name)}$"
        # The pattern leaves out the name of the model, because Keras numbers the models of a
        # process: the next one may be `sequential_1`.
        without_model = self.names[position].removeprefix(model_name(self.paths))
        is_ambiguous = "#" in without_model or without_model in self.paths
        return exact_pattern(self.names[position] if is_ambiguous else without_model)

    def table(self) -> str:
        """Returns the plan as a table: a line for each variable, then totals by treatment."""
        parameter_counts = [math.prod(shape) for shape in self.shapes]
        rate_header = ("rate",) if self.multipliers else ()
        multipliers = self.multipliers or itertools.repeat(None)
        variable_cells = list(map(self._cells, self.treatments, multipliers))
        rows = [("variable", "parameters", "decay", "adapted", *rate_header, "layer")]
        for path, count, cells, treatment, group in zip(
            self.names, parameter_counts, variable_cells, self.treatments, self.groups, strict=True
        ):
            note = f"joined in {group}" if group else treatment.description
            note = "set by its layer" if len(rows) - 1 in self.overwritten else note
            near_zero = "near 0" if len(rows) - 1 in self.near_zero else ""
            rows.append((path, f"{count:,}", *cells, ", ".join(filter(None, (note, near_zero)))))
        rows.append(("",) * len(rows[0]))
        totals: dict = {}
        for count, cells in zip(parameter_counts, variable_cells, strict=True):
            totals.setdefault(cells, []).append(count)
        for cells, group_counts in totals.items():
            label = f"{len(group_counts)} variable{'s' if len(group_counts) != 1 else ''}"
            rows.append((label, f"{sum(group_counts):,}", *cells, ""))
        width = max(len(row[0]) for row in rows)
        rate_format = "{:>7}  " * len(rate_header)
        format_row = f"{{:{width}}}  {{:>12}}  {{:>10}}  {{:>7}}  {rate_format}{{}}".format
        return "\n".join(format_row(*row).rstrip() for row in rows)

    def _cells(self, treatment: Treatment, multiplier: float | None) -> tuple[str, ...]:
        """Returns the cells of the table that show a treatment and the factor of a learning rate.

        Args:
            treatment: The treatment.
            multiplier: The factor; None if the table has no column for it.
        """
        decay = "schedule" if self.follows_schedule else f"{treatment.decay:g}"
        cells = decay if treatment.decay else "-", "yes" if treatment.adapt else "no"
        if multiplier is None:
            return cells
        return *cells, f"x {multiplier:.3g}" if multiplier else "frozen"


def plan_for(
    paths: Sequence[str],
    shapes: Sequence[Sequence[int]],
    *,
    weight_decay: float | None = 0.0,
    exclude_from_weight_decay: Sequence[str] | None = None,
    exclude_from_layer_adaptation: Sequence[str] | None = None,
    excluded_by_identity: Sequence[bool] = (),
    overwritten: Sequence[bool] = (),
    treatments: Mapping[str, Mapping[str, Any]] | None = None,
    layout: Callable[[layouts.Variable], layouts.Layout] = layouts.slices,
) -> Plan:
    """Makes the plan of an optimizer from the paths of its variables and the user's patterns.

    A pattern is searched (`re.search`) in the path of each variable. If the paths begin with the
    name of the model, it is also searched in the path without this name.

    Args:
        paths: The path of each variable, in the order in which the optimizer is built for them.
        shapes: The shape of each variable.
        weight_decay: The decay of the variables that are not excluded. None means that it follows a
            schedule. Defaults to 0.0.
        exclude_from_weight_decay: Patterns of the variables without weight decay, or None.
        exclude_from_layer_adaptation: Patterns of the variables without layer adaptation, such as a
            trust ratio. None means the variables without weight decay, except those with "join".
        excluded_by_identity: For each variable, whether the user excluded it from weight decay by
            passing the variable itself, not a pattern. Defaults to an empty sequence: none.
        overwritten: For each variable, whether its "gradient" is its next value, as in
            `Plan.overwritten`. Patterns have no effect on such a variable. Defaults to an empty
            sequence: none.
        treatments: The user's argument, {pattern: {key: value}}. If several patterns that match a
            variable set the same key, the first pattern counts. The variables of one Keras layer
            for which "join" is True become one layer, with one trust ratio, except those that match
            `exclude_from_layer_adaptation`. Defaults to None.
        layout: The function in `core/layouts.py` for the optimizer. Defaults to `slices`.

    Returns:
        The plan.

    Raises:
        ValueError: if all variables are frozen, if the variables with "join" cannot share a trust
            ratio, or if a setting in `treatments` does not fit the shape of a variable.
    """
    names_and_shapes = tuple(zip(aliases(paths), shapes, strict=True))
    patterns_by_argument = {
        "exclude_from_weight_decay": exclude_from_weight_decay,
        "exclude_from_layer_adaptation": exclude_from_layer_adaptation,
        "treatments": treatments,
    }
    matches = {
        argument: search(argument, patterns or (), names_and_shapes)
        for argument, patterns in patterns_by_argument.items()
    }
    undecayed = _matched_positions(matches["exclude_from_weight_decay"])
    undecayed |= {i for i, excluded in enumerate(excluded_by_identity) if excluded}
    unadapted = _matched_positions(matches["exclude_from_layer_adaptation"])
    user_choices = _user_choices(treatments or {}, matches["treatments"], len(paths))
    overwritten_positions = frozenset(
        i for i, is_overwritten in enumerate(overwritten) if is_overwritten
    )
    user_choices = [
        {} if i in overwritten_positions else choices for i, choices in enumerate(user_choices)
    ]
    joined = {
        i for i, choices in enumerate(user_choices) if "join" in choices and choices["join"].value
    }
    # By default the variables without weight decay have no trust ratio. Joined variables are an
    # exception: a bias without decay that is joined with its kernel shares that of the kernel.
    if exclude_from_layer_adaptation is None:
        unadapted = undecayed - joined
    undecayed, unadapted = undecayed | overwritten_positions, unadapted | overwritten_positions
    variables = layouts.make_variables(paths, shapes, unadapted, user_choices)
    groups = joined_layers(paths, joined - unadapted)
    rates = tuple(variable.get("rate", 1.0) for variable in variables)
    _check_joined(variables, groups, rates, overwritten_positions)
    decay = 1.0 if weight_decay is None else weight_decay
    variable_treatments = tuple(
        Treatment(decay=0.0 if i in undecayed else decay, **vars(layout(variable)))
        for i, variable in enumerate(variables)
    )
    unmatched = dict.fromkeys(
        pattern
        for argument, positions_by_pattern in matches.items()
        for pattern, positions in positions_by_pattern.items()
        if not positions and not is_preset(argument, pattern)
    )
    return Plan(
        tuple(paths), tuple(map(tuple, shapes)), variable_treatments, groups, tuple(unmatched),
        rates if any(rate != 1 for rate in rates) else (), weight_decay is None,
        overwritten=overwritten_positions,
    )  # fmt: skip


def _user_choices(treatments, matches, variable_count) -> list[dict[str, layouts.UserChoice]]:
    """Returns, for each variable, what the user's `treatments` argument sets: key -> `UserChoice`.

    If several matching patterns set the same key, the first pattern counts.

    Args:
        treatments: The user's argument, {pattern: {key: value}}.
        matches: Pattern -> the positions of the variables that it matches.
        variable_count: The number of variables.
    """
    user_choices: list[dict] = [{} for _ in range(variable_count)]
    for pattern, positions in matches.items():
        for key, value in treatments[pattern].items():
            for i in positions:
                user_choices[i].setdefault(key, layouts.UserChoice(pattern, value))
    return user_choices


def _check_joined(variables, groups, rates, overwritten_positions):
    """Checks that not all variables are frozen, and that joined variables can share a trust ratio.

    Args:
        variables: The `Variable` objects.
        groups: For each variable that the user joins with others, the name of the joined layer; ""
            for every other variable.
        rates: For each variable the factor of its learning rate; 0 freezes it.
        overwritten_positions: The positions of the variables that are not trained.

    Raises:
        ValueError: if all rates are 0, if a joined variable has "slices", or if joined variables
            have different rates.
    """
    trained_rates = [rate for i, rate in enumerate(rates) if i not in overwritten_positions]
    if trained_rates and not any(trained_rates):
        raise ValueError(
            f"treatments freezes all {len(trained_rates)} variables, and nothing would be trained: "
            "narrow the patterns whose rate is 0."
        )
    first_of_group: dict = {}
    for variable, group, rate in zip(variables, groups, rates, strict=True):
        if group and "slices" in variable.user_choices:
            raise ValueError(
                f"treatments[{variable.user_choices['slices'].pattern!r}] slices {variable.path}, "
                f"which is joined in {group}: a layer is either a slice or several variables. "
                "Narrow one of the patterns."
            )
        first_path, first_rate = (
            first_of_group.setdefault(group, (variable.path, rate)) if group else ("", rate)
        )
        if first_rate != rate:
            raise ValueError(
                f"treatments gives {first_path} the rate {first_rate:g} and {variable.path} "
                f"{rate:g}, and joins them in {group}: they share one trust ratio, and one rate. "
                "Give them one, or narrow one of the patterns."
            )


def _matched_positions(matches: Mapping[str, frozenset[int]]) -> frozenset[int]:
    """Returns the positions of the variables that at least one pattern matches."""
    return frozenset().union(*matches.values())
