"""Small layers that are updated as one stack take the steps that they take one by one."""

import numpy as np
import pytest

from tf_lamb.core import rules
from tf_lamb.core.plan import plan_for
from tf_lamb.core.stacks import run_single
from tf_lamb.core.step import make_recorder, step, step_stack
from tf_lamb.core.stored import Stored, stack_stored, unstack_stored


class NumPyWithCast:
    """NumPy, with the function that a step needs beside those of a rule."""

    def __getattr__(self, name):
        return getattr(np, name)

    @staticmethod
    def cast(x, dtype):
        return np.asarray(x, dtype)


XP = NumPyWithCast()
SCALARS = {"lr": np.float64(0.1), "t": np.float64(3), "bitcast": None}
STACKABLE = [
    pytest.param(rule, adapt, id=f"{name}-{'adapted' if adapt else 'unadapted'}")
    for name, rule in rules.OURS.items()
    for adapt in rule.stacks_if_adapt
]


def treatment_of(shape, adapt=True, **settings):
    plan = plan_for(
        ["kernel"], [shape], weight_decay=0.1, exclude_from_weight_decay=None,
        exclude_from_layer_adaptation=None if adapt else ["kernel"],
        treatments={"kernel": settings} if settings else None,
    )  # fmt: skip
    return plan.treatments[0]


def layers_of(shape, slot_count):
    """Gradients and `Stored` of three layers whose norms lie far apart."""
    random, scales = np.random.default_rng(0), (1.0, 10.0, 100.0)
    gradients = [scale * random.normal(size=shape) for scale in scales]
    stored = [
        Stored(
            random.normal(size=shape) / scale,
            [np.abs(random.normal(size=shape)) for _ in range(slot_count)],
        )
        for scale in scales
    ]
    return gradients, stored


def arrays_of(stored):
    return [stored.weight, *stored.slots]


def one_by_one(rule, treatment, gradients, stored, observers=(None,) * 3):
    """The new `Stored` of each layer, from a step of its own."""
    steps = [
        step(XP, rule, [treatment], [g], [old], layer_number=0, observe=observe, **SCALARS)
        for g, old, observe in zip(gradients, stored, observers, strict=True)
    ]
    return [run_single(XP, layer_step)[0] for layer_step in steps]


def assert_stack_steps_as_its_layers(rule, treatment, gradients, stored):
    new_stored = run_single(XP, step_stack(XP, rule, treatment, gradients, stored, **SCALARS))
    expected = one_by_one(rule, treatment, gradients, stored)
    for new, alone in zip(new_stored, expected, strict=True):
        for array, expected_array in zip(arrays_of(new), arrays_of(alone), strict=True):
            np.testing.assert_allclose(array, expected_array, rtol=1e-12)


@pytest.mark.parametrize("shape", [(), (5,), (4, 3)], ids=str)
@pytest.mark.parametrize(("rule", "adapt"), STACKABLE)
def test_each_layer_of_a_stack_steps_as_it_does_alone(rule, adapt, shape):
    gradients, stored = layers_of(shape, len(rule.slots))
    assert_stack_steps_as_its_layers(rule.step, treatment_of(shape, adapt), gradients, stored)


@pytest.mark.parametrize("slices", [(0, None), (1, 3), (-1, 2)], ids=str)
def test_layers_of_a_stack_keep_the_ratios_of_their_slices(slices):
    gradients, stored = layers_of((4, 6), 2)
    treatment = treatment_of((4, 6), slices=slices)
    assert_stack_steps_as_its_layers(rules.lamb, treatment, gradients, stored)


def test_a_stack_records_the_ratio_of_each_layer():
    gradients, stored = layers_of((4, 3), 2)

    def observers(recorded):
        vectors = [[(i,)] for i in range(3)]
        return [make_recorder(XP, vector, recorded.__setitem__) for vector in vectors]

    of_stack: dict = {}
    run_single(
        XP,
        step_stack(
            XP, rules.lamb, treatment_of((4, 3)), gradients, stored,
            observers=observers(of_stack), **SCALARS,
        ),
    )  # fmt: skip
    alone: dict = {}
    one_by_one(rules.lamb, treatment_of((4, 3)), gradients, stored, observers(alone))
    assert of_stack.keys() == {0, 1, 2}
    for i, expected in alone.items():
        np.testing.assert_allclose(of_stack[i], expected, rtol=1e-6)


def test_an_adapted_layer_of_adamp_is_not_stacked():
    """Its projection asks for the largest cosine of all channels, that is of all layers."""
    assert rules.OURS["AdamP"].stacks_if_adapt == (False,)
    gradients, stored = layers_of((6, 4), 2)
    gradients[0] -= (
        stored[0].weight * np.sum(gradients[0] * stored[0].weight) / np.sum(stored[0].weight ** 2)
    )
    treatment = treatment_of((6, 4))
    with pytest.raises(AssertionError):
        assert_stack_steps_as_its_layers(rules.adamp, treatment, gradients, stored)


@pytest.mark.parametrize("masters", [None, [np.full((2,), 7.0), np.full((2,), 8.0)]])
def test_an_unstacked_stack_has_the_arrays_of_its_layers(masters):
    stored = [
        Stored(np.full((2,), i), [np.full((2,), 10 + i)], masters and masters[i]) for i in range(2)
    ]
    for new, old in zip(unstack_stored(np, stack_stored(np, stored)), stored, strict=True):
        np.testing.assert_equal((new.weight, new.slots, new.master), tuple(old))
