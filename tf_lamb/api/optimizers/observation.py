"""Trust ratios on show: what a step leaves of each, and what a host reads of it."""

import math
from typing import Any, NamedTuple

from tf_lamb.api.optimizers.settings import RatioSettings
from tf_lamb.api.wrappers import unwrapped


class Observation(NamedTuple):
    """What one step made of one variable.

    Numbers are None where the variable has no ratio, and before its first step. A layer of several
    variables is reported under each of them; where each slice of a variable is a layer, the
    numbers are the means over its slices.

    Attributes:
        path: the variable.
        layer: equal for the variables that share a ratio.
        joined: the name of the layer, if the variable shares it.
        ratios: how many the variable has: 1, the number of its slices, or 0 if it is excluded.
        weight_norm: |w|, before the step.
        update_norm: |u|, what the ratio divides by.
        trust_ratio: the ratio, within its bounds.
        clipped: how many ratios a bound made other than they were.
    """

    path: str
    layer: int
    joined: str
    ratios: int
    weight_norm: float | None = None
    update_norm: float | None = None
    trust_ratio: float | None = None
    clipped: int = 0


NORMS_AND_RATIO = ("weight_norm", "update_norm", "trust_ratio")


def short(number) -> str:
    """A number in three digits, for a table."""
    return "-" if number is None else f"{number:.3g}"


def summary(xp, weight_norm, update_norm, ratio, clipped):
    """The four scalars of a layer, or of all slices of a variable: three means and a count."""
    count = math.prod(ratio.shape)
    clipped = xp.sum(xp.where(clipped, 1.0, 0.0))
    if count == 1:
        return *(xp.reshape(x, ()) for x in (weight_norm, update_norm, ratio)), clipped
    return *(xp.sum(x) / count for x in (weight_norm, update_norm, ratio)), clipped


class Vectors:
    """By variable, a tuple of the vector that shows its ratio, or an empty one.

    A class, so that no host takes the variables for state of the optimizer: what is on show is
    in no checkpoint.
    """

    def __init__(self, by_variable):
        self.by_variable = tuple(by_variable)


class Observing:
    """Mixed into the optimizers of both doors; all but what touches an array.

    The host gives `_vector_beside(variable, name)`, which makes a vector of four numbers, all -1,
    and `_fetch(vectors)`, which reads many as a list of lists.
    """

    name: str
    _settings: Any
    _plan: Any
    _slots: Any
    _vector_beside: Any
    _fetch: Any
    _observing = False
    _observed: Vectors | None = None

    def has_trust_ratios(self) -> bool:
        """Whether its rule has any."""
        return isinstance(self._settings, RatioSettings)

    def observe_trust_ratios(self):
        """Has every step from now on leave its trust ratios where `trust_ratios` reads them.

        Call it before the step is traced; `TrustRatios` does so for `fit`. It costs a vector of
        four numbers for each variable, which no checkpoint holds.

        Returns:
            Whether this is new, so that a step traced before has to be traced anew.

        Raises:
            TypeError: for an optimizer without trust ratios.

        Example:

        >>> import tensorflow as tf, tf_lamb
        >>> variable = tf.Variable([3.0, 4.0])
        >>> optimizer = tf_lamb.LAMB(0.1)
        >>> optimizer.observe_trust_ratios()
        True
        >>> _ = optimizer.apply_gradients([(tf.constant([0.0, 2.0]), variable)])
        >>> (seen,) = optimizer.trust_ratios()
        >>> print(f"|w| = {seen.weight_norm:.1f}, ratio = {seen.trust_ratio:.3f}")
        |w| = 5.0, ratio = 5.000
        """
        if not self.has_trust_ratios():
            raise TypeError(
                f"{self.name} has no trust ratios to show: train with LAMB or LARS, or leave "
                "TrustRatios out."
            )
        fresh, self._observing = not self._observing, True
        if fresh and getattr(self, "_slots", None) is not None:
            self._make_observed()
        return fresh

    def trust_ratios(self):
        """Reads the trust ratios of the latest step: waits for the device.

        Returns:
            An `Observation` a variable, in the order of the build.

        Raises:
            ValueError: before the optimizer observes and is built.
        """
        if self._observed is None:
            raise ValueError(
                f"{self.name} has no trust ratios on show: call observe_trust_ratios() before the "
                "first step, and train a step."
            )
        vectors = self._observed.by_variable
        values = iter(self._fetch(self._observed_variables))
        return [
            unseen._replace(**_named(next(values))) if own else unseen
            for unseen, own in zip(self._unseen(vectors), vectors, strict=True)
        ]

    def _unseen(self, vectors):
        """The observations without their numbers."""
        plan = self._plan
        first: dict = {}
        for i, (path, treatment, group, own) in enumerate(
            zip(plan.paths, plan.treatments, plan.groups, vectors, strict=True)
        ):
            view, axes = treatment.view or (), treatment.axes or ()
            slices = math.prod(size for axis, size in enumerate(view) if axis not in axes)
            layer = first.setdefault(group or i, i)
            yield Observation(path, layer, group, slices if own else 0)

    def _make_observed(self):
        """Called at the end of the build, and by whoever begins to observe after it."""
        if not self._observing:
            return
        plan = zip(self._plan.paths, self._plan.treatments, self._slots, strict=True)
        self._observed = Vectors(
            (self._vector_beside(slots[0], f"{path.replace('/', '_')}_trust_ratio"),)
            if slots and treatment.adapt
            else ()
            for path, treatment, slots in plan
        )

    def _observed_of(self, indices):
        """By variable, as in `Vectors`; an empty list if nothing is observed."""
        return [self._observed.by_variable[i] for i in indices] if self._observed else []

    @property
    def _observed_variables(self):
        vectors = self._observed.by_variable if self._observed else ()
        return [vector for own in vectors for vector in own]


def _named(values):
    *numbers, clipped = values
    if clipped < 0:  # as it was made: the variable has seen no step
        return {}
    return {**dict(zip(NORMS_AND_RATIO, numbers, strict=True)), "clipped": int(clipped)}


def starts_to_observe(optimizer) -> bool:
    """Has it observe if it has trust ratios; whether a step must be traced anew for that."""
    return optimizer.has_trust_ratios() and optimizer.observe_trust_ratios()


def observed(optimizer):
    """The optimizer inside its wrappers; raises `TypeError` if it has no trust ratios to show."""
    inner = unwrapped(optimizer)
    if not isinstance(inner, Observing):
        raise TypeError(
            "TrustRatios shows the trust ratios of tf_lamb's LAMB and LARS, not those of "
            f"{type(inner).__module__}.{type(inner).__qualname__}: compile with one of the two, "
            "or leave TrustRatios out."
        )
    return inner
