"""Schedules of every frontend: agreement with NumPy, configs, and an optimizer on one."""

import json

import keras
import numpy as np
import pytest
from support.frontends import BACKEND, FRONTENDS, every_frontend

from tf_lamb.core import recipes
from tf_lamb.core import schedules as core

# Built from a module of schedules, the same in all three places.
SCHEDULES = {
    "constant": lambda s: s._Constant(0.1),
    "polynomial": lambda s: s._Polynomial(0.1, 700, 0.001),
    "power 2": lambda s: s._Polynomial(0.1, 1000, power=2.0),
    "cosine": lambda s: s._Cosine(0.1, 900, 0.01),
    "exponential": lambda s: s._Exponential(0.1, 100, 0.5),
    "multistep": lambda s: s._MultiStep((300, 600), (0.1, 0.01, 0.001)),
    "linear warmup": lambda s: s.Warmup(200, s._Polynomial(0.1, 800)),
    "dropping": lambda s: s.Warmup(200, s._Polynomial(0.1, 1000), handover="drop"),
    "polynomial warmup": lambda s: s.Warmup(200, s._Cosine(0.1, 800), kind="polynomial", power=2.0),
    "exponential warmup": lambda s: s.Warmup(200, s._Constant(0.1), kind="exponential", start=1e-5),
    "constant warmup": lambda s: s.Warmup(200, s._Constant(0.1), kind="constant", start=0.02),
    "two stages": lambda s: s.Stages(
        (600, 400), (s.Warmup(100, s._Polynomial(0.1, 500)), s.Warmup(50, s._Polynomial(0.05, 350)))
    ),
}


STEPS = np.arange(1001)


def rates_of(schedule, steps=STEPS):
    """At every step, in one program."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.vectorized_map(schedule, tf.constant(steps, tf.int64))
    return keras.ops.vectorized_map(schedule, keras.ops.convert_to_tensor(steps, "int64"))


@every_frontend
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_frontends_are_numpy_at_every_step(frontend, name):
    exact = SCHEDULES[name](core)
    got = np.asarray(rates_of(SCHEDULES[name](FRONTENDS[frontend][1].schedules)))
    assert got.dtype == "float32"
    expected = [exact.value(np, np.float64(step)) for step in STEPS]
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-7 * max(1.0, max(expected) / 0.1))


LATE = 2**24 + 1  # the first whole number that float32 does not hold
LATE_JOINTS = {
    "polynomial": lambda s: s.Stages((LATE, 1), (s._Constant(1.0), s._Polynomial(1.0, 4))),
    "cosine": lambda s: s.Warmup(LATE, s._Cosine(1.0, 4), kind="constant", start=0.5),
    "its end": lambda s: s.Stages((LATE, 3, 1), [s._Constant(rate) for rate in (1.0, 2.0, 3.0)]),
    "staircase": lambda s: s._Exponential(1.0, LATE, 0.5, staircase=True),
    "multistep": lambda s: s._MultiStep((LATE, LATE + 1.5), (1.0, 0.5, 0.25)),
}


@every_frontend
@pytest.mark.parametrize("name", LATE_JOINTS)
def test_joints_are_exact_where_float32_does_not_count(frontend, name):
    exact, schedule = LATE_JOINTS[name](core), LATE_JOINTS[name](FRONTENDS[frontend][1].schedules)
    steps = LATE + np.arange(-2, 6)
    expected = [float(exact.value(np, np.float64(step))) for step in steps]
    assert len(set(expected)) > 1
    np.testing.assert_allclose(rates_of(schedule, steps), expected, rtol=1e-6)
    np.testing.assert_allclose([schedule(int(step)) for step in steps], expected, rtol=1e-6)


@every_frontend
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.once
def test_a_config_rebuilds_the_schedule(frontend, name):
    host, ours = FRONTENDS[frontend]
    schedule = SCHEDULES[name](ours.schedules)
    config = json.loads(json.dumps(host.optimizers.schedules.serialize(schedule)))
    again = host.optimizers.schedules.deserialize(config)
    assert again == schedule
    assert type(again) is type(schedule)


# What stands after a warmup: Keras's own, of whose peak the joint is to be exact.
KERAS_OWN = {
    "polynomial": lambda s: s.PolynomialDecay(0.1, 10, 0.01, power=2.0),
    "cosine": lambda s: s.CosineDecay(0.1, 10, alpha=0.3),
    "cosine with a warmup of its own": lambda s: s.CosineDecay(
        0.01, 10, warmup_target=0.1, warmup_steps=3
    ),
    "staircase": lambda s: s.ExponentialDecay(0.1, 3, 0.5, staircase=True),
    "piecewise constant": lambda s: s.PiecewiseConstantDecay([2, 6], [0.1, 0.05, 0.01]),
}


@every_frontend
@pytest.mark.parametrize("length", [7, LATE])
@pytest.mark.parametrize("name", KERAS_OWN)
def test_the_joint_of_a_warmup_with_the_hosts_own_is_exact(frontend, name, length):
    host, ours = FRONTENDS[frontend]
    after = KERAS_OWN[name](host.optimizers.schedules)
    alone = {length + k: float(np.float32(after(np.float32(k)))) for k in (0, 1, 7)}
    schedule = ours.schedules.Warmup(length, after)
    assert float(schedule(length - 1)) == pytest.approx(alone[length] * (1 - 1 / length))
    assert {step: float(schedule(step)) for step in alone} == alone
    staged = ours.schedules.Stages((length, 12), (0.5, after))
    assert float(staged(length - 1)) == 0.5
    config = json.loads(json.dumps(host.optimizers.schedules.serialize(staged)))
    again = host.optimizers.schedules.deserialize(config)
    assert {step: float(again(step)) for step in alone} == alone


OF_50_STEPS = {
    "polynomial": lambda s: s.PolynomialDecay(0.1, 50, 0.0),
    "cosine": lambda s: s.CosineDecay(0.1, 50),
    "a warmup without a target": lambda s: s.CosineDecay(0.1, 50, warmup_steps=9),  # is none
}
ENDLESS = {
    "above 0": lambda s: s.PolynomialDecay(0.1, 50, 0.01),
    "again and again": lambda s: s.PolynomialDecay(0.1, 50, 0.0, cycle=True),
    "a cosine above 0": lambda s: s.CosineDecay(0.1, 50, alpha=0.1),
    "exponential": lambda s: s.ExponentialDecay(0.1, 50, 0.5),
    "constant": lambda s: 0.1,
}


@every_frontend
@pytest.mark.parametrize("name", OF_50_STEPS)
@pytest.mark.once
def test_the_end_of_the_hosts_own_is_known(frontend, name):
    host, ours = FRONTENDS[frontend]
    after = OF_50_STEPS[name](host.optimizers.schedules)
    assert core.zero_rate_step(after) == 50
    assert core.zero_rate_step(ours.schedules.Warmup(20, after)) == 70
    with pytest.raises(ValueError, match="51 steps is longer than the 50 steps"):
        ours.schedules.Warmup(51, after, handover="drop")


@every_frontend
@pytest.mark.once
def test_the_end_of_the_hosts_own_is_after_its_warmup(frontend):
    s = FRONTENDS[frontend][0].optimizers.schedules
    assert core.zero_rate_step(s.CosineDecay(0.0, 50, warmup_target=0.1, warmup_steps=9)) == 59


@every_frontend
@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.once
def test_what_does_not_fall_to_0_has_no_end(frontend, name):
    host, ours = FRONTENDS[frontend]
    after = ENDLESS[name](host.optimizers.schedules)
    assert core.zero_rate_step(ours.schedules.Warmup(51, after)) is None


@every_frontend
def test_an_optimizer_comes_from_its_recipe(frontend):
    _, ours = FRONTENDS[frontend]
    recipe = recipes.published("untuned_lamb_bert", 32768)
    optimizer = ours.LAMB.from_recipe(recipe, epsilon=1e-5)
    config = optimizer.get_config()
    assert config["weight_decay"] == 0.01
    assert config["global_clipnorm"] == 1.0
    assert config["epsilon"] == 1e-5
    assert config["exclude_from_weight_decay"] == list(recipe.exclude_from_weight_decay)
    exact = recipe.schedule(core).value(np, np.float64(3125))
    assert float(optimizer._learning_rate(3125)) == pytest.approx(exact)
    assert type(optimizer).from_config(config).get_config() == optimizer.get_config()
    with pytest.raises(ValueError, match=r"recipe for LAMB, not for LARS: write LAMB"):
        ours.LARS.from_recipe(recipe)
    staged = ours.LAMB.from_recipe(recipes.published("bert_mixed_batch"))
    assert float(staged._learning_rate(7037)) == 0.0  # stage 2 warms up again
