"""A learning rate that ends before training does is refused, and no other."""

import pytest
from official.core import exp_factory

from tf_lamb import model_garden
from tf_lamb.model_garden.checks.rates import check_rate
from tf_lamb.model_garden.common.errors import UserError


def params_with(**decay):
    """An experiment of 20 steps with a power and linear decay, without warmup."""
    model_garden.register()
    params = exp_factory.get_exp_config("lamb/bert_pretraining")
    rate = {"initial_learning_rate": 0.1, "total_decay_steps": 10, "offset": 0, **decay}
    learning_rate = {"type": "power_linear", "power_linear": rate}
    config = {"learning_rate": learning_rate, "warmup": {"type": None}}
    params.override({"trainer": {"train_steps": 20, "optimizer_config": config}})
    return params


@pytest.mark.parametrize("power", [0, -0.5])
def test_a_linear_decay_that_ends_before_training_is_refused(power):
    with pytest.raises(UserError, match="would be 0 from step 10 of trainer.train_steps=20"):
        check_rate(params_with(power=power, linear_decay_fraction=0.5))


@pytest.mark.parametrize("power", [0, -0.5])
def test_a_power_without_a_linear_decay_never_ends(power):
    check_rate(params_with(power=power, linear_decay_fraction=0))
