"""Four variables, plans of what their layers are, and one step of those in NumPy."""

import functools

import numpy as np

from tf_lamb.core import stacks
from tf_lamb.core import step as core_step
from tf_lamb.core.plan import plan_for
from tf_lamb.core.rules import lamb, lars

PATHS = ("block/dense/kernel", "block/dense/bias", "block/stacked/kernel", "head/kernel")
SHAPES = ((4, 6), (6,), (3, 4, 2), (6, 2))


def plan(
    weight_decay=0.1, undecayed=None, unadapted=None, paths=PATHS, shapes=SHAPES, treatments=None
):
    return plan_for(
        paths, shapes, weight_decay=weight_decay, exclude_from_weight_decay=undecayed,
        exclude_from_layer_adaptation=unadapted,
        treatments=treatments,
    )  # fmt: skip


def problem(seed=0, shapes=SHAPES):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=s) for s in shapes], [rng.normal(size=s) for s in shapes]


def step(plan, rule, slots, weights, gradients):
    """One step of every layer of the plan; returns the new weights."""
    result = list(weights)
    for layer in plan.layers(range(len(weights))):
        states = [
            [weights[i], *(np.zeros_like(weights[i]) for _ in range(slots))] for i in layer.members
        ]
        own = [gradients[i] for i in layer.members]
        made = core_step.apply_rule(np, rule, layer.treatments, own, states, lr=0.1, t=1)
        new = stacks.run_single(np, made)
        for i, state in zip(layer.members, new, strict=True):
            result[i] = state[0]
    return result


RULES = {"lamb": (lamb, 2), "lars": (functools.partial(lars, trust_coefficient=0.1), 1)}
