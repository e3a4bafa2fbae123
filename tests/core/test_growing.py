"""A batch that grows: closed forms, the schedule that it stands for, and the noisy quadratic."""

import dataclasses
import math

import numpy as np
import pytest

from tf_lamb.core import checks, recipes, schedules
from tf_lamb.core.recipes.growing import batch_factors, growing

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("error")]


def base(epochs=40, batch=64, warmup=0.0, **given):
    made = recipes.scale(batch, batch, 0.01, warmup, examples=64000, epochs=epochs)
    return dataclasses.replace(made, **given)


def rates(recipe):
    return recipe.schedule(schedules).value(np, np.arange(recipe.train_steps))


def updates(relative):
    """Steps in parts of those of the recipe, where the batch may grow without end."""
    return np.mean(1 / batch_factors(np, relative, np.inf))


def test_closed_forms_of_the_saving():
    done = np.linspace(0, 1, 1_000_001)[:-1]
    assert updates(1 - done) == pytest.approx(2 / 3, abs=1e-5)  # halvings of a linear decay
    quarter = np.cos(np.pi / 2 * done)  # the bound, and what doublings make of it
    assert np.mean(quarter) == pytest.approx(2 / np.pi, abs=1e-5)
    halved = [2 / np.pi * np.arccos(2.0**-j) for j in range(30)]
    parts = np.diff([*halved, 1.0])
    assert updates(quarter) == pytest.approx(sum(p / 2**j for j, p in enumerate(parts)), abs=1e-5)


def test_a_linear_decay_saves_a_third_and_says_so():
    grown = growing(base(epochs=1000), 64 * 2**6)
    assert grown.train_steps / 1_000_000 == pytest.approx(2 / 3 + 4**-6 / 3, abs=1e-4)
    assert "33.3% fewer; no batch that grows can save more than 1 - mean(rate / peak) = 50.0%" in (
        str(grown)
    )


@pytest.mark.parametrize(
    ("boundaries", "begin_with"),
    [((100, 203, 300), {32: 0.5}), ((100, 300, 303), None), ((100, 103), None)],
    ids=["just after a stage begins", "two in an update", "within the first update"],
)
def test_no_boundary_is_lost(boundaries, begin_with):
    given = {"decay": "multi_step", "decay_rate": 0.1, "boundaries": boundaries, "optimizer": "SGD"}
    recipe = dataclasses.replace(base(**given), train_steps=400)
    grown = growing(recipe, 512, begin_with=begin_with)
    assert grown.stages[-1].batch_size == 512
    assert rates(grown)[-1] == pytest.approx(512 / 64 * rates(recipe)[-1])


@pytest.mark.parametrize(
    ("optimizer", "power", "begin_with"),
    [
        ("LAMB", 0.5, None), (None, 0.5, None), ("SGD", 1.0, None),
        ("LAMB", 0.5, {16: 0.04, 32: 0.1}),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"warmup_steps": 1000},
        {"warmup_steps": 1000, "handover": "drop"},
        {"power": 2.0, "end_learning_rate": 1e-4},
        {"decay_steps": 60000, "warmup_steps": 1000, "end_learning_rate": 1e-4, "power": 4.0},
        {"decay": "multi_step", "boundaries": (9000, 20000, 30000), "decay_rate": 0.1},
        {"decay": "multi_step", "boundaries": tuple(range(999, 40000, 999)), "decay_rate": 0.9},
    ],
)
def test_every_rate_is_that_of_the_recipe_at_these_examples(given, optimizer, power, begin_with):
    recipe = base(optimizer=optimizer, **given)
    grown = growing(recipe, 2048, begin_with=begin_with)
    batches = np.repeat([s.batch_size for s in grown], [s.train_steps for s in grown])
    begun = (np.cumsum(batches) - batches) / recipe.batch_size  # in steps of the recipe
    k = batches / recipe.batch_size
    expected = k**power * recipe.schedule(schedules).value(np, begun)
    # A stage has whole steps: its rate may be that of one of them before; a jump may be one off.
    before = k**power * recipe.schedule(schedules).value(np, np.maximum(begun - k, 0))
    wrong = np.abs(rates(grown) - expected) > np.abs(before - expected) + 1e-9
    assert wrong.sum() <= len(recipe.boundaries)
    assert list(k) == sorted(k) and k[0] == (0.25 if begin_with else 1) and k[-1] == 32
    halved = recipe.schedule(schedules).value(np, begun) / recipe.learning_rate
    settled = begun >= recipe.warmup_steps
    assert np.all(k[settled] <= (1 + 1e-9) / np.maximum(halved[settled], 1e-9))
    assert 0 <= grown.examples_seen / recipe.examples_seen - 1 < 0.002


def test_a_small_beginning():
    recipe = base(batch=256, warmup=2.0)
    grown = growing(recipe, 256, begin_with={64: 0.03, 128: 0.1})
    assert [(s.batch_size, s.train_steps) for s in grown] == [(64, 1200), (128, 1400), (256, 9000)]
    # Warmup is 500 steps of 256, of which the first stage has 300.
    first, second, third = grown
    assert (first.warmup_steps, second.warmup_steps, third.warmup_steps) == (1200, 400, 0)
    assert first.learning_rate == pytest.approx(0.01 * 300 / 500 / 2)
    assert second.initial_learning_rate == pytest.approx(0.01 * 300 / 500 / math.sqrt(2))
    assert second.learning_rate == pytest.approx(0.01 / math.sqrt(2))
    assert rates(third)[0] == pytest.approx(rates(recipe)[1000])


def test_no_batch_is_above_the_noise_scale():
    assert growing(base(), 4096, noise_scale=300).stages[-1].batch_size == 256
    assert growing(base(), 300).stages == growing(base(), 4096, noise_scale=300).stages


def test_a_larger_batch_is_not_begun_for_fewer_than_four_updates():
    # 16 times the batch would begin with 62 steps of the recipe left, which is less than 4 x 16.
    last = growing(base(epochs=1), 64000).stages[-1]
    assert (last.batch_size, last.train_steps) == (64 * 8, 16)
    small = growing(base(epochs=1), 64000, begin_with={32: 0.2})
    assert (small.stages[-1].batch_size, small.stages[-1].train_steps) == (64 * 8, 16)


def test_accumulation_of_what_does_not_fit():
    grown = growing(base(), 512)
    begins = np.cumsum([0, *(stage.train_steps for stage in grown)])
    assert grown.accumulation(64) == {0: 1, begins[1]: 2, begins[2]: 4, begins[3]: 8}
    assert grown.accumulation(100) == grown.accumulation(64)  # a micro-batch divides the batch
    assert grown.accumulation(200) == {0: 1, begins[2]: 2, begins[3]: 4}
    assert grown.accumulation(512) == {0: 1}
    shrinking = dataclasses.replace(grown, stages=(base(), base(batch=32)))
    assert shrinking.accumulation(2) == {0: 32}


def test_an_optimizer_takes_the_accumulation_of_a_small_beginning():
    recipe = recipes.scale(64, 64, 0.01, 0.0, examples=64000, epochs=1)
    grown = growing(recipe, 256, begin_with={25: 0.1, 32: 0.2})
    counts = grown.accumulation(8)
    assert list(counts.values()) == [5, 8, 16, 32]  # 25 takes 5, and 32 alone would take 4
    assert checks.accumulation("steps", counts) == counts


def test_it_prints_its_arithmetic():
    text = str(growing(base(epochs=1, weight_decay=0.1), 128))
    assert text.splitlines()[:4] == [
        "Square-root scaling with a batch that grows: 500 + 250 = 750 steps",
        "  batch  updates  warmup steps  examples  rate from         to",
        "     64      500             0    32,000       0.01    0.00501",
        "    128      250             0    32,000   0.007071  2.828e-05",
    ]
    assert "  weight decay = 0.1" in text.splitlines()


@pytest.mark.parametrize("most", [4, 16, 64])
def test_the_noisy_quadratic_ends_at_the_same_loss(most):
    """Plain SGD: the moments of every coordinate are known exactly, so there are no seeds."""
    curvature = np.geomspace(1e-3, 1.0, 200)

    def final_loss(recipe):
        second = np.full(200, 1.0)
        batches = np.repeat([s.batch_size for s in recipe.stages],
                            [s.train_steps for s in recipe.stages])  # fmt: skip
        for lr, batch in zip(rates(recipe), batches, strict=True):
            second = (1 - lr * curvature) ** 2 * second + lr**2 * curvature * 10 / batch
        return float(curvature @ second / 2)

    recipe = base(epochs=20, batch=64, learning_rate=0.1, optimizer="SGD")
    grown = growing(recipe, 64 * most)
    assert grown.train_steps < 0.7 * recipe.train_steps
    assert final_loss(grown) == pytest.approx(final_loss(recipe), rel=0.01)
    undecayed = dataclasses.replace(recipe, decay="constant")
    assert final_loss(undecayed) > 1.1 * final_loss(recipe)


def test_a_staged_recipe_cannot_grow():
    with pytest.raises(TypeError, match="one stage can grow, and this is a StagedRecipe"):
        growing(recipes.published("bert_mixed_batch"), 65536)


@pytest.mark.parametrize(
    ("given", "arguments", "said"),
    [
        ({}, {"largest_batch": 100}, "is twice that of the recipe: pass a largest_batch"),
        ({}, {"largest_batch": 512, "noise_scale": 80}, "No batch between 64 and 80"),
        ({"examples": 500}, {"largest_batch": 4096}, "larger than all 500 examples"),
        ({"end_learning_rate": 0.0051}, {"largest_batch": 512}, "never falls to half of its peak"),
        (
            {"decay": "multi_step", "boundaries": (39995,), "decay_rate": 0.1},
            {"largest_batch": 512},
            "never falls to half of its peak, where the batch would double, with 8 steps left",
        ),
        ({}, {"largest_batch": 60, "begin_with": {32: 0.3}}, "No batch between 64 and 60"),
        ({}, {"largest_batch": 512, "begin_with": {32: 0.3, 16: 0.5}}, "may not shrink"),
        ({}, {"largest_batch": 512, "begin_with": {128: 0.3}}, "may not shrink"),
        ({}, {"largest_batch": 512, "begin_with": {16: 0.5, 32: 0.3}}, "let them rise"),
        ({}, {"largest_batch": 512, "begin_with": {16: 30}}, "in (0, 1), but it is 30"),
        ({}, {"largest_batch": 512, "begin_with": [16]}, "such as {64: 0.03}, and not [16]"),
        ({}, {"largest_batch": 512, "begin_with": {16: 0.9999999}}, "leaves no step to the batch"),
        (
            {"warmup_steps": 1000, "handover": "drop"},
            {"largest_batch": 512, "begin_with": {32: 0.01}},
            "within the warmup of 1,000 steps, after which this recipe's rate drops",
        ),
        ({}, {"largest_batch": "512"}, "largest_batch must be a whole number"),
    ],
)
def test_bad_input_is_one_sentence(given, arguments, said):
    with pytest.raises((TypeError, ValueError)) as caught:
        growing(base(**given), **arguments)
    assert said in str(caught.value)


def test_a_stage_that_ends_with_the_warmup_rises_as_the_recipe_does():
    """The decay that follows at once is no part of it."""
    recipe = recipes.scale(1024, 256, 0.1, 5, 65536, 15, rule="linear", decay=(5, 10, 40 / 3))
    grown = growing(recipe, 8192)
    steps = np.arange(recipe.warmup_steps, dtype="float64")
    wanted, found = (each.schedule(schedules).value(np, steps) for each in (recipe, grown))
    np.testing.assert_allclose(found, wanted, rtol=1e-9)
