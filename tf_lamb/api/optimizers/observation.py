"""Trust ratios on show: what a step leaves of each, and what a host reads of it."""

import math
from typing import NamedTuple

from tf_lamb.api.variables import is_ours, unwrapped


class Observation(NamedTuple):
    """The norms and the trust ratio of one variable in one step.

    Numbers are None where the variable has no ratio, and before its first step. A layer of several
    variables is reported under each of them; where each slice of a variable is a layer, the
    numbers are the means over its slices.
    """

    path: str  # with its number where other variables have it, too
    layer: int  # equal for the variables that share a ratio
    joined: str  # the name of the layer, if the variable shares it
    ratios: int  # how many the variable has: 1, the number of its slices, or 0 if it is excluded
    weight_norm: float | None = None  # |w|, before the step
    update_norm: float | None = None  # |u|, what the ratio divides by
    trust_ratio: float | None = None  # within its bounds
    clipped: int = 0  # how many ratios a bound made other than they were


UNSEEN = (-1.0, -1.0, -1.0, -1.0)  # a vector before its variable's first step
NORMS_AND_RATIO = ("weight_norm", "update_norm", "trust_ratio")


def short(number) -> str:
    """A number in three digits, for a table."""
    return "-" if number is None else f"{number:.3g}"


def distance(ratio: float, median: float) -> float:
    """The factor between a ratio and the median; infinite for a ratio of 0 or a non-finite one."""
    if not (math.isfinite(ratio) and ratio > 0 and median > 0):
        return math.inf
    return abs(math.log(ratio / median))


def vectors(storage, vector_like) -> tuple[tuple, ...]:
    """Of each variable a tuple of the vector that shows its ratio; empty where it has none."""
    plan, slots = storage.plan, storage.slots
    return tuple(
        (vector_like(own[0], f"{path.replace('/', '_')}_trust_ratio"),)
        if own and treatment.adapt
        else ()
        for path, treatment, own in zip(plan.names, plan.treatments, slots, strict=True)
    )


def read(plan, shown, values) -> list[Observation]:
    """Each variable's `Observation`, of the vectors that show ratios and what they hold."""
    first: dict = {}
    values, found = iter(values), []
    for i, (path, treatment, group, own) in enumerate(
        zip(plan.names, plan.treatments, plan.groups, shown, strict=True)
    ):
        # A norm runs over `axes` of the view; every index of the other axes is a slice.
        view, axes = treatment.view or (), treatment.axes or ()
        slices = math.prod(size for axis, size in enumerate(view) if axis not in axes)
        layer = first.setdefault(group or i, i)
        unseen = Observation(path, layer, group, slices if own else 0)
        found.append(unseen._replace(**_named(next(values))) if own else unseen)
    return found


def _named(values):
    *numbers, clipped = values
    if clipped < 0:
        return {}
    return {**dict(zip(NORMS_AND_RATIO, numbers, strict=True)), "clipped": int(clipped)}


def starts_to_observe(optimizer) -> bool:
    """Has it observe if it has trust ratios; whether a step must be traced anew for that."""
    return optimizer.has_trust_ratios() and optimizer.observe_trust_ratios()


def observed(optimizer):
    """The optimizer inside its wrappers; raises `TypeError` if it has no trust ratios to show."""
    inner = unwrapped(optimizer)
    if not is_ours(inner):
        raise TypeError(
            "TrustRatios shows the trust ratios of tf_lamb's LAMB and LARS, not those of "
            f"{type(inner).__module__}.{type(inner).__qualname__}: compile with one of the two, "
            "or leave TrustRatios out."
        )
    return inner
