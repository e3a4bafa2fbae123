"""Makes and reads the variables in which a step records its trust ratios.

Each is a vector of four numbers for one weight: the weight's norm, the update's norm, the trust
ratio, and the number of ratios that a bound has changed.
"""

import math
from typing import NamedTuple

from tf_lamb.api.variables import our_optimizer
from tf_lamb.core import rules
from tf_lamb.core.messages import join_words


class Observation(NamedTuple):
    """Holds the norms and the trust ratio of one variable in one step.

    Norms and ratio are None if the variable has no ratio, and before its first step. Variables that
    share a ratio report the same numbers. If each slice of a variable has a ratio, the numbers are
    means over the slices.

    Attributes:
        path: The path of the variable, with a number added if several variables have that path.
        layer: A number that is equal for the variables that share a ratio.
        joined: The name of the layer whose variables share a ratio; empty if this one does not.
        ratios: How many ratios the variable has: 1, the number of its slices, or 0 if it is
            excluded from layer adaptation.
        weight_norm: |w|, before the step.
        update_norm: |u|, the norm by which the ratio divides.
        trust_ratio: The ratio, within its bounds.
        clipped: How many ratios were changed by a bound. Defaults to 0.
    """

    path: str
    layer: int
    joined: str
    ratios: int
    weight_norm: float | None = None
    update_norm: float | None = None
    trust_ratio: float | None = None
    clipped: int = 0


UNSEEN = (-1.0, -1.0, -1.0, -1.0)  # the four numbers before the first step
NORMS_AND_RATIO = ("weight_norm", "update_norm", "trust_ratio")


def optimizers_with_ratios() -> str:
    """Returns the names of the optimizers that always have trust ratios: "LAMB, LANS or LARS"."""
    names = [name for name, rule in rules.ALL.items() if rule.always_has_ratio]
    return join_words(names, "or")


def three_digits(number) -> str:
    """Formats a number with three digits for a table; None becomes "-"."""
    return "-" if number is None else f"{number:.3g}"


def log_distance(ratio: float, median: float) -> float:
    """Computes |log(ratio / median)|.

    It is infinite if the ratio is not finite, or if one of the two is 0 or negative.

    Args:
        ratio: A trust ratio.
        median: The median that it is compared with.
    """
    if not (math.isfinite(ratio) and ratio > 0 and median > 0):
        return math.inf
    return abs(math.log(ratio / median))


def make_vectors(storage, make_vector) -> tuple[tuple, ...]:
    """Makes the variables in which steps record trust ratios.

    Args:
        storage: The `Storage` of a built optimizer.
        make_vector: A function that makes and returns a new variable with the value `UNSEEN`, a
            vector of four numbers. Its arguments are an existing variable, on whose devices the new
            one is placed, and the name of the new one.

    Returns:
        For each weight a tuple with one vector; an empty tuple if the weight has no trust ratio.
    """
    plan, slots = storage.plan, storage.slots
    return tuple(
        (make_vector(slots_of_variable[0], f"{path.replace('/', '_')}_trust_ratio"),)
        if slots_of_variable and treatment.adapt
        else ()
        for path, treatment, slots_of_variable in zip(
            plan.names, plan.treatments, slots, strict=True
        )
    )


def read(plan, vectors, values) -> list[Observation]:
    """Makes the `Observation` of each variable from the four numbers that are recorded for it.

    Args:
        plan: The plan of the optimizer.
        vectors: The result of `make_vectors`.
        values: The four values of each vector, in the order of `vectors`.

    Returns:
        The observations, in the order of the plan.
    """
    first_position: dict = {}
    values, observations = iter(values), []
    for position, (path, treatment, group, vectors_of_variable) in enumerate(
        zip(plan.names, plan.treatments, plan.groups, vectors, strict=True)
    ):
        # The view is the shape in which the rule sees the variable. A norm is over the axes of the
        # view that `axes` names, so each index of the other axes is a slice with its own ratio.
        view = treatment.view if treatment.view and treatment.axes is not None else ()
        slices = math.prod(size for axis, size in enumerate(view) if axis not in treatment.axes)
        layer = first_position.setdefault(group or position, position)
        blank = Observation(path, layer, group, slices if vectors_of_variable else 0)
        observations.append(
            blank._replace(**_observed_fields(next(values))) if vectors_of_variable else blank
        )
    return observations


def _observed_fields(values):
    """Returns the `Observation` fields that a vector holds, as a dict; {} before the first step."""
    *numbers, clipped = values
    if clipped < 0:
        return {}
    return {**dict(zip(NORMS_AND_RATIO, numbers, strict=True)), "clipped": int(clipped)}


def start_observing(optimizer) -> bool:
    """Makes an optimizer record its trust ratios in every later step, if it has any.

    Returns:
        Whether a training step that is already traced has to be traced again.
    """
    return optimizer.has_trust_ratios() and optimizer.observe_trust_ratios()


def optimizer_to_observe(optimizer):
    """Returns the optimizer whose trust ratios `TrustRatios` shows: the one inside all wrappers.

    Raises:
        TypeError: if the innermost optimizer is not one of this package.
    """
    subject = f"shows the trust ratios of tf_lamb's {optimizers_with_ratios()}"
    return our_optimizer(optimizer, "TrustRatios", subject)
