"""What every recipe is: printed with its source, frozen, and refused or warned of in words."""

import dataclasses
import doctest
import importlib
import math
import pkgutil
import types
import warnings

import numpy as np
import pytest

from tf_lamb.api.optimizers import layerwise
from tf_lamb.core import recipes, schedules
from tf_lamb.core.recipes.published import STAGED_NAMES, TABLE, published
from tf_lamb.core.recipes.recipe import check_recipe

# A batch that was shown gives no warning.
pytestmark = pytest.mark.filterwarnings("error")


def scale(batch_size=1024, base=128, rate=0.1, warmup=0.2, examples=60000, epochs=25, **given):
    return recipes.scale(batch_size, base, rate, warmup, examples, epochs, **given)


def legw(*numbers, **given):
    return scale(*numbers, **given, rule="legw")


def linear(*numbers, **given):
    return scale(*numbers, **given, rule="linear")


def decaying(**given):
    own = {"batch_size": 1, "learning_rate": 0.1, "warmup_steps": 0, "train_steps": 10}
    return recipes.Recipe(title="title", **own, **given)


EVERY = {
    **{name: lambda name=name: published(name, 4096) for name in TABLE if name not in STAGED_NAMES},
    **{name: lambda name=name: published(name) for name in STAGED_NAMES},
    "sqrt": scale,
    "legw": legw,
    "linear": lambda: linear(decay=(10, 20)),
    "transfer": lambda: recipes.transfer(2048, 256, 1e-3, examples=60000, epochs=25),
    "growing": lambda: recipes.growing(scale(512, 256, 1e-3, 0), 4096),
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
def test_what_the_sources_exclude_is_excluded(name):
    for stage in EVERY[name]().stages:
        assert stage.exclude_from_layer_adaptation is None  # as for weight decay
        # Goyal et al. decay biases, and no scale or offset of batch normalization.
        goyal = name == "linear_resnet50_sgd"
        excluded = ("batch_normalization|_bn/",) if goyal else ("norm_and_bias",)
        assert stage.exclude_from_weight_decay == (excluded if stage.model else None)


@pytest.mark.parametrize("name", EVERY)
def test_it_is_frozen_plain_and_comparable(name):
    recipe = EVERY[name]()
    assert recipe == EVERY[name]()
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.title = "mine"
    for stage in recipe.stages:
        plain = (int, float, str, bool, tuple, type(None))
        assert all(type(value) in plain for value in dataclasses.asdict(stage).values())
        assert 0 <= stage.warmup_steps < stage.train_steps


@pytest.mark.parametrize("name", ["untuned_lamb_bert", "linear_resnet50_sgd"])
def test_whatever_counts_as_a_whole_number_becomes_an_int(name):
    class Whole:  # as NumPy's integers are
        def __index__(self):
            return 8192

    recipe = published(name, Whole())
    assert recipe == published(name, 8192) and type(recipe.batch_size) is int


@pytest.mark.parametrize("rule", ["sqrt", "legw", "linear"])
@pytest.mark.parametrize("batch_size", [128, 1000, 2560, 4096])
def test_training_ends_with_fit(rule, batch_size):
    """The rate is 0 once `fit` has ended, and in no step of it."""
    recipe = scale(batch_size, rule=rule)
    steps = 25 * math.ceil(60000 / batch_size)
    assert recipe.train_steps == steps
    last, after = recipe.schedule(schedules).value(np, np.array([steps - 1.0, steps]))
    assert after == 0 < last


def test_a_worked_calculation():
    assert str(published("untuned_lamb_bert", 4096)).splitlines() == [
        "Untuned LAMB for BERT-large: LAMB at batch 4,096",
        "  k = 4,096 / 512 = 8",
        "  learning rate = 0.000625 x sqrt(8) = 0.001768",
        "  training = 1 epochs x 512,000,000 / 4,096 = 125,000 steps",
        "  warmup epochs = 0.003125 x 8 = 0.025",
        "  warmup = 0.025 epochs x 512,000,000 / 4,096 = 3,125 steps",
        "  then polynomial, power 1, to 0 at step 125,000, counted from step 0: the rate drops as "
        "warmup ends",
        "  weight decay = 0.01, but not for norm_and_bias",
        "  with beta_1=0.9, beta_2=0.999, epsilon=1e-06, global_clipnorm=1.0",
        "  examples = 125,000 steps x 4,096 = 512,000,000",
        "  source: You et al., arXiv 1904.00962, the BERT table of untuned LAMB",
    ]
    assert "training = 25 epochs x ceil(60,000 / 2,560) = 600 steps" in str(legw(2560))
    assert "training = 25 epochs x 60,000 / 2,500 = 600 steps" in str(legw(2500))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: published("untuned_lamb_bert", 65536), "1 to 64 times.*65,536 is 128 times 512"),
        (lambda: published("legw_resnet50_lars", 256), "LEGW for ResNet-50 was shown.*256 is 0.5"),
        (lambda: linear(8192), "Linear scaling was shown.*1 to 32 times.*8,192 is 64 times 128"),
        (lambda: legw(512, 32, 1e-3, 0.36, 3996, 7), "LEGW: warmup takes 45 of 56 steps"),
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
        (lambda: published("untuned_lamb", 512), "no recipe 'untuned_lamb'.*bert_mixed_batch"),
        (
            lambda: published("mlperf_lamb_bert", 32768),
            "no reference point at batch 32,768; it has 256, 448, .*16,384",
        ),
        (lambda: decaying(power="2"), "power must be a number.* '2'"),
        (lambda: decaying(decay_steps=0), "decay_steps must be a whole number >= 1, not 0"),
        (lambda: decaying(end_learning_rate=-1), "end_learning_rate must be .* -1"),
        (lambda: scale(32768, examples=1, epochs=0.3), "0.3 epochs x 1 examples / batch_size 32,7"),
        (
            lambda: legw(8192, warmup=0.5),
            "(?s)234 > 200 steps.*\n  warmup epochs = 0.5 x 64 = 32\n",
        ),
        (lambda: scale(rule="cubic"), "rule must be one of 'sqrt', 'linear', 'legw', not 'cubic'"),
        (
            lambda: scale(decay="cosine"),
            "decay must be one of 'constant', 'multi_step', 'polynomial', not 'cosine'",
        ),
        (
            lambda: linear(warmup=5, decay=(10 / 3, 20)),
            "decay at epoch 3.33, within its warmup of 5 epochs: warm up for 3.33 at most",
        ),
        (lambda: scale(decay=(10, 20, 26)), r"end of training at epoch 25, not \(10, 20, 26\)"),
        (lambda: scale(decay=[20, 10]), "epochs of decay must rise"),
        (
            lambda: scale(512, 256, 0.1, 0, 1000, 1, decay=(1 / 3, 2 / 3, 8 / 9)),
            "twice at one step, at steps 1, 1, 2 of 2: train longer, or pass fewer epochs of decay",
        ),
    ],
)
def test_what_cannot_be_right_is_refused_with_the_arithmetic(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


@pytest.mark.parametrize("module", [each.name for each in pkgutil.iter_modules(recipes.__path__)])
def test_the_examples_run(module):
    found = doctest.testmod(importlib.import_module(f"{recipes.__name__}.{module}"))
    assert found.failed == 0


@pytest.mark.parametrize("wrong", ["untuned_lamb_bert", 32768, None, published, ("a", "b")])
def test_an_error_for_what_is_no_recipe_says_what_one_is(wrong):
    with pytest.raises(TypeError) as caught:
        check_recipe(wrong)
    message = str(caught.value)
    assert 'tf_lamb.recipes.published("untuned_lamb_bert", 32768)' in message
    assert repr(wrong) in message
    makers = {name for name in recipes.__all__ if name.islower()} - {"largest_batch"}
    assert all(name in message for name in makers)


# Schedules, and the step from which their rate is 0 for good.
ENDS = {
    "polynomial": (schedules._Polynomial(0.1, 50), 50),
    "to a rate": (schedules._Polynomial(0.1, 50, 0.01), None),
    "flat": (schedules._Polynomial(0.1, 50, power=0.0), None),
    "cosine": (schedules._Cosine(0.1, 60), 60),
    "constant": (schedules._Constant(0.1), None),
    "exponential": (schedules._Exponential(0.1, 10, 0.5), None),
    "continuous": (schedules.Warmup(20, schedules._Polynomial(0.1, 50)), 70),
    "drop": (schedules.Warmup(20, schedules._Polynomial(0.1, 50), handover="drop"), 50),
    "stages": (
        schedules.Stages((100, 5), (schedules._Constant(1.0), schedules._Polynomial(0.1, 50))), 150,
    ),
    "a host's": (lambda step: 0.0, None),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_steps_at_a_rate_of_0_warn(name):
    schedule, end = ENDS[name]
    optimizer = types.SimpleNamespace(name="LAMB", _learning_rate=schedule, _recipe=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layerwise.warn_if_past_schedule_end(optimizer, lambda: 10 if end is None else end)
    if end is None:
        return
    with pytest.warns(
        UserWarning, match=f"LAMB: .* 0 in the last 30 of {end + 30} steps.* ends after {end}"
    ) as caught:
        layerwise.warn_if_past_schedule_end(optimizer, lambda: end + 30)
    assert caught[0].filename == __file__


def test_a_recipe_for_another_batch_is_named():
    recipe = legw(4096)
    optimizer = types.SimpleNamespace(
        name="LAMB", _learning_rate=recipe.schedule(schedules), _recipe=recipe
    )
    with pytest.warns(UserWarning, match="46,500 of 46,875 steps.*LEGW at batch 4,096 has it"):
        layerwise.warn_if_past_schedule_end(optimizer, lambda: 25 * 60000 // 32)


def test_the_way_of_an_optimizer_of_keras_is_named():
    with pytest.raises(ValueError) as caught:
        published("linear_resnet50_sgd", 8192).arguments("LAMB")
    message = str(caught.value)
    assert "keras.optimizers.SGD(recipe.schedule(), momentum=0.9, nesterov=True)" in message
    assert "kernel_regularizer=keras.regularizers.L2(5e-05)" in message  # half of the decay
    assert "from_recipe" not in message


def test_the_way_of_an_optimizer_of_keras_has_what_was_given():
    of = {"examples": 60000, "epochs": 40, "optimizer": "AdamW", "beta_2": 0.9, "ema_momentum": 0.5}
    with pytest.raises(ValueError) as caught:
        recipes.transfer(256, 256, 0.01, weight_decay=0.01, **of).arguments("LAMB")
    given = "beta_2=0.9, weight_decay=0.01, use_ema=True, ema_momentum=0.5"
    assert str(caught.value).endswith(f"write keras.optimizers.AdamW(recipe.schedule(), {given}).")


@pytest.mark.parametrize(
    ("patterns", "line"),
    [
        ((), "layer adaptation everywhere"),
        (("norm_and_bias",), "layer adaptation everywhere, but not for norm_and_bias"),
        (("bias",), "layer adaptation everywhere, but not where a name matches 'bias'"),
    ],
)
def test_what_is_not_adapted_is_printed(patterns, line):
    recipe = dataclasses.replace(scale(), exclude_from_layer_adaptation=patterns)
    assert line in recipe.settings()
