"""From a recipe to an optimizer of either Keras, SGD among them, and to the end of `fit`."""

import dataclasses
import os
import re
import warnings

import numpy as np
import pytest
from support.frontends import FRONTENDS, every_frontend, on_tensorflow

import tf_lamb
from tf_lamb.core import recipes


def small_recipe(batch_size=16):
    return recipes.scale(batch_size, 8, 1e-3, 0.25, 64, 3, rule="legw")


@every_frontend
def test_a_recipe_gives_its_schedule(frontend):
    host, ours = FRONTENDS[frontend]
    recipe = small_recipe()
    schedule = recipe.schedule(ours.schedules)
    assert isinstance(schedule, host.optimizers.schedules.LearningRateSchedule)
    assert schedule == ours.LAMB.from_recipe(recipe)._learning_rate
    legacy = os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")
    assert recipe.schedule() == schedule or (frontend == "tf_keras") != legacy
    assert type(recipe.schedule()).__module__ == tf_lamb.schedules.__name__


# What reads a schedule, by the name that it has there.
READERS = {
    "learning_rate": lambda ours, schedule: ours.LAMB(schedule),
    "after": lambda ours, schedule: ours.schedules.Warmup(5, schedule),
    "schedules[1]": lambda ours, schedule: ours.schedules.Stages((5, 5), (0.1, schedule)),
}


@every_frontend
@pytest.mark.parametrize("kind", ["CosineDecay", "Warmup"])
@pytest.mark.parametrize("reader", READERS)
@on_tensorflow
def test_a_schedule_of_the_other_keras_is_refused_before_a_step(frontend, kind, reader):
    (other,) = FRONTENDS.keys() - {frontend}
    host, theirs = FRONTENDS[other]
    if kind == "CosineDecay":
        schedule = host.optimizers.schedules.CosineDecay(0.1, 10)
    else:
        schedule = theirs.schedules.Warmup(5, 0.1)
    words = f"{type(schedule).__name__} of {other}, and what reads it is of {frontend}:"
    with pytest.raises(TypeError, match=f"{re.escape(reader)} is a {words}"):
        READERS[reader](FRONTENDS[frontend][1], schedule)


@every_frontend
@on_tensorflow
def test_a_schedule_of_the_same_keras_is_taken(frontend):
    host, ours = FRONTENDS[frontend]
    ours.LAMB(host.optimizers.schedules.CosineDecay(0.1, 10))


def fitted(frontend, recipe, batch_size, **arguments):
    host, ours = FRONTENDS[frontend]
    model = host.Sequential([host.layers.InputLayer((2,)), host.layers.Dense(1)])
    optimizer = ours.LAMB.from_recipe(recipe, jit_compile=False, **arguments)
    model.compile(optimizer, "mse", run_eagerly=True)
    model.fit(np.ones((64, 2)), np.ones((64, 1)), batch_size, epochs=3, verbose=0)
    return model


@every_frontend
def test_fit_says_what_was_trained_at_a_rate_of_0(frontend):
    with pytest.warns(
        UserWarning, match=r"0 in the last 12 of 24 steps.*LEGW at batch 16 has it"
    ) as caught:
        fitted(frontend, small_recipe(), batch_size=8)
    # Keras on torch adds DeprecationWarnings of its own.
    ours = [warning for warning in caught if warning.category is UserWarning]
    assert [warning.filename for warning in ours] == [__file__]


@every_frontend
def test_fit_of_the_recipe_says_nothing(frontend):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(frontend, small_recipe(15), batch_size=15)
        # An update of two micro-batches is one step.
        fitted(frontend, small_recipe(), batch_size=8, gradient_accumulation_steps=2)


@every_frontend
def test_an_argument_that_the_optimizer_does_not_have_is_refused(frontend):
    ours = FRONTENDS[frontend][1]
    recipe = recipes.transfer(512, 256, 0.1, beta_2=0.99, ema_momentum=0.9, examples=6000, epochs=9)
    with pytest.raises(ValueError, match="LARS has no beta_2, which the recipe Transfer sets"):
        ours.LARS.from_recipe(recipe)


@every_frontend
@pytest.mark.parametrize(
    ("name", "hint"),
    [("Nadam", "keras.optimizers.Nadam(recipe.sch"), ("SOAP", "SOAP.from_recipe(")],
    ids=["Nadam", "SOAP"],
)
def test_the_hint_for_another_optimizer_can_be_called(frontend, name, hint):
    recipe = dataclasses.replace(small_recipe(), optimizer=name)
    with pytest.raises(ValueError, match=re.escape(f"not for LAMB: write {hint}")):
        FRONTENDS[frontend][1].LAMB.from_recipe(recipe)
