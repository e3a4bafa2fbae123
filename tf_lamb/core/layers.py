"""A layer through a rule: a variable as it is, cut into slices, or joined with others."""

import functools
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod

from tf_lamb.core.plan.plan import Treatment


def step(xp, rule, treatments: Sequence[Treatment], gradients, states, *, lr, t, observe=None):
    """One step of a rule for one layer.

    Args:
        treatments, gradients: of each variable of the layer.
        states: of each variable, its weight and then its slots.
        observe: None, or what a rule with a trust ratio calls once, while it is traced.

    Returns:
        The states after the step.
    """
    if observe:
        rule = functools.partial(rule, observe=observe)
    if len(states) > 1:
        return _joined(xp, rule, treatments, gradients, states, lr=lr, t=t)
    (treatment,), (state,) = treatments, states
    shape = state[0].shape
    if 0 in tuple(shape):  # no norm, and nothing to step
        return [state]
    arrays = [*gradients, *state]
    if treatment.view:
        arrays = [xp.reshape(array, treatment.view) for array in arrays]
    new = rule(
        xp, *arrays, lr=lr, t=t,
        decay=treatment.decay, adapt=treatment.adapt, axes=treatment.axes,
    )  # fmt: skip
    return [[xp.reshape(array, shape) for array in new] if treatment.view else new]


def _joined(xp, rule, treatments, gradients, states, *, lr, t):
    """Rules are elementwise but for their norms, so a layer of several is one long vector."""

    def join(arrays):
        return xp.concatenate([xp.reshape(array, (-1,)) for array in arrays])

    weights = [state[0] for state in states]
    decay = treatments[0].decay
    if any(treatment.decay != decay for treatment in treatments):
        decay = join(
            [each.decay * xp.ones_like(w) for each, w in zip(treatments, weights, strict=True)]
        )
    new = rule(
        xp, join(gradients), *(join(column) for column in zip(*states, strict=True)),
        lr=lr, t=t, decay=decay, adapt=treatments[0].adapt,
    )  # fmt: skip
    ends = accumulate((prod(w.shape) for w in weights), initial=0)
    return [
        [xp.reshape(array[start:end], w.shape) for array in new]
        for w, (start, end) in zip(weights, pairwise(ends), strict=True)
    ]
