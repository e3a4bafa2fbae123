"""Our entries in Model Garden's tables of optimizers: options, decay that follows a schedule."""

from fractions import Fraction

import pytest

pytest.importorskip("official")

import numpy as np
from official.core import exp_factory
from official.modeling import optimization
from support.garden import build, tiny

from tf_lamb.model_garden.checks import experiment as experiment_checks
from tf_lamb.model_garden.checks.experiment import check_optimizer
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.experiments import recipes
from tf_lamb.model_garden.experiments.optimizers import OPTIMIZERS

CONSTANT = {"type": "constant", "constant": {"learning_rate": 0.1}}


def built(key, settings=None):
    config = optimization.OptimizationConfig(
        {"optimizer": {"type": key, key: settings or {}}, "learning_rate": CONSTANT}
    )
    return optimization.OptimizerFactory(config).build_optimizer(0.1)


@pytest.mark.parametrize("key", OPTIMIZERS)
def test_an_option_is_a_setting(key):
    options = {"treatments": {"^transformer/layer_0/": {"rate": 0.5}, "embeddings": {"rate": 0.0}}}
    assert options.items() <= built(key, options).get_config().items()


@pytest.mark.parametrize("kind", ["polynomial", "tf_lamb_polynomial"])
def test_weight_decay_follows_a_schedule_as_the_rate_does(kind):
    steps = "steps" if kind.startswith("tf_lamb") else "decay_steps"
    falling = {"initial_learning_rate": 0.1, steps: 4, "end_learning_rate": 0.0}
    optimizer = built("tf_lamb", {"weight_decay_schedule": {"type": kind, kind: falling}})
    decay = [float(optimizer.weight_decay(step)) for step in (0, 2, 4)]
    np.testing.assert_allclose(decay, [0.1, 0.05, 0.0], atol=1e-8)
    both = {"weight_decay": 0.1, "weight_decay_schedule": {"type": kind, kind: falling}}
    with pytest.raises(
        ValueError, match="takes the place of weight_decay, which is 0.1, by you or"
    ):
        built("tf_lamb", both)


def test_a_check_before_training_takes_a_weight_decay_schedule(records):
    def checked(kind, **schedule):
        own = {"weight_decay": 0.0, "weight_decay_schedule": {"type": kind, kind: schedule}}
        params = build(tiny(records, optimizer_config={"optimizer": {"tf_lamb": own}}))
        check_optimizer(params)

    checked("tf_lamb_polynomial", initial_learning_rate=0.1, steps=4)
    with pytest.raises(UserError, match="steps is 0. Set a whole number of 1"):
        checked("tf_lamb_polynomial", initial_learning_rate=0.1, steps=0)
    with pytest.raises(UserError, match="type=constant is no schedule. Write a number as weight"):
        checked("constant", learning_rate=0.1)


def test_a_recipe_stretches_it_and_decay_in_the_loss_is_refused_beside_it():
    falling = {"boundaries": [100, 300], "values": [0.1, 0.05, 0.0]}
    schedule = {"type": "stepwise", "stepwise": falling}
    params = exp_factory.get_exp_config("lamb/resnet_imagenet")
    config = params.trainer.optimizer_config
    config.optimizer.override(
        {"type": "tf_lamb", "tf_lamb": {"weight_decay": 0.0, "weight_decay_schedule": schedule}}
    )
    (found,) = recipes._other_steps(config, Fraction(1, 4))
    place = ("optimizer", "tf_lamb", "weight_decay_schedule", "stepwise", "boundaries")
    assert found == (place, [25, 75])
    params.task.losses.l2_weight_decay = 1e-4
    with pytest.raises(UserError, match=r"tf_lamb.weight_decay_schedule.type=stepwise decays too"):
        experiment_checks._check_decay(params)
