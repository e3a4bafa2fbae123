"""A tuned baseline at another batch: what moves, by the rules' own formulas."""

import math
import warnings

import pytest

from tf_lamb.core import recipes
from tf_lamb.core.recipes.updates_left import seen_lines

pytestmark = pytest.mark.filterwarnings(
    "error", "ignore:Batch .* leaves .* updates", "ignore:A batch of .* is larger than all"
)
BASELINE = {"examples": 60000, "epochs": 40, "warmup_epochs": 1.0}
SETTINGS = {"weight_decay": 0.02, "beta_2": 0.999, "ema_momentum": 0.99, "batch_norm_momentum": 0.9}


def transfer(batch_size=2048, rate=0.01, **given):
    return recipes.transfer(batch_size, 256, rate, **{**BASELINE, **given})


def test_each_quantity_moves_by_its_rule():
    recipe = transfer(**SETTINGS)
    assert recipe.train_steps == 40 * math.ceil(60000 / 2048) == 1200
    assert recipe.warmup_steps == 120  # a tenth of training; an epoch is 29 steps
    assert recipe.learning_rate == pytest.approx(0.01 * math.sqrt(8), rel=1e-12)
    assert recipe.beta_2 == pytest.approx(0.999**8, rel=1e-12)
    assert recipe.ema_momentum == pytest.approx(0.99**8, rel=1e-12)
    assert recipe.batch_norm_momentum == pytest.approx(0.9**8, rel=1e-12)
    # What is decayed in all of training: rate x decay, summed over the steps.
    before = 0.01 * 0.02 * 40 * math.ceil(60000 / 256)
    after = recipe.learning_rate * recipe.weight_decay * recipe.train_steps
    assert after == pytest.approx(before, rel=1e-12)


def test_the_baseline_is_its_own_transfer():
    recipe = transfer(256, **SETTINGS, noise_scale=500)
    assert recipe.learning_rate == 0.01
    assert {name: getattr(recipe, name) for name in SETTINGS} == pytest.approx(SETTINGS)


def test_there_and_back_again():
    there = transfer(4096, weight_decay=0.02)
    back = recipes.transfer(
        256, 4096, there.learning_rate, **BASELINE, weight_decay=there.weight_decay
    )
    assert back.learning_rate == pytest.approx(0.01, rel=1e-12)
    assert back.weight_decay == pytest.approx(0.02, rel=1e-12)


def test_a_longer_training_takes_a_lower_rate():
    recipe = transfer(baseline_epochs=20)
    assert recipe.learning_rate == pytest.approx(0.01 * math.sqrt(8) * 2**-0.3, rel=1e-12)


@pytest.mark.parametrize(("optimizer", "power"), [("LAMB", 0.5), ("AdamW", 0.75), (None, 0.5)])
def test_with_a_noise_scale_the_rate_saturates(optimizer, power):
    def factor(batch, noise):
        recipe = transfer(batch, noise_scale=noise, optimizer=optimizer)
        return recipe.learning_rate / 0.01

    assert factor(2048, 1000) == pytest.approx(
        ((1 + 1000 / 256) / (1 + 1000 / 2048)) ** power, rel=1e-12
    )
    assert factor(2048, 1e12) == pytest.approx(8**power, rel=1e-6)  # below it: a power of k
    assert factor(8192, 10) < factor(2048, 10) * 1.01 < 1.05  # above it: nothing to gain


def test_beta_2_has_a_floor():
    assert transfer(8192, beta_2=0.98).beta_2 == 0.95
    assert transfer(8192, beta_2=0.9).beta_2 == 0.9  # a baseline below the floor stays


def test_the_momentum_of_batch_normalization_has_a_ceiling():
    recipe = transfer(8192, batch_norm_momentum=0.9999)
    assert recipe.batch_norm_momentum == 1 - 6 / recipe.train_steps


def test_warmup_has_a_floor_and_a_ceiling():
    assert transfer(warmup_epochs=8.0).warmup_steps == round(8 * 60000 / 2048)
    assert transfer(128, warmup_epochs=0.0).warmup_steps == 0  # no larger batch
    assert "10% of training at least" in str(transfer(warmup_epochs=0.0))
    cut = transfer(warmup_epochs=30.0)
    assert cut.warmup_steps == cut.train_steps // 4
    assert "cut to 25% of training" in str(cut)


@pytest.mark.parametrize("batch", [1, 256, 8192, 60000, 70000])
def test_it_refuses_no_batch_that_can_be_trained(batch):
    recipe = transfer(batch, **SETTINGS, noise_scale=1000)
    assert recipe.train_steps >= 40 and 2 * recipe.warmup_steps <= recipe.train_steps


def test_it_warns_of_a_batch_that_is_larger_than_all_examples():
    words = "A batch of 70,000 is larger than all 60,000 examples: .* a rate for 70,000 is too high"
    with pytest.warns(UserWarning, match=words):
        transfer(70_000)


@pytest.mark.parametrize("batch", [1, 256, 8192])
def test_a_recipe_of_a_larger_batch_says_what_to_expect(batch):
    text = str(transfer(batch, **SETTINGS, noise_scale=1000))
    assert all(name in text for name in ("learning_rate", *SETTINGS))
    assert ("times fewer steps" in text) is ("expect" in text) is (batch > 256)


# Batch, epochs, whether it warns: from 8 times the batch on, with fewer than 512 updates.
@pytest.mark.parametrize(
    ("batch", "epochs", "warns"),
    [(2048, 17, True), (2048, 18, False), (1024, 1, False), (8192, 63, True), (8192, 64, False)],
)
def test_it_warns_of_few_updates_left(batch, epochs, warns):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recipe = transfer(batch, epochs=epochs)
    texts = [str(warning.message) for warning in caught]
    before = epochs * math.ceil(60000 / 256)
    begin = f"Batch {batch:,} leaves {recipe.train_steps:,} of {before:,} updates"
    assert [text.startswith(begin) for text in texts] == [True] * warns
    assert all("three small networks of a study" in text for text in texts)  # as in the recipe


def test_what_is_not_given_is_not_set():
    recipe = transfer()
    assert {name: getattr(recipe, name) for name in SETTINGS} == dict.fromkeys(SETTINGS)
    assert recipe.arguments("LAMB") == {}
    assert transfer(**SETTINGS, optimizer="LAMB").arguments("LAMB").keys() == {
        "weight_decay", "beta_2", "ema_momentum",
    }  # fmt: skip
    with pytest.raises(ValueError, match="is a recipe for Muon"):
        transfer(optimizer="Muon").arguments("LAMB")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"optimizer": "Adan"}, "optimizer must be one of LAMB, .*'Adan'"),
        ({"beta_2": 1.0}, "beta_2 must be a number in"),
        ({"noise_scale": math.nan}, "noise_scale must be a number in"),
        ({"warmup_epochs": -1}, "warmup_epochs must be a number in"),
    ],
)
def test_what_is_out_of_range_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        transfer(**given)


def test_it_says_how_many_updates_are_left():
    assert "1,200 updates left; the same loss may take more examples" in str(transfer(2048))


@pytest.mark.parametrize(("batch", "is_said"), [(256, False), (512, True), (2048, True)])
def test_of_a_larger_batch_it_says_what_a_study_saw(batch, is_said):
    recipe = transfer(batch, optimizer="LAMB")
    lines = [f"    {line}" for line in seen_lines("LAMB", recipe.train_steps)]
    assert [line in str(recipe).splitlines() for line in lines] == [is_said] * len(lines)


@pytest.mark.parametrize("batch", [128, 256, 512, 2048])
@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ("LARS", "LARS lost 2 of 3 runs with 576 updates left, and 3 of 3 with 144"),
        ("SGD", "these rules were not measured with SGD"),
        ("Adam", "these rules were not measured with Adam"),
        *((name, None) for name in ("LAMB", "LANS", "AdamW", "AdamP", "Muon", "SOAP", None)),
    ],
)
def test_it_says_with_which_optimizers_it_was_not_measured_or_lost(optimizer, words, batch):
    text = str(transfer(batch, optimizer=optimizer))
    assert ("lost" in text or "not measured" in text) is (words is not None and batch > 256)
    assert words is None or (words in text) is (batch > 256)
