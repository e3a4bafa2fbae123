"""A user's own rule in the Model Garden: a key of every experiment's optimizer config."""

import pytest
from official.modeling.optimization import OptimizerFactory
from support.user_rules import layerwise_lion, plain_sign

import tf_lamb.tf_keras
from tf_lamb import model_garden
from tf_lamb.core import rules
from tf_lamb.model_garden.experiments import optimizers


@pytest.fixture(autouse=True)
def no_rule_stays():
    tables = (rules.ALL, optimizers.OPTIMIZERS, optimizers.SETTINGS)
    before = [dict(table) for table in tables]
    yield
    for table, was in zip(tables, before, strict=True):
        table.clear()
        table.update(was)


def config_with(kind, settings):
    from official.core import exp_factory

    model_garden.register()
    params = exp_factory.get_exp_config("lamb/bert_pretraining")
    config = params.trainer.optimizer_config
    config.override({"optimizer": {"type": kind, kind: settings}})
    return config


def test_its_key_builds_it_with_its_settings():
    lion = tf_lamb.tf_keras.optimizer_of(layerwise_lion)
    model_garden.register_optimizer("layerwise_lion", lion)
    config = config_with("layerwise_lion", {"beta_1": 0.8, "weight_decay": 0.01})
    optimizer = OptimizerFactory(config).build_optimizer(0.1)
    assert isinstance(optimizer, lion)
    assert (optimizer.beta_1, optimizer.get_config()["weight_decay"]) == (0.8, 0.01)


def test_a_key_that_is_taken_is_refused():
    sign = tf_lamb.tf_keras.optimizer_of(plain_sign)
    with pytest.raises(ValueError, match="'tf_lamb' is LAMB: register another key"):
        model_garden.register_optimizer("tf_lamb", sign)


def test_a_key_of_the_model_garden_is_refused():
    sign = tf_lamb.tf_keras.optimizer_of(plain_sign)
    with pytest.raises(ValueError, match="'adamw' is an optimizer of the Model Garden"):
        model_garden.register_optimizer("adamw", sign)


def test_what_is_no_class_of_ours_is_refused():
    with pytest.raises(TypeError, match="is no class that tf_lamb.tf_keras.optimizer_of made"):
        model_garden.register_optimizer("mine", layerwise_lion)
