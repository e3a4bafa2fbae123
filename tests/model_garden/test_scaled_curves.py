"""What `--global_batch_size` makes of an experiment's curve, piece by piece."""

import pytest

pytest.importorskip("official")

from official.core import exp_factory

from tf_lamb import model_garden
from tf_lamb.model_garden.experiments import recipes

model_garden.register()


def scaled(batch_size, rate, recipe="legw", **warmup):
    """A run of 1,000 steps at 64, with 100 of warmup, at another batch."""
    params = exp_factory.get_exp_config("lamb/bert_pretraining")
    config = {
        "learning_rate": {"type": next(iter(rate)), **rate},
        "warmup": {"type": "tf_lamb", "tf_lamb": {"steps": 100, **warmup}},
    }
    params.override(
        {
            "task": {"train_data": {"global_batch_size": 64}},
            "trainer": {"train_steps": 1000, "optimizer_config": config},
        }
    )
    text, settings = recipes.fill_in(recipe, batch_size, params)
    return text, settings["trainer"]


@pytest.mark.parametrize("handover", ["continuous", "drop"])
def test_the_period_of_an_exponential_decay_is_stretched_alone(handover):
    rate = {"tf_lamb_exponential": {"initial_learning_rate": 1.0, "steps": 40, "rate": 0.9}}
    _, trainer = scaled(256, rate, handover=handover)
    config = trainer["optimizer_config"]
    assert config["learning_rate"]["tf_lamb_exponential"]["steps"] == 10
    assert config["warmup"]["tf_lamb"]["steps"] == 100
    assert trainer["train_steps"] == 250


def test_a_decay_to_the_end_still_ends_there():
    rate = {"tf_lamb_polynomial": {"initial_learning_rate": 1.0, "steps": 900}}
    text, trainer = scaled(192, rate, handover="continuous")
    # 1,000 x 64 / 192 = 333.3: to the nearest step, for the data begin again and again.
    assert trainer["train_steps"] == 333
    assert trainer["optimizer_config"]["learning_rate"]["tf_lamb_polynomial"]["steps"] == 233
    assert "= 333 steps" in text


def test_the_other_rule_keeps_warmup_in_epochs():
    rate = {"tf_lamb_polynomial": {"initial_learning_rate": 1.0, "steps": 900}}
    _, trainer = scaled(256, rate, "sqrt_scaling")
    assert trainer["optimizer_config"]["warmup"]["tf_lamb"]["steps"] == 25


def test_a_short_warmup_stays_one():
    rate = {"tf_lamb_polynomial": {"initial_learning_rate": 1.0, "steps": 900}}
    _, trainer = scaled(512, rate, "sqrt_scaling", steps=3)  # 3 x 64 / 512 = 0.4
    assert trainer["optimizer_config"]["warmup"]["tf_lamb"]["steps"] == 1


def test_a_batch_of_more_than_all_examples_is_refused():
    rate = {"tf_lamb_constant": {"learning_rate": 1.0}}
    with pytest.raises(ValueError, match=r"1,000 steps x 64 / 200,000 = 0.32 steps"):
        scaled(200_000, rate)
