"""What every recipe is: printed with its source, frozen, and refused or warned of in words."""

import dataclasses
import doctest
import importlib
import math
import pkgutil

import pytest

from tf_lamb.core import recipes

# A batch that was shown gives no warning.
pytestmark = pytest.mark.filterwarnings("error")

EVERY = {
    "untuned_lamb_bert": lambda: recipes.untuned_lamb_bert(4096),
    "untuned_lamb_resnet50": lambda: recipes.untuned_lamb_resnet50(4096),
    "legw": lambda: recipes.legw(1024, 128, 0.1, 0.2, examples=60000, epochs=25),
    "legw_resnet50_lars": lambda: recipes.legw_resnet50_lars(4096),
    "linear_scaling": lambda: recipes.linear_scaling(4096),
    "transfer": lambda: recipes.transfer(4096, 256, 1e-3, examples=60000, epochs=25),
    "sqrt_scaling": lambda: recipes.sqrt_scaling(4096, 256, 1e-3, 0, 60000, 25),
    "growing": lambda: recipes.growing(recipes.sqrt_scaling(512, 256, 1e-3, 0, 60000, 25), 4096),
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
        assert f"{stage.warmup_steps:,} steps" in text or "warmup steps" in text  # of a table
        assert all(line in text for line in stage.arithmetic)


@pytest.mark.parametrize("name", EVERY)
def test_norms_and_biases_are_excluded(name):
    recipe = EVERY[name]()
    for stage in getattr(recipe, "stages", (recipe,)):
        assert stage.exclude_from_layer_adaptation is None  # as for weight decay
        if stage.model:
            assert stage.exclude_from_weight_decay == ("norm_and_bias",)


def test_what_a_pattern_excludes_is_printed_as_one():
    line = "weight decay = 0.0001, but not where a name matches 'batch_normalization|_bn/'"
    assert line in str(recipes.linear_scaling(4096))


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
        "  weight decay = 0.01, but not for norm_and_bias",
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
        (lambda: recipes.sqrt_scaling(32768, 256, 1e-3, 0, 60000, 90), "32,768 is 128 times 256"),
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
        (
            lambda: recipes.untuned_lamb_bert(2**31 - 1),
            "1,000,000 steps x 512 / batch_size 2,147,483,647 is less than half a step",
        ),
        (lambda: recipes.untuned_lamb_resnet50(512.5), "not 512.5"),
        (lambda: recipes.untuned_lamb_resnet50(512, examples=0), "examples must be a whole"),
        (lambda: recipes.untuned_lamb_resnet50(512, epochs=0), r"\(0, inf\), but it is 0"),
        (lambda: recipes.untuned_lamb_resnet50(512, epochs=math.inf), "it is inf"),
        (
            lambda: recipes.untuned_lamb_resnet50(32768, examples=100),
            r"90 epochs x 100 examples / batch_size 32,768 = 0.275 steps",
        ),
        (
            lambda: recipes.untuned_lamb_resnet50(32768, epochs=10),
            r"warmup is longer than training, 782 > 391 steps \(.*0.3125 x 32,768 / 512 = 20",
        ),
        (lambda: recipes.legw(8192, 128, 0.1, 0.5, 60000, 25), "234 > 200 steps.*0.5 x 64 = 32"),
        (lambda: recipes.legw(8192, 0, 0.1, 0.2, 60000, 25), "base_batch_size must be"),
        (lambda: recipes.legw(8192, 128, 0, 0.2, 60000, 25), "base_learning_rate must be"),
        (lambda: recipes.legw(8192, 128, 0.1, -1, 60000, 25), r"warmup epochs must be.*\[0, inf\)"),
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
        (
            lambda: recipes.sqrt_scaling(512, 256, 0.1, 5, examples=1281167, epochs=4),
            "12,511 > 10,012 steps",
        ),
        (
            lambda: recipes.linear_scaling(8192, epochs=10),
            "decay at epoch 3.33, within its warmup of 5 epochs: pass warmup_epochs=3.33 at most",
        ),
        (lambda: recipes.linear_scaling(8192, decay_epochs=95), "end of training at epoch 90"),
        (
            lambda: recipes.linear_scaling(512, decay_epochs=(30, 60, 95)),
            r"end of training at epoch 90, not \(30, 60, 95\)",
        ),
        (lambda: recipes.linear_scaling(512, decay_epochs=(60, 30)), "decay_epochs must rise"),
        (
            lambda: recipes.linear_scaling(512, 256, 0.1, 0, examples=1000, epochs=1),
            "twice at one step, at steps 1, 1, 2 of 2: train longer, or pass fewer decay_epochs=",
        ),
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
    with pytest.raises((TypeError, ValueError), match=message):
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


@pytest.mark.parametrize("module", [each.name for each in pkgutil.iter_modules(recipes.__path__)])
def test_the_examples_run(module):
    found = doctest.testmod(importlib.import_module(f"{recipes.__name__}.{module}"))
    assert found.failed == 0
