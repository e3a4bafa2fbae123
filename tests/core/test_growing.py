"""A batch that grows: closed forms, the schedule that it stands for, and the noisy quadratic."""

import dataclasses

import numpy as np
import pytest

from tf_lamb.core import recipes, schedules
from tf_lamb.core.recipes.growing import growing, multiples

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("error")]


def base(epochs=40, batch=64, warmup=0.0, **given):
    made = recipes.scale(batch, batch, 0.01, warmup, examples=64000, epochs=epochs)
    return dataclasses.replace(made, **given)


def rates(recipe):
    return recipe.schedule(schedules).value(np, np.arange(recipe.train_steps))


def updates(relative):
    """Steps in parts of those of the recipe, where the batch may grow without end."""
    return np.mean(1 / multiples(np, relative, np.inf))


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
    "boundaries",
    [(100, 203, 300), (100, 300, 303), (100, 103)],
    ids=["just after a stage begins", "two in an update", "within the first update"],
)
def test_no_boundary_is_lost(boundaries):
    given = {"decay": "multi_step", "decay_rate": 0.1, "boundaries": boundaries, "optimizer": "SGD"}
    recipe = dataclasses.replace(base(**given), train_steps=400)
    grown = growing(recipe, 512)
    assert grown.stages[-1].batch_size == 512
    assert rates(grown)[-1] == pytest.approx(512 / 64 * rates(recipe)[-1])


@pytest.mark.parametrize(("optimizer", "power"), [("LAMB", 0.5), (None, 0.5), ("SGD", 1.0)])
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
def test_every_rate_is_that_of_the_recipe_at_these_examples(given, optimizer, power):
    recipe = base(optimizer=optimizer, **given)
    grown = growing(recipe, 2048)
    batches = np.repeat([s.batch_size for s in grown], [s.train_steps for s in grown])
    begun = (np.cumsum(batches) - batches) / recipe.batch_size  # in steps of the recipe
    k = batches / recipe.batch_size
    expected = k**power * recipe.schedule(schedules).value(np, begun)
    # A stage has whole steps: its rate may be that of one of them before; a jump may be one off.
    before = k**power * recipe.schedule(schedules).value(np, np.maximum(begun - k, 0))
    wrong = np.abs(rates(grown) - expected) > np.abs(before - expected) + 1e-9
    assert wrong.sum() <= len(recipe.boundaries)
    assert list(k) == sorted(k) and k[0] == 1 and k[-1] == 32
    halved = recipe.schedule(schedules).value(np, begun) / recipe.learning_rate
    settled = begun >= recipe.warmup_steps
    assert np.all(k[settled] <= (1 + 1e-9) / np.maximum(halved[settled], 1e-9))
    assert 0 <= grown.examples_seen / recipe.examples_seen - 1 < 0.002


def test_a_larger_batch_is_not_begun_for_fewer_than_four_updates():
    # 16 times the batch would begin with 62 steps of the recipe left, which is less than 4 x 16.
    last = growing(base(epochs=1), 64000).stages[-1]
    assert (last.batch_size, last.train_steps) == (64 * 8, 16)


def test_accumulation_of_what_does_not_fit():
    grown = growing(base(), 512)
    begins = np.cumsum([0, *(stage.train_steps for stage in grown)])
    assert grown.accumulation(64) == {0: 1, begins[1]: 2, begins[2]: 4, begins[3]: 8}
    assert grown.accumulation(100) == grown.accumulation(64)  # a micro-batch divides the batch
    assert grown.accumulation(200) == {0: 1, begins[2]: 2, begins[3]: 4}
    assert grown.accumulation(512) == {0: 1}
    shrinking = dataclasses.replace(grown, stages=(base(), base(batch=32)))
    assert shrinking.accumulation(2) == {0: 32}


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
    ("given", "largest", "said"),
    [
        ({}, 100, "No batch between 64 and 100 is twice that of the recipe: pass a largest_batch"),
        ({"examples": 500}, 4096, "larger than all 500 examples"),
        ({"end_learning_rate": 0.0051}, 512, "never falls to half of its peak, where"),
        (
            {"decay": "multi_step", "boundaries": (39995,), "decay_rate": 0.1},
            512,
            "never falls to half of its peak, where the batch would double, with 8 steps left",
        ),
        ({}, "512", "largest_batch must be a whole number"),
    ],
)
def test_bad_input_is_one_sentence(given, largest, said):
    with pytest.raises((TypeError, ValueError), match=said):
        growing(base(**given), largest)


def test_a_stage_that_ends_with_the_warmup_rises_as_the_recipe_does():
    """The decay that follows at once is no part of it."""
    recipe = recipes.scale(1024, 256, 0.1, 5, 65536, 15, rule="linear", decay=(5, 10, 40 / 3))
    grown = growing(recipe, 8192)
    steps = np.arange(recipe.warmup_steps, dtype="float64")
    wanted, found = (each.schedule(schedules).value(np, steps) for each in (recipe, grown))
    np.testing.assert_allclose(found, wanted, rtol=1e-9)
