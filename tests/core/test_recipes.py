"""Recipes: the published tables come out, to the digits that were published."""

import math

import pytest

from tf_lamb.core import recipes
from tf_lamb.core.recipes.published import TABLE, published

# A batch that was shown gives no warning.
pytestmark = pytest.mark.filterwarnings("error")


# name -> what all of its rows have, and batch -> rate, warmup, steps
BY_RULE = {
    "untuned_lamb_bert": (
        {
            "optimizer": "LAMB", "weight_decay": 0.01, "global_clipnorm": 1.0, "beta_1": 0.9,
            "beta_2": 0.999, "epsilon": 1e-6, "decay": "polynomial", "power": 1.0,
            "handover": "drop", "end_learning_rate": 0.0, "initial_learning_rate": 0.0,
        },
        {
            512: (0.000625, 3125, 1000000), 1024: (0.0008838834765, 3125, 500000),
            2048: (0.00125, 3125, 250000), 4096: (0.001767766953, 3125, 125000),
            8192: (0.0025, 3125, 62500), 16384: (0.003535533906, 3125, 31250),
            32768: (0.005, 3125, 15625), 600: (6.25e-4 * math.sqrt(600 / 512), 3125, 853333),
            12345: (6.25e-4 * math.sqrt(12345 / 512), 3125, 41474),
        },
    ),
    "untuned_lamb_resnet50": (
        {
            "optimizer": "LAMB", "weight_decay": 1.5, "label_smoothing": 0.1, "power": 1.0,
            "handover": "continuous", "beta_2": 0.999, "epsilon": 1e-6, "global_clipnorm": 1.0,
        },
        {
            512: (0.005, 782, 225205), 1024: (0.007071067812, 782, 112603),
            2048: (0.01, 782, 56301), 4096: (0.01414213562, 782, 28151),
            8192: (0.02, 782, 14075), 16384: (0.02828427125, 782, 7038),
            32768: (0.04, 782, 3519), 3000: (5e-3 * math.sqrt(3000 / 512), 782, 38435),
        },
    ),
    "legw_resnet50_lars": (
        {
            "optimizer": "LARS", "power": 2.0, "epochs": 90, "weight_decay": 1e-4, "momentum": 0.9,
            "epsilon": 1e-5, "label_smoothing": 0.1, "trust_coefficient": 0.001,
        },
        {
            512: (4, 391, 225205), 1024: (5.656854249, 391, 112603), 2048: (8, 391, 56301),
            4096: (11.3137085, 391, 28151), 8192: (16, 391, 14075), 16384: (22.627417, 391, 7038),
            32768: (32, 391, 3519),
        },
    ),
    "linear_resnet50_sgd": (
        {
            "optimizer": "SGD", "weight_decay": 1e-4, "momentum": 0.9, "nesterov": True,
            "decay_rate": 0.1, "initial_learning_rate": 0.1, "batch_norm_span": 32,
        },
        {256: (0.1, 25023, 90 * 5005), 8192: (3.2, 782, 90 * 157)},
    ),
}  # fmt: skip
EACH = [(name, batch) for name, (_, rows) in BY_RULE.items() for batch in rows]
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
# batch, sequence length, rate, warmup, steps; then power, steps and examples of all stages
STAGES = {
    "nvidia_bert": ((65536, 128, 6e-3, 2000, 7038), (32768, 512, 4e-3, 200, 1563), 0.5, 8601),
    "bert_mixed_batch": ((65536, 128, 6e-3, 2000, 7037), (32768, 512, 4e-3, 200, 1562), 1.0, 8599),
}


def ten_digits(value):
    return pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize(("name", "batch_size"), EACH)
def test_a_published_row(name, batch_size):
    fields, rows = BY_RULE[name]
    recipe = published(name, batch_size)
    assert {field: getattr(recipe, field) for field in fields} == fields
    numbers = recipe.learning_rate, recipe.warmup_steps, recipe.train_steps
    assert numbers == ten_digits(rows[batch_size])


@pytest.mark.parametrize(
    ("name", "tuned", "power"),
    [
        ("untuned_lamb_resnet50", (512, 0.005, 0.3125), 1.0),
        ("legw_resnet50_lars", (1024, 2**2.5, 10 / 2**5), 2.0),
    ],
    ids=["untuned_lamb_resnet50", "legw_resnet50_lars"],
)
def test_a_published_rule_is_one_for_your_own_baseline(name, tuned, power):
    """The paper's base of LEGW is 2^2.5 and 10/2^5 epochs of warmup at 1,024."""
    row = published(name, 8192)
    rule = recipes.scale(8192, *tuned, 1281167, 90, rule="legw", power=power)
    fields = ("learning_rate", "warmup_epochs", "warmup_steps", "power")
    own, ruled = ({field: getattr(of, field) for field in fields} for of in (row, rule))
    assert own == ten_digits(ruled)


@pytest.mark.parametrize("name", STAGES)
def test_published_stages(name):
    *rows, power, steps = STAGES[name]
    recipe = published(name)
    for stage, row in zip(recipe, rows, strict=True):
        assert row == (
            stage.batch_size, stage.sequence_length, stage.learning_rate, stage.warmup_steps,
            stage.train_steps,
        )  # fmt: skip
        assert (stage.power, stage.weight_decay, stage.handover) == (power, 0.01, "drop")
        assert stage.initial_learning_rate == 0
    assert recipe.train_steps == steps
    # The same examples as 1,000,000 steps at 512, to the six steps that nobody explains.
    assert recipe.examples_seen == pytest.approx(512e6, rel=1e-3)


def test_nvidia_publishes_warmup_as_a_share():
    one, two = published("nvidia_bert")
    assert [math.floor(0.2843 * 7038), math.floor(0.128 * 1563)] == [2000, 200]
    assert "0.2843" in str(one) and "0.128" in str(two)
    # The first rate of decay: step 2001 of 7038.
    assert one.learning_rate * (1 - 2001 / one.train_steps) ** one.power == ten_digits(
        0.005075894589
    )


@pytest.mark.parametrize("batch_size", LARS)
def test_mlperf_lars(batch_size):
    rate, warmup_epochs, momentum, decay, steps, span = LARS[batch_size]
    recipe = published("mlperf_lars", batch_size)
    assert (recipe.learning_rate, recipe.warmup_epochs, recipe.momentum, recipe.weight_decay) == (
        rate, warmup_epochs, momentum, decay,
    )  # fmt: skip
    assert recipe.warmup_steps == math.floor(warmup_epochs * 1281167 / batch_size + 0.5)
    assert (recipe.train_steps, recipe.batch_norm_span) == (steps, span)
    assert (recipe.power, recipe.end_learning_rate, recipe.epsilon) == (2.0, 1e-4, 0.0)
    assert recipe.handover == "continuous"


@pytest.mark.parametrize("batch_size", TABLE["mlperf_lars"][2])
def test_the_training_of_mlperf_lars_lasts_at_least_as_long_as_the_target_took(batch_size):
    *_, epochs_to_target = TABLE["mlperf_lars"][2][batch_size]
    assert published("mlperf_lars", batch_size).epochs > epochs_to_target - 0.05


@pytest.mark.parametrize("batch_size", MLPERF)
def test_mlperf_lamb_for_bert(batch_size):
    rate, steps, warmup, start, beta_1, beta_2, decay, samples = MLPERF[batch_size]
    recipe = published("mlperf_lamb_bert", batch_size)
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


# rule -> batch -> rate and epochs of warmup, from 0.1 and 0.2 epochs at 128
SCALED = {
    "legw": {
        128: (0.1, 0.2), 256: (0.1414213562, 0.4), 512: (0.2, 0.8), 1024: (0.2828427125, 1.6),
        2048: (0.4, 3.2), 4096: (0.5656854249, 6.4), 8192: (0.8, 12.8),
    },
    "sqrt": {128: (0.1, 0.2), 1024: (0.2828427125, 0.2), 8192: (0.8, 0.2)},
    "linear": {128: (0.1, 0.2), 1000: (0.78125, 0.2), 4096: (3.2, 0.2)},
}  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "batch_size"), [(rule, batch) for rule, rows in SCALED.items() for batch in rows]
)
def test_a_rule_scales_a_baseline(rule, batch_size):
    """Training ends with `fit`; a warmup of LEGW has 0.2 x 60,000 / 128 = 93.75 steps."""
    recipe = recipes.scale(batch_size, 128, 0.1, 0.2, 60000, 25, rule=rule)
    assert (recipe.learning_rate, recipe.warmup_epochs) == ten_digits(SCALED[rule][batch_size])
    warmup = 93.75 if rule == "legw" else 0.2 * 60000 / batch_size
    assert recipe.warmup_steps == math.floor(warmup + 0.5)
    assert recipe.train_steps == 25 * math.ceil(60000 / batch_size)
    assert recipe.initial_learning_rate == (0.1 if rule == "linear" else 0)
    assert recipe.optimizer == ("SGD" if rule == "linear" else None)


def test_epochs_of_decay_are_those_of_fit():
    tuned = 256, 0.1, 2, 60000, 9
    recipe = recipes.scale(1024, *tuned, rule="linear", decay=(3, 6, 8))
    assert (recipe.boundaries, recipe.train_steps) == ((177, 354, 472), 531)
    assert (recipe.decay, recipe.decay_rate) == ("multi_step", 0.1)


def test_a_batch_below_the_baseline_has_no_warmup_from_above():
    with pytest.warns(UserWarning, match="1 to 32 times"):
        recipe = published("linear_resnet50_sgd", 128)
    assert recipe.initial_learning_rate == recipe.learning_rate == 0.05
