"""Schedules in NumPy: their joints, published numbers, recipes, and what cannot be right."""

import numpy as np
import pytest

from tf_lamb.core import recipes
from tf_lamb.core import schedules as core


def at(schedule, *steps):
    return [float(schedule.value(np, np.float64(step))) for step in steps]


def test_joints_are_exact():
    continuous = core.Warmup(4, core._Polynomial(1.0, 8))
    assert at(continuous, 0, 1, 4, 5, 12, 13) == [0.0, 0.25, 1.0, 0.875, 0.0, 0.0]
    drop = core.Warmup(4, core._Polynomial(1.0, 8), handover="drop")
    assert at(drop, 0, 2, 3, 4, 5, 8) == [0.0, 0.5, 0.75, 0.5, 0.375, 0.0]
    steps = core._MultiStep((2, 4), (1.0, 0.5, 0.25))
    assert at(steps, 0, 1, 2, 3, 4, 9) == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    stages = core.Stages((4, 4), (core._Polynomial(1.0, 4), continuous))
    assert at(stages, 0, 2, 3, 4, 6, 8) == [1.0, 0.5, 0.25, 0.0, 0.5, 1.0]


def test_the_hand_over_of_bert_at_32k():
    """lr 5e-3, 15,625 steps, 3,125 of them warmup: both readings, as published numbers."""
    drop = core.Warmup(3125, core._Polynomial(0.005, 15625), handover="drop")
    shifted = core.Warmup(3125, core._Polynomial(0.005, 12500))
    for step, dropping, continuous in [
        (0, 0.0, 0.0), (1000, 0.0016, 0.0016), (3124, 0.0049984, 0.0049984), (3125, 0.004, 0.005),
        (3126, 0.00399968, 0.0049996), (10000, 0.0018, 0.00225), (15624, 3.2e-07, 4e-07),
    ]:  # fmt: skip
        assert at(drop, step) == pytest.approx([dropping], rel=1e-9)
        assert at(shifted, step) == pytest.approx([continuous], rel=1e-9)


def test_the_hand_over_of_nvidia_phase_1():
    """Of a decay by a square root, as its own code has it."""
    schedule = core.Warmup(2001, core._Polynomial(6e-3, 7038, power=0.5), handover="drop")
    assert at(schedule, 4000) == pytest.approx([0.003942035254], rel=1e-9)
    assert at(schedule, 7037) == pytest.approx([7.151985399e-05], rel=1e-9)


@pytest.mark.parametrize(
    "after",
    [
        core._Exponential(0.1, 10, 0.9),
        core.Warmup(5, core._Constant(0.1)),
        core._MultiStep((3,), (0.1, 0.01)),
    ],
)
def test_a_warmup_may_outlast_what_is_no_end_of_training(after):
    assert core.Warmup(25, after, handover="drop").steps == 25


RECIPES = {
    "untuned LAMB, BERT": ("untuned_lamb_bert", 32768),
    "untuned LAMB, ResNet-50": ("untuned_lamb_resnet50", 8192),
    "LEGW": ("legw_resnet50_lars", 4096),
    "linear scaling": ("linear_resnet50_sgd", 8192),
    "MLPerf, from the middle of warmup": ("mlperf_lamb_bert", 8192),
    "without warmup": ("mlperf_lamb_bert", 4096),
    "two stages": ("bert_mixed_batch",),
    "two stages, by the root": ("nvidia_bert",),
}


def rate_of(recipe, step):
    """As the docstring of `Recipe` says it."""
    if isinstance(recipe, recipes.StagedRecipe):
        first, second = recipe
        begun = step - first.train_steps
        return rate_of(first, step) if begun < 0 else rate_of(second, begun)
    warmup, peak = recipe.warmup_steps, recipe.learning_rate
    if step < warmup:
        return recipe.initial_learning_rate + (peak - recipe.initial_learning_rate) * step / warmup
    if recipe.decay == "multi_step":
        return peak * recipe.decay_rate ** sum(b <= step for b in recipe.boundaries)
    p = step / recipe.train_steps
    if recipe.handover == "continuous":
        p = (step - warmup) / (recipe.train_steps - warmup)
    return recipe.end_learning_rate + (peak - recipe.end_learning_rate) * (1 - p) ** recipe.power


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_its_schedule(name):
    recipe = recipes.published(*RECIPES[name])
    schedule = recipe.schedule(core)
    steps = {0, 1, recipe.train_steps // 3, recipe.train_steps // 2, recipe.train_steps - 1}
    for stage in [recipe] if isinstance(recipe, recipes.Recipe) else recipe:
        joints = (stage.warmup_steps, stage.train_steps, *stage.boundaries)
        steps |= {max(0, joint + d) for joint in joints for d in (-1, 0, 1)}
    for step in sorted(s for s in steps if s < recipe.train_steps):
        assert at(schedule, step) == pytest.approx([rate_of(recipe, step)], rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: core._Polynomial(0.1, 10**30), ValueError, ["steps", "up to 2,147,483,647"]),
        (lambda: core._MultiStep((2, 1), (0.1, 0.2, 0.3)), ValueError, ["boundaries", "(2, 1)"]),
        (lambda: core.Warmup(5, core._Constant(0.1), kind="cubic"), ValueError, ["'cubic'"]),
        (lambda: core.Warmup(5, core._Constant(0.1), handover="x"), ValueError, ["'x'", "'drop'"]),
        (lambda: core.Warmup(5, core._Constant(0.1), kind="exponential"), ValueError, ["start"]),
        (lambda: core.Warmup(11, core._Polynomial(0.1, 10), handover="drop"), ValueError,
         ["11 steps", "10 steps"]),
        (lambda: core.Warmup(11, core._Cosine(0.1, 10), handover="drop"), ValueError, ["11 steps"]),
        (lambda: core._Polynomial(-0.1, 10), ValueError, ["initial_learning_rate", "-0.1"]),
        (lambda: core._Polynomial(float("nan"), 10), ValueError, ["initial_learning_rate", "nan"]),
        (lambda: core._Polynomial(0.1, 0), ValueError, ["steps", "0"]),
        (lambda: core._Cosine(0.1, 10.5), TypeError, ["steps", "10.5"]),
        (lambda: core._MultiStep((1, 2), (0.1, 0.2)), ValueError, ["2 boundaries need 3"]),
        (lambda: core._MultiStep((2, 10**30), (1, 2, 3)), ValueError, ["up to 2,147,483,647"]),
        (lambda: core.Stages((5,), ()), ValueError, ["1 lengths", "0 schedules"]),
        (lambda: core.Stages((2**30,) * 2, (core._Constant(0.1),) * 2), ValueError,
         ["The sum of lengths", "2,147,483,648"]),
        (lambda: core.Warmup(5, "0.1"), TypeError, ["after must be a learning rate or a schedule"]),
        (lambda: core.Stages((5,), (None,)), TypeError, ["schedules[0] must be a learning rate"]),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused(make, error, words):
    with pytest.raises(error) as caught:
        make()
    for word in words:
        assert word in str(caught.value)
