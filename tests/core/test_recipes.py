"""Recipes: the published tables come out, to the digits that were published."""

import math

import pytest

from tf_lamb.core import recipes
from tf_lamb.core.recipes.reference import MLPERF_LARS

# A batch that was shown gives no warning.
pytestmark = pytest.mark.filterwarnings("error")

BATCHES = (512, 1024, 2048, 4096, 8192, 16384, 32768)

# The worked tables, to 10 digits: batch -> rate, warmup ratio or epochs, steps.
BERT = {
    512: (0.000625, 0.003125, 1000000),
    1024: (0.0008838834765, 0.00625, 500000),
    2048: (0.00125, 0.0125, 250000),
    4096: (0.001767766953, 0.025, 125000),
    8192: (0.0025, 0.05, 62500),
    16384: (0.003535533906, 0.1, 31250),
    32768: (0.005, 0.2, 15625),
}
RESNET50 = {
    512: (0.005, 0.3125),
    1024: (0.007071067812, 0.625),
    2048: (0.01, 1.25),
    4096: (0.01414213562, 2.5),
    8192: (0.02, 5),
    16384: (0.02828427125, 10),
    32768: (0.04, 20),
}
LEGW = {
    128: (0.1, 0.2),
    256: (0.1414213562, 0.4),
    512: (0.2, 0.8),
    1024: (0.2828427125, 1.6),
    2048: (0.4, 3.2),
    4096: (0.5656854249, 6.4),
    8192: (0.8, 12.8),
}
LEGW_RESNET50 = {
    512: (4, 0.15625),
    1024: (5.656854249, 0.3125),
    2048: (8, 0.625),
    4096: (11.3137085, 1.25),
    8192: (16, 2.5),
    16384: (22.627417, 5),
    32768: (32, 10),
}
# Of MLPerf's logged runs, whose tables are the package's own: a row of each kind.
# batch -> rate, warmup epochs, momentum, decay, steps (the logged decay steps, with warmup where
# they leave it out, or 90 epochs), batch-norm span.
LARS = {
    1632: (7.4, 2, 0.9, 5e-5, 27476, 204),
    2048: (8.5, 5, 0.9, 2e-3, 3128 + 22530, 64),
    64480: (26, 31, 0.951807, 1e-4, 1788, 155),
}
# batch -> rate, steps, warmup, start, betas, decay, samples to the target.
MLPERF = {
    3072: (2e-3, 1141, 100, 0, 0.66, 0.998, 0.01, 2.768e6),
    6912: (2.9293e-3, 700, 0, -700, 0.7206, 0.78921, 0.001, 3.596e6),
    16384: (3.3e-3, 600, 290, -100, 0.75, 0.9, 0.0166629, 5.504e6),
}


def ten_digits(value):
    return pytest.approx(value, rel=1e-9)


def steps_of(epochs, batch_size, examples=1281167):
    return math.floor(epochs * examples / batch_size + 0.5)


@pytest.mark.parametrize("batch_size", BATCHES)
def test_untuned_lamb_for_bert(batch_size):
    rate, ratio, steps = BERT[batch_size]
    j = math.log2(batch_size / 512)
    recipe = recipes.untuned_lamb_bert(batch_size)
    assert recipe.learning_rate == ten_digits(rate) == ten_digits(5 / (2 ** (3 - j / 2) * 1e3))
    assert recipe.train_steps == steps
    assert recipe.warmup_steps == 3125
    assert recipe.warmup_steps / recipe.train_steps == ten_digits(ratio)
    assert (recipe.optimizer, recipe.weight_decay, recipe.global_clipnorm) == ("LAMB", 0.01, 1.0)
    assert (recipe.beta_1, recipe.beta_2, recipe.epsilon) == (0.9, 0.999, 1e-6)
    assert (recipe.decay, recipe.power, recipe.handover) == ("polynomial", 1.0, "drop")
    assert recipe.examples_seen == 512_000_000


@pytest.mark.parametrize("batch_size", BATCHES)
def test_untuned_lamb_for_resnet50(batch_size):
    rate, warmup_epochs = RESNET50[batch_size]
    j = math.log2(batch_size / 512)
    recipe = recipes.untuned_lamb_resnet50(batch_size)
    assert recipe.learning_rate == ten_digits(rate) == ten_digits(4 / (2 ** (3 - j / 2) * 100))
    assert recipe.warmup_epochs == warmup_epochs
    assert recipe.warmup_steps == 782
    assert recipe.train_steps == steps_of(90, batch_size)
    assert (recipe.weight_decay, recipe.label_smoothing) == (1.5, 0.1)
    assert (recipe.power, recipe.handover) == (1.0, "continuous")


def test_the_first_authors_run_at_32k():
    recipe = recipes.untuned_lamb_resnet50(32768)
    assert (recipe.warmup_steps, recipe.train_steps) == (782, 3519)


@pytest.mark.parametrize("batch_size", [600, 1536, 3000, 12345, 20000])
def test_a_batch_between_the_rows_follows_the_rule(batch_size):
    bert = recipes.untuned_lamb_bert(batch_size)
    assert bert.learning_rate == ten_digits(6.25e-4 * math.sqrt(batch_size / 512))
    assert abs(bert.examples_seen - 512_000_000) <= batch_size / 2
    assert bert.warmup_steps == 3125
    resnet = recipes.untuned_lamb_resnet50(batch_size)
    assert resnet.learning_rate == ten_digits(5e-3 * math.sqrt(batch_size / 512))
    assert resnet.warmup_steps == 782


def fit_steps_of(epochs, batch_size, examples):
    return epochs * math.ceil(examples / batch_size)


def legw_baseline(batch_size):
    return recipes.legw(batch_size, 128, 0.1, 0.2, examples=60000, epochs=25)


@pytest.mark.parametrize("batch_size", LEGW)
def test_legw(batch_size):
    recipe = legw_baseline(batch_size)
    assert (recipe.learning_rate, recipe.warmup_epochs) == ten_digits(LEGW[batch_size])
    assert recipe.warmup_steps == 94  # 0.2 x 60,000 / 128 = 93.75 at every batch
    assert recipe.train_steps == fit_steps_of(25, batch_size, 60000)


@pytest.mark.parametrize("batch_size", LEGW_RESNET50)
def test_legw_for_resnet50(batch_size):
    recipe = recipes.legw_resnet50_lars(batch_size)
    rate, warmup_epochs = LEGW_RESNET50[batch_size]
    assert (recipe.learning_rate, recipe.warmup_epochs) == ten_digits((rate, warmup_epochs))
    assert (recipe.optimizer, recipe.power, recipe.epochs) == ("LARS", 2.0, 90)
    assert (recipe.weight_decay, recipe.momentum, recipe.epsilon) == (1e-4, 0.9, 1e-5)
    assert recipe.label_smoothing == 0.1
    if batch_size >= 1024:
        rule = recipes.legw(batch_size, 1024, 2**2.5, 10 / 2**5, 1281167, 90, power=2.0)
        assert recipe.learning_rate == ten_digits(rule.learning_rate)
        for field in ("warmup_epochs", "warmup_steps", "power", "handover"):
            assert getattr(recipe, field) == getattr(rule, field)


@pytest.mark.parametrize("batch_size", BATCHES)
def test_untuned_lamb_is_legw(batch_size):
    rule = recipes.legw(batch_size, 512, 0.005, 0.3125, examples=1281167, epochs=90)
    untuned = recipes.untuned_lamb_resnet50(batch_size)
    for field in ("learning_rate", "warmup_epochs", "warmup_steps", "power"):
        assert getattr(untuned, field) == ten_digits(getattr(rule, field))


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 0.1), (100, 0.4964385595), (500, 2.082192798), (782, 3.2), (783, 3.2), (5000, 0.32),
        (10000, 0.032), (13000, 0.0032),
    ],
)  # fmt: skip
def test_linear_scaling_with_gradual_warmup(step, rate):
    recipe = recipes.linear_scaling(8192)
    epoch = step * recipe.batch_size / recipe.examples
    peak, start = recipe.learning_rate, recipe.initial_learning_rate
    decayed = sum(boundary <= step for boundary in recipe.boundaries)
    ramp = start + (peak - start) * min(1, epoch / recipe.warmup_epochs)
    assert ramp * recipe.decay_rate**decayed == ten_digits(rate)


def test_linear_scaling_is_the_papers():
    recipe = recipes.linear_scaling(8192)
    assert (recipe.warmup_steps, recipe.train_steps) == (782, 90 * 157)
    assert recipe.boundaries == tuple(epoch * 157 for epoch in (30, 60, 80))
    assert (recipe.weight_decay, recipe.momentum, recipe.nesterov) == (1e-4, 0.9, True)
    assert recipes.linear_scaling(512, examples=10000, epochs=18).boundaries == (120, 240, 320)
    assert recipes.linear_scaling(1024, 256, 0.05).learning_rate == 0.2


def test_a_batch_below_the_baseline_has_no_warmup_from_above():
    with pytest.warns(UserWarning, match="1 to 32 times"):
        recipe = recipes.linear_scaling(128)
    assert recipe.initial_learning_rate == recipe.learning_rate == 0.05


def test_sqrt_scaling():
    # Graphcore's BERT-large: NVIDIA's rate at half the batch, by the square root of 2.
    nvidia = recipes.nvidia_bert().stages[1]
    recipe = recipes.sqrt_scaling(16384 * 2, 16384, 4e-3 / math.sqrt(2), 0, 51_200_000, 1)
    assert recipe.learning_rate == ten_digits(nvidia.learning_rate)
    with pytest.warns(UserWarning, match="1 to 64 times"):
        half = recipes.sqrt_scaling(16384, 32768, 4e-3, 0, 51_200_000, 1)
    assert half.learning_rate == pytest.approx(0.002828, abs=5e-7)
    kept = recipes.sqrt_scaling(1024, 256, 1e-3, 2, 10240, 9)
    assert (kept.learning_rate, kept.warmup_steps, kept.train_steps) == (2e-3, 20, 90)


def test_the_mixed_batch():
    recipe = recipes.bert_mixed_batch()
    first, second = recipe
    assert (first.batch_size, first.sequence_length, first.train_steps) == (65536, 128, 7037)
    assert (second.batch_size, second.sequence_length, second.train_steps) == (32768, 512, 1562)
    assert recipe.train_steps == 8599
    assert first.warmup_steps > 0 and second.warmup_steps > 0
    assert first.initial_learning_rate == second.initial_learning_rate == 0
    # The same examples as 1,000,000 steps at 512, to the six steps that nobody explains.
    assert recipe.examples_seen == pytest.approx(512e6, rel=1e-3)


def test_nvidias_two_phases():
    one, two = recipes.nvidia_bert()
    numbers = ("batch_size", "sequence_length", "learning_rate", "warmup_steps", "train_steps")
    assert [getattr(one, name) for name in numbers] == [65536, 128, 6e-3, 2000, 7038]
    assert [getattr(two, name) for name in numbers] == [32768, 512, 4e-3, 200, 1563]
    for phase in (one, two):
        assert (phase.weight_decay, phase.power, phase.handover) == (0.01, 0.5, "drop")
    assert "0.2843" in str(one) and "0.128" in str(two)
    # The first rate of decay: step 2001 of 7038.
    assert one.learning_rate * (1 - 2001 / one.train_steps) ** one.power == ten_digits(
        0.005075894589
    )


@pytest.mark.parametrize("batch_size", LARS)
def test_mlperf_lars(batch_size):
    rate, warmup_epochs, momentum, decay, steps, span = LARS[batch_size]
    recipe = recipes.mlperf_lars(batch_size)
    assert (recipe.learning_rate, recipe.warmup_epochs, recipe.momentum, recipe.weight_decay) == (
        rate, warmup_epochs, momentum, decay,
    )  # fmt: skip
    assert recipe.warmup_steps == steps_of(warmup_epochs, batch_size)
    assert (recipe.train_steps, recipe.batch_norm_span) == (steps, span)
    assert (recipe.power, recipe.end_learning_rate, recipe.epsilon) == (2.0, 1e-4, 0.0)
    assert recipe.handover == "continuous"


def test_the_training_of_mlperf_lars_lasts_at_least_as_long_as_the_target_took():
    for batch_size, point in MLPERF_LARS.items():
        assert recipes.mlperf_lars(batch_size).epochs > point.epochs_to_target - 0.05


@pytest.mark.parametrize("batch_size", MLPERF)
def test_mlperf_lamb_for_bert(batch_size):
    rate, steps, warmup, start, beta_1, beta_2, decay, samples = MLPERF[batch_size]
    recipe = recipes.mlperf_lamb_bert(batch_size)
    assert (recipe.learning_rate, recipe.train_steps) == (rate, steps)
    assert (recipe.beta_1, recipe.beta_2, recipe.weight_decay) == (beta_1, beta_2, decay)
    assert (recipe.epsilon, recipe.global_clipnorm, recipe.handover) == (1e-6, 1.0, "drop")
    assert f"{samples:,.0f}" in str(recipe)
    # The rate in warmup is the published one: while s - start < warmup, rate (s - start)/warmup.
    for step in range(max(0, warmup + start) if warmup else 0):
        first = recipe.initial_learning_rate
        ramp = first + (recipe.learning_rate - first) * step / recipe.warmup_steps
        assert ramp == pytest.approx(rate * (step - start) / warmup, rel=1e-12)
    assert recipe.warmup_steps == (warmup + start if warmup else 0)


def test_the_error_for_what_is_no_recipe_lists_the_functions_that_make_one():
    kinds = (recipes.Recipe, recipes.StagedRecipe)
    makers = [n for n in recipes.__all__ if makes(n) in kinds]
    with pytest.raises(TypeError, match=", ".join(makers)):
        recipes.arguments(32768, "LAMB")


def makes(name):
    """The type that a function of `recipes` returns, as it is annotated."""
    return getattr(recipes, name).__annotations__.get("return")
