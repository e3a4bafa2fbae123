"""A recipe in the hands of `fit`: as many steps, a schedule to take, and a word where it is off."""

import inspect
import math
import operator
import types
import warnings

import pytest

from tf_lamb.api.optimizers import layerwise
from tf_lamb.core import recipes, schedules

# The rules for a baseline of one's own, called alike: rate 0.1 at 128, a fifth of an epoch.
RULES = {"legw": recipes.legw, "sqrt_scaling": recipes.sqrt_scaling}


def fit_steps(examples, epochs, batch_size):
    return epochs * math.ceil(examples / batch_size)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("batch_size", [128, 1000, 2560, 4096])
def test_training_ends_with_fit(rule, batch_size):
    recipe = RULES[rule](batch_size, 128, 0.1, 0.2, 60000, 25)
    steps = fit_steps(60000, 25, batch_size)
    assert recipe.train_steps == steps
    schedule = recipe.schedule(schedules)
    assert schedule.value(math_as_arrays, float(steps)) == 0
    assert schedule.value(math_as_arrays, steps - 1.0) > 0


# What a schedule asks of a module of arrays, for a single float.
math_as_arrays = types.SimpleNamespace(
    minimum=min,
    maximum=max,
    true_divide=operator.truediv,
    where=lambda condition, a, b: a if condition else b,
)


def test_the_last_batch_of_an_epoch_is_in_the_arithmetic():
    recipe = recipes.legw(2560, 128, 0.1, 0.2, 60000, 25)
    assert "training = 25 epochs x ceil(60,000 / 2,560) = 600 steps" in str(recipe)
    assert "training = 25 epochs x 60,000 / 2,500 = 600 steps" in str(
        recipes.legw(2500, 128, 0.1, 0.2, 60000, 25)
    )


def test_an_epoch_of_fit_is_where_the_rate_decays():
    recipe = recipes.linear_scaling(1024, 256, 0.1, 2, examples=60000, epochs=9)
    assert (recipe.boundaries, recipe.train_steps) == ((177, 354, 472), 531)


def test_warmup_has_as_many_steps_at_every_batch():
    for batch_size in (128, 1000, 2560, 4096):
        assert recipes.legw(batch_size, 128, 0.1, 0.2, 60000, 25).warmup_steps == 94


def test_the_two_rules_are_called_alike():
    legw, root = (inspect.signature(rule).parameters for rule in RULES.values())
    assert [str(p) for p in legw.values()] == [str(p) for p in root.values()]
    assert list(legw)[:6] == list(inspect.signature(recipes.linear_scaling).parameters)[:3] + [
        "base_warmup_epochs", "examples", "epochs",
    ]  # fmt: skip
    one, other = (rule(128, 128, 0.1, 0.2, 60000, 25) for rule in RULES.values())
    for field in ("learning_rate", "warmup_steps", "train_steps", "power", "handover"):
        assert getattr(one, field) == getattr(other, field)


def test_a_warmup_of_most_of_training_warns():
    with pytest.warns(UserWarning, match="LEGW: warmup takes 45 of 56 steps") as caught:
        recipes.legw(512, 32, 1e-3, 0.36, 3996, 7)
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recipes.legw(512, 32, 1e-3, 0.36, 3996, 14)  # 45 of 112


@pytest.mark.parametrize(
    "wrong",
    ["untuned_lamb_bert", 32768, None, recipes.untuned_lamb_bert, ("a", "b")],
    ids=["name", "batch", "none", "function", "pair"],
)
def test_an_error_for_what_is_no_recipe_says_what_one_is(wrong):
    for ask in (
        lambda: recipes.schedule(wrong, schedules),
        lambda: recipes.arguments(wrong, "LAMB"),
    ):
        with pytest.raises(TypeError) as caught:
            ask()
        message = str(caught.value)
        assert "tf_lamb.recipes.untuned_lamb_bert(32768)" in message and repr(wrong) in message
        assert "legw, legw_resnet50_lars, linear_scaling, mlperf_lamb_bert" in message
        assert "bert_mixed_batch" in message and "published_time" not in message


def test_the_way_of_a_momentum_recipe_is_named():
    with pytest.raises(ValueError) as caught:
        recipes.arguments(recipes.linear_scaling(8192), "LAMB")
    message = str(caught.value)
    assert "keras.optimizers.SGD(recipe.schedule(), momentum=0.9, nesterov=True)" in message
    assert "kernel_regularizer=keras.regularizers.L2(5e-05)" in message
    assert "SGD.from_recipe" not in message


def test_the_way_of_an_optimizer_of_keras_is_named():
    of = {"examples": 60000, "epochs": 40, "optimizer": "AdamW", "beta_2": 0.9}
    with pytest.raises(ValueError) as caught:
        recipes.arguments(recipes.transfer(256, 256, 0.01, weight_decay=0.01, **of), "LAMB")
    road = "keras.optimizers.AdamW(recipe.schedule(), beta_2=0.9, weight_decay=0.01)"
    assert str(caught.value).endswith(f"write {road}.")


@pytest.mark.parametrize("wrong", ["x.png", 512])
def test_what_is_no_recipe_is_not_drawn(wrong):
    with pytest.raises(TypeError, match=r"plot\(ax=axes\).*savefig\('recipe.png'\)"):
        recipes.untuned_lamb_bert(512).plot(wrong)


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
    recipe = recipes.legw(4096, 128, 0.1, 0.2, 60000, 25)
    optimizer = types.SimpleNamespace(
        name="LAMB", _learning_rate=recipe.schedule(schedules), _recipe=recipe
    )
    with pytest.warns(UserWarning, match="46,500 of 46,875 steps.*LEGW at batch 4,096 has it"):
        layerwise.warn_if_past_schedule_end(optimizer, lambda: 25 * 60000 // 32)
