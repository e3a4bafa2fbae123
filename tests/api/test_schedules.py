"""Schedules: their joints, their agreement between NumPy and both doors, their configs."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_lamb.keras.schedules
import tf_lamb.tf_keras.schedules
from tf_lamb.core import recipes
from tf_lamb.core import schedules as core

HOSTS = {
    "keras": (keras, tf_lamb.keras.schedules),
    "tf_keras": (tf_keras, tf_lamb.tf_keras.schedules),
}

# Built from a module of schedules, the same in all three places.
SCHEDULES = {
    "constant": lambda s: s.Constant(0.1),
    "polynomial": lambda s: s.Polynomial(0.1, 700, 0.001),
    "power 2": lambda s: s.Polynomial(0.1, 1000, power=2.0),
    "root": lambda s: s.Polynomial(6e-3, 1000, power=0.5),
    "cosine": lambda s: s.Cosine(0.1, 900, 0.01),
    "exponential": lambda s: s.Exponential(0.1, 100, 0.5),
    "staircase": lambda s: s.Exponential(0.1, 100, 0.5, staircase=True),
    "multistep": lambda s: s.MultiStep((300, 600), (0.1, 0.01, 0.001)),
    "linear warmup": lambda s: s.Warmup(200, s.Polynomial(0.1, 800)),
    "dropping": lambda s: s.Warmup(200, s.Polynomial(0.1, 1000), handover="drop"),
    "polynomial warmup": lambda s: s.Warmup(200, s.Cosine(0.1, 800), kind="polynomial", power=2.0),
    "exponential warmup": lambda s: s.Warmup(
        200, s.Constant(0.1), kind="exponential", start=1e-5
    ),
    "constant warmup": lambda s: s.Warmup(200, s.Constant(0.1), kind="constant", start=0.02),
    "two stages": lambda s: s.Stages(
        (600, 400), (s.Warmup(100, s.Polynomial(0.1, 500)), s.Warmup(50, s.Polynomial(0.05, 350)))
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("host", HOSTS)
def test_the_doors_are_numpy_at_every_step(host, name):
    exact = SCHEDULES[name](core)
    door = SCHEDULES[name](HOSTS[host][1])
    compiled = tf.function(lambda steps: tf.map_fn(door, steps, fn_output_signature=tf.float32))
    got = compiled(tf.range(1001, dtype=tf.int64)).numpy()
    expected = [exact.value(np, np.float64(step)) for step in range(1001)]
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-7 * max(1.0, max(expected) / 0.1))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("host", HOSTS)
def test_a_config_rebuilds_the_schedule(host, name):
    keras_, door = HOSTS[host]
    schedule = SCHEDULES[name](door)
    config = json.loads(json.dumps(keras_.optimizers.schedules.serialize(schedule)))
    again = keras_.optimizers.schedules.deserialize(config)
    assert again == schedule
    assert type(again) is type(schedule)


def at(schedule, *steps):
    return [float(schedule.value(np, np.float64(step))) for step in steps]


def test_joints_are_exact():
    continuous = core.Warmup(4, core.Polynomial(1.0, 8))
    assert at(continuous, 0, 1, 4, 5, 12, 13) == [0.0, 0.25, 1.0, 0.875, 0.0, 0.0]
    drop = core.Warmup(4, core.Polynomial(1.0, 8), handover="drop")
    assert at(drop, 0, 2, 3, 4, 5, 8) == [0.0, 0.5, 0.75, 0.5, 0.375, 0.0]
    steps = core.MultiStep((2, 4), (1.0, 0.5, 0.25))
    assert at(steps, 0, 1, 2, 3, 4, 9) == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    stages = core.Stages((4, 4), (core.Polynomial(1.0, 4), continuous))
    assert at(stages, 0, 2, 3, 4, 6, 8) == [1.0, 0.5, 0.25, 0.0, 0.5, 1.0]


def test_the_hand_over_of_bert_at_32k():
    """lr 5e-3, 15,625 steps, 3,125 of them warmup: both readings, as published numbers."""
    drop = core.Warmup(3125, core.Polynomial(0.005, 15625), handover="drop")
    shifted = core.Warmup(3125, core.Polynomial(0.005, 12500))
    for step, dropping, continuous in [
        (0, 0.0, 0.0), (1000, 0.0016, 0.0016), (3124, 0.0049984, 0.0049984), (3125, 0.004, 0.005),
        (3126, 0.00399968, 0.0049996), (10000, 0.0018, 0.00225), (15624, 3.2e-07, 4e-07),
    ]:  # fmt: skip
        assert at(drop, step) == pytest.approx([dropping], rel=1e-9)
        assert at(shifted, step) == pytest.approx([continuous], rel=1e-9)


def test_the_hand_over_of_nvidia_phase_1():
    schedule = core.Warmup(2001, core.Polynomial(6e-3, 7038, power=0.5), handover="drop")
    # Its warmup is a share of the steps, 0.2843, not a whole number of them.
    assert at(schedule, 4000) == pytest.approx([0.003942035254], rel=1e-9)
    assert at(schedule, 7037) == pytest.approx([7.151985399e-05], rel=1e-9)


@pytest.mark.parametrize("host", HOSTS)
def test_a_warmup_stands_in_front_of_the_hosts_own(host):
    keras_, door = HOSTS[host]
    inner = keras_.optimizers.schedules.CosineDecay(0.1, 10)
    schedule = door.Warmup(4, inner)
    assert float(schedule(2)) == pytest.approx(0.05)
    assert float(schedule(9)) == pytest.approx(float(inner(5)))
    again = keras_.optimizers.schedules.deserialize(keras_.optimizers.schedules.serialize(schedule))
    assert float(again(9)) == float(schedule(9))


@pytest.mark.parametrize("host", HOSTS)
def test_an_optimizer_takes_it_and_keeps_it(host, tmp_path):
    keras_, door = HOSTS[host]
    ours = tf_lamb.keras if host == "keras" else tf_lamb.tf_keras
    model = keras_.Sequential([keras_.layers.InputLayer((2,)), keras_.layers.Dense(1)])
    model.compile(ours.LAMB(door.Warmup(3, door.Polynomial(0.1, 5))), "mse")
    model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=4, verbose=0)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.1 * 2 / 3)
    model.save(tmp_path / "model.keras")
    restored = keras_.models.load_model(tmp_path / "model.keras")
    assert float(restored.optimizer.learning_rate) == pytest.approx(0.1 * 2 / 3)


RECIPES = {
    "untuned LAMB, BERT": lambda: recipes.untuned_lamb_bert(32768),
    "untuned LAMB, ResNet-50": lambda: recipes.untuned_lamb_resnet50(8192),
    "LEGW": lambda: recipes.legw_resnet50_lars(4096),
    "linear scaling": lambda: recipes.linear_scaling(8192),
    "MLPerf, from the middle of warmup": lambda: recipes.mlperf_lamb_bert(8192),
    "without warmup": lambda: recipes.mlperf_lamb_bert(4096),
    "two stages": recipes.bert_mixed_batch,
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
    recipe = RECIPES[name]()
    schedule = recipes.schedule(recipe, core)
    steps = {0, 1, recipe.train_steps // 3, recipe.train_steps // 2, recipe.train_steps - 1}
    for stage in [recipe] if isinstance(recipe, recipes.Recipe) else recipe:
        joints = (stage.warmup_steps, stage.train_steps, *stage.boundaries)
        steps |= {max(0, joint + d) for joint in joints for d in (-1, 0, 1)}
    for step in sorted(s for s in steps if s < recipe.train_steps):
        assert at(schedule, step) == pytest.approx([rate_of(recipe, step)], rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("host", HOSTS)
def test_an_optimizer_comes_from_its_recipe(host):
    ours = tf_lamb.keras if host == "keras" else tf_lamb.tf_keras
    recipe = recipes.untuned_lamb_bert(32768)
    optimizer = ours.LAMB.from_recipe(recipe, epsilon=1e-5)
    config = optimizer.get_config()
    assert config["weight_decay"] == 0.01
    assert config["global_clipnorm"] == 1.0
    assert config["epsilon"] == 1e-5
    assert config["exclude_from_weight_decay"] == list(recipe.exclude_from_weight_decay)
    assert float(optimizer._learning_rate(3125)) == pytest.approx(rate_of(recipe, 3125))
    assert type(optimizer).from_config(config).get_config() == optimizer.get_config()
    with pytest.raises(ValueError, match=r"recipe for LAMB, not for LARS: write LAMB"):
        ours.LARS.from_recipe(recipe)
    staged = ours.LAMB.from_recipe(recipes.bert_mixed_batch())
    assert float(staged._learning_rate(7037)) == 0.0  # stage 2 warms up again


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: core.Polynomial(-0.1, 10), ValueError, ["initial_learning_rate", "-0.1"]),
        (lambda: core.Polynomial(float("nan"), 10), ValueError, ["initial_learning_rate", "nan"]),
        (lambda: core.Polynomial("fast", 10), TypeError, ["initial_learning_rate", "'fast'"]),
        (lambda: core.Polynomial(0.1, 0), ValueError, ["steps", "0"]),
        (lambda: core.Polynomial(0.1, None), ValueError, ["steps", "None"]),
        (lambda: core.Cosine(0.1, 10.5), ValueError, ["steps", "10.5"]),
        (lambda: core.MultiStep((1, 2), (0.1, 0.2)), ValueError, ["2 boundaries need 3"]),
        (lambda: core.MultiStep((2, 1), (0.1, 0.2, 0.3)), ValueError, ["boundaries", "(2, 1)"]),
        (lambda: core.Warmup(5, core.Constant(0.1), kind="cubic"), ValueError, ["'cubic'"]),
        (lambda: core.Warmup(5, core.Constant(0.1), handover="x"), ValueError, ["'x'", "'drop'"]),
        (lambda: core.Warmup(5, core.Constant(0.1), kind="exponential"), ValueError, ["start"]),
        (lambda: core.Warmup(11, core.Polynomial(0.1, 10), handover="drop"), ValueError,
         ["11 steps", "10 steps"]),
        (lambda: core.Stages((5,), ()), ValueError, ["1 lengths", "0 schedules"]),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused(make, error, words):
    with pytest.raises(error) as caught:
        make()
    for word in words:
        assert word in str(caught.value)
