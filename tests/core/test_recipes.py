"""Recipes: the published tables come out, the arithmetic prints, and bad input is refused."""

import dataclasses
import doctest
import importlib
import math
import re
import warnings

import pytest

from tf_lamb.core import recipes
from tf_lamb.core.recipes.reference import MLPERF_BERT, MLPERF_LARS

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
# batch -> rate, warmup epochs, momentum, decay, steps (the logged decay steps, with warmup where
# they leave it out), batch-norm span.
LARS = {
    1632: (7.4, 2, 0.9, 5e-5, 27476, 204),
    2048: (8.5, 5, 0.9, 2e-3, 3128 + 22530, 64),
    3264: (10.5, 2, 0.9, 5e-5, 14523, 204),
    4096: (10, 5, 0.9, 2e-4, 13137, 64),
    8192: (17, 5, 0.9, 2e-4, 782 + 6095, 64),
    13056: (12.8, 9, 0.9, 2.5e-5, 4710, 204),
    32768: (21.2, 16, 0.94, 2.5e-5, 2267, 128),
    49152: (19.405, 24, 0.951807, 1e-4, 1846, 256),
    58880: (23.246, 29, 0.951807, 1e-4, 1785, 230),
    64480: (26, 31, 0.951807, 1e-4, 1788, 155),
    65536: (24.699, 31, 0.951807, 1e-4, 606 + 1133, 128),
    67840: (24.699, 31, 0.951807, 1e-4, 585 + 1133, 424),
}
# batch -> rate, steps, warmup, start, betas, decay, samples to the target.
MLPERF = {
    256: (3.5e-4, 13700, 0, 0, 0.9, 0.999, 0.01, 2.553e6),
    448: (4.25e-4, 6700, 0, 0, 0.9, 0.999, 0.01, 2.411e6),
    1536: (2e-3, 2254, 0, 0, 0.66, 0.996, 0.01, 2.778e6),
    3072: (2e-3, 1141, 100, 0, 0.66, 0.998, 0.01, 2.768e6),
    4096: (2.4e-3, 855, 0, 0, 0.66, 0.998, 0.01, 2.843e6),
    4608: (3.5e-3, 700, 0, 0, 0.62, 0.9, 0.01, 2.795e6),
    6144: (2.9293e-3, 700, 0, -700, 0.7206, 0.78921, 0.001, 3.321e6),
    6912: (2.9293e-3, 700, 0, -700, 0.7206, 0.78921, 0.001, 3.596e6),
    8192: (2.88293e-3, 600, 287, -76, 0.88, 0.88, 0.0166629, 4.191e6),
    8704: (2.971656e-3, 600, 287, -76, 0.88, 0.88, 0.0166629, 4.278e6),
    12288: (3.1e-3, 500, 300, -100, 0.8, 0.925, 0.0166629, 4.470e6),
    13056: (3.19540686e-3, 500, 300, -100, 0.8, 0.925, 0.0166629, 4.633e6),
    16384: (3.3e-3, 600, 290, -100, 0.75, 0.9, 0.0166629, 5.504e6),
}


def ten_digits(value):
    return pytest.approx(value, rel=1e-9)


@pytest.fixture(autouse=True)
def no_warning():
    """A batch that was shown gives none."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


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


def legw_baseline(batch_size):
    return recipes.legw(batch_size, 128, 0.1, 0.2, examples=60000, epochs=25)


@pytest.mark.parametrize("batch_size", LEGW)
def test_legw(batch_size):
    recipe = legw_baseline(batch_size)
    assert (recipe.learning_rate, recipe.warmup_epochs) == ten_digits(LEGW[batch_size])
    assert recipe.warmup_steps == 94  # 0.2 x 60,000 / 128 = 93.75 at every batch
    assert recipe.train_steps == steps_of(25, batch_size, 60000)


@pytest.mark.parametrize("batch_size", LEGW_RESNET50)
def test_legw_for_resnet50(batch_size):
    recipe = recipes.legw_resnet50_lars(batch_size)
    rate, warmup_epochs = LEGW_RESNET50[batch_size]
    assert (recipe.learning_rate, recipe.warmup_epochs) == ten_digits((rate, warmup_epochs))
    assert (recipe.optimizer, recipe.power, recipe.epochs) == ("LARS", 2.0, 90)
    assert (recipe.weight_decay, recipe.momentum, recipe.epsilon) == (1e-4, 0.9, 1e-5)
    assert recipe.label_smoothing == 0.1
    if batch_size >= 1024:
        rule = recipes.legw(batch_size, 1024, 2**2.5, 10 / 2**5, examples=1281167, epochs=90)
        assert recipe.learning_rate == ten_digits(rule.learning_rate)
        for field in ("warmup_epochs", "warmup_steps", "train_steps", "power", "handover"):
            assert getattr(recipe, field) == getattr(rule, field)


@pytest.mark.parametrize("batch_size", BATCHES)
def test_untuned_lamb_is_legw(batch_size):
    rule = recipes.legw(batch_size, 512, 0.005, 0.3125, examples=1281167, epochs=90, power=1.0)
    untuned = recipes.untuned_lamb_resnet50(batch_size)
    for field in ("learning_rate", "warmup_epochs", "warmup_steps", "train_steps", "power"):
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
    assert (recipe.warmup_steps, recipe.train_steps) == (782, steps_of(90, 8192))
    assert recipe.boundaries == tuple(steps_of(epoch, 8192) for epoch in (30, 60, 80))
    assert (recipe.weight_decay, recipe.momentum, recipe.nesterov) == (1e-4, 0.9, True)
    assert recipes.linear_scaling(512, examples=10000, epochs=9).boundaries == (59, 117, 156)
    assert recipes.linear_scaling(1024, 256, 0.05).learning_rate == 0.2


def test_a_batch_below_the_baseline_has_no_warmup_from_above():
    with pytest.warns(UserWarning, match="1 to 32 times"):
        recipe = recipes.linear_scaling(128)
    assert recipe.initial_learning_rate == recipe.learning_rate == 0.05


def test_sqrt_scaling():
    # Graphcore's BERT-large: NVIDIA's rate at half the batch, by the square root of 2.
    nvidia = recipes.nvidia_bert().stages[1]
    recipe = recipes.sqrt_scaling(16384 * 2, 16384, 4e-3 / math.sqrt(2), 51_200_000, 1)
    assert recipe.learning_rate == ten_digits(nvidia.learning_rate)
    with pytest.warns(UserWarning, match="1 to 64 times"):
        half = recipes.sqrt_scaling(16384, 32768, 4e-3, 51_200_000, 1)
    assert half.learning_rate == pytest.approx(0.002828, abs=5e-7)
    kept = recipes.sqrt_scaling(1024, 256, 1e-3, 10240, 9, warmup_epochs=2)
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
    # Training lasts at least as long as the target took.
    assert recipe.epochs > MLPERF_LARS[batch_size].epochs_to_target - 0.05


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


def test_the_tables_are_whole():
    assert set(LARS) == set(MLPERF_LARS)
    assert set(MLPERF) == set(MLPERF_BERT)


EVERY = {
    "untuned_lamb_bert": lambda: recipes.untuned_lamb_bert(4096),
    "untuned_lamb_resnet50": lambda: recipes.untuned_lamb_resnet50(4096),
    "legw": lambda: legw_baseline(1024),
    "legw_resnet50_lars": lambda: recipes.legw_resnet50_lars(4096),
    "linear_scaling": lambda: recipes.linear_scaling(4096),
    "sqrt_scaling": lambda: recipes.sqrt_scaling(4096, 256, 1e-3, 60000, 25),
    "mlperf_lars": lambda: recipes.mlperf_lars(4096),
    "mlperf_lamb_bert": lambda: recipes.mlperf_lamb_bert(4096),
    "bert_mixed_batch": recipes.bert_mixed_batch,
    "nvidia_bert": recipes.nvidia_bert,
}


@pytest.mark.parametrize("name", EVERY)
def test_it_prints_its_numbers_and_its_source(name):
    recipe = EVERY[name]()
    text = str(recipe)
    assert recipe.source and recipe.source in text
    for stage in getattr(recipe, "stages", (recipe,)):
        assert f"{stage.train_steps:,}" in text
        assert f"{stage.batch_size:,}" in text
        assert f"{stage.learning_rate:.4g}" in text or f"{stage.learning_rate:g}" in text
        assert f"{stage.warmup_steps:,} steps" in text
        assert all(line in text for line in stage.arithmetic)


NAMES = {
    "BERT": ("encoder/layer_0/attention/query/kernel", "embeddings/layer_norm/gamma"),
    "ResNet-50": ("conv1/conv/kernel", "batch_normalization_3/gamma"),
}


@pytest.mark.parametrize("name", EVERY)
def test_norms_and_biases_are_excluded(name):
    recipe = EVERY[name]()
    for stage in getattr(recipe, "stages", (recipe,)):
        if not stage.model:
            continue
        kernel, norm = NAMES[stage.model]
        patterns = stage.exclude_from_weight_decay
        assert stage.exclude_from_layer_adaptation is None  # as for weight decay
        assert not any(re.search(pattern, kernel) for pattern in patterns)
        for excluded in (norm, "predictions/bias"):
            assert any(re.search(pattern, excluded) for pattern in patterns)
        if stage.model == "ResNet-50":  # as keras.applications calls it
            assert any(re.search(pattern, "conv1_bn/beta") for pattern in patterns)


@pytest.mark.parametrize("name", EVERY)
def test_it_is_frozen_plain_and_comparable(name):
    recipe = EVERY[name]()
    assert recipe == EVERY[name]()
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.title = "mine"
    for stage in getattr(recipe, "stages", (recipe,)):
        plain = (int, float, str, bool, tuple, type(None))
        assert all(type(value) in plain for value in dataclasses.asdict(stage).values())
        assert 0 <= stage.warmup_steps < stage.train_steps


def test_whatever_counts_as_a_whole_number_becomes_an_int():
    class Whole:  # as NumPy's integers are
        def __index__(self):
            return 8192

    for recipe in (recipes.untuned_lamb_bert, recipes.linear_scaling, recipes.mlperf_lars):
        assert recipe(Whole()) == recipe(8192)
        assert type(recipe(Whole()).batch_size) is int


def test_a_worked_calculation():
    assert str(recipes.untuned_lamb_bert(4096)).splitlines() == [
        "Untuned LAMB for BERT-large: LAMB at batch 4,096",
        "  learning rate = 0.005 x sqrt(4,096 / 32,768) = 0.001768",
        "  training = 1,000,000 steps x 512 / 4,096 = 125,000 steps",
        "  warmup = 4,096 / 512 / 320 = 0.025 of training = 3,125 steps",
        "  then polynomial, power 1, to 0 at step 125,000, counted from step 0: the rate drops as "
        "warmup ends",
        "  weight decay = 0.01, but not where a name matches 'LayerNorm|layer_norm' or 'bias'",
        "  with beta_1=0.9, beta_2=0.999, epsilon=1e-06, global_clipnorm=1.0",
        "  examples = 125,000 steps x 4,096 = 512,000,000",
        "  source: You et al., arXiv 1904.00962, the BERT table of untuned LAMB",
    ]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: recipes.untuned_lamb_bert(65536), "512 to 32,768.*not for 65,536"),
        (lambda: recipes.untuned_lamb_bert(256), "512 to 32,768.*not for 256"),
        (lambda: recipes.untuned_lamb_resnet50(65536), "512 to 32,768, not for 65,536"),
        (lambda: recipes.legw_resnet50_lars(256), "512 to 32,768, not for 256"),
        (lambda: recipes.legw(64, 128, 0.1, 0.2, 60000, 25), "64 is 0.5 times 128"),
        (lambda: recipes.legw(16384, 128, 0.1, 0.1, 60000, 25), "16,384 is 128 times 128"),
        (lambda: recipes.linear_scaling(16384), "1 to 32 times.*16,384 is 64 times 256"),
        (lambda: recipes.sqrt_scaling(32768, 256, 1e-3, 60000, 90), "32,768 is 128 times 256"),
    ],
)
def test_a_batch_that_was_not_shown_warns(call, message):
    with pytest.warns(UserWarning, match=message) as caught:
        assert call().train_steps > 0
    assert len(caught) == 1
    assert caught[0].filename == __file__  # of the one who asked


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: recipes.untuned_lamb_bert(0), "batch_size must be a whole number >= 1, not 0"),
        (lambda: recipes.untuned_lamb_bert(-512), "not -512"),
        (lambda: recipes.untuned_lamb_bert(512.0), "not 512.0"),
        (lambda: recipes.untuned_lamb_bert(True), "not True"),
        (lambda: recipes.untuned_lamb_bert("4K"), "not '4K'"),
        (lambda: recipes.untuned_lamb_resnet50(512.5), "not 512.5"),
        (lambda: recipes.untuned_lamb_resnet50(512, examples=0), "examples must be a whole"),
        (lambda: recipes.untuned_lamb_resnet50(512, epochs=0), "epochs must be a number > 0"),
        (lambda: recipes.untuned_lamb_resnet50(512, epochs=math.inf), "not inf"),
        (
            lambda: recipes.untuned_lamb_resnet50(32768, examples=100),
            r"90 epochs x 100 examples / batch_size 32,768 = 0.275 steps",
        ),
        (
            lambda: recipes.untuned_lamb_resnet50(32768, epochs=10),
            r"warmup is longer than training, 782 > 391 steps \(.*0.3125 x 32,768 / 512 = 20",
        ),
        (lambda: recipes.legw(8192, 128, 0.1, 0.5, 60000, 25), "234 > 183 steps.*0.5 x 64 = 32"),
        (lambda: recipes.legw(8192, 0, 0.1, 0.2, 60000, 25), "base_batch_size must be"),
        (lambda: recipes.legw(8192, 128, 0, 0.2, 60000, 25), "base_learning_rate must be"),
        (lambda: recipes.legw(8192, 128, 0.1, -1, 60000, 25), "warmup epochs must be.*>= 0"),
        (
            lambda: recipes.legw(1024, 128, 0.1, 0.2, 60000, 25, decay="cosine"),
            "decay must be one of 'constant', 'multi_step', 'polynomial', not 'cosine'",
        ),
        (
            lambda: recipes.legw(1024, 128, 0.1, 0.2, 60000, 25, decay="multi_step"),
            "needs boundaries",
        ),
        (
            lambda: recipes.legw(1024, 128, 0.1, 0.2, 60000, 25, handover="jump"),
            "handover must be one of 'continuous', 'drop', not 'jump'",
        ),
        (lambda: recipes.linear_scaling(512, epochs=4), "12,511 > 10,009 steps"),
        (
            lambda: recipes.linear_scaling(512, decay_epochs=(30, 60, 95)),
            r"end of training at epoch 90, not \(30, 60, 95\)",
        ),
        (lambda: recipes.linear_scaling(512, decay_epochs=(60, 30)), "decay_epochs must rise"),
        (
            lambda: recipes.mlperf_lars(10000),
            "no reference point at batch 10,000; it has 1,632, 2,048, .*67,840",
        ),
        (
            lambda: recipes.mlperf_lamb_bert(32768),
            "no reference point at batch 32,768; it has 256, 448, .*16,384",
        ),
        (lambda: recipes.mlperf_lars(0), "batch_size must be"),
    ],
)
def test_what_cannot_be_right_is_refused_with_the_arithmetic(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_bert_beyond_the_last_batch_with_room_for_warmup():
    with pytest.warns(UserWarning):
        recipe = recipes.untuned_lamb_bert(163840)
    assert recipe.warmup_steps == recipe.train_steps == 3125
    with (
        pytest.warns(UserWarning),
        pytest.raises(ValueError, match=r"3,125 > 3,051 steps \(.*1,000,000 steps x 512 / 167,8"),
    ):
        recipes.untuned_lamb_bert(167800)


@pytest.mark.parametrize(
    "module", ["", ".arithmetic", ".bert", ".recipe", ".reference", ".resnet", ".scaling"]
)
def test_the_examples_run(module):
    found = doctest.testmod(importlib.import_module(f"tf_lamb.core.recipes{module}"))
    assert found.failed == 0
    assert found.attempted > 0 or module in ("", ".arithmetic", ".recipe")
