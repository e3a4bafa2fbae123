"""Our optimizers and schedules in every experiment that Model Garden registers."""

import gin
import pytest

pytest.importorskip("official")

import yaml
from official.core import exp_factory
from official.modeling import hyperparams, optimization

import tf_lamb.tf_keras
from tf_lamb.model_garden.experiments import optimizers, parsing

SETTINGS = {
    "optimizer": {"type": "tf_lamb", "tf_lamb": {"beta_2": 0.99}},
    "learning_rate": {
        "type": "tf_lamb_polynomial",
        "tf_lamb_polynomial": {"initial_learning_rate": 0.1, "steps": 90},
    },
    "warmup": {"type": "tf_lamb", "tf_lamb": {"steps": 10}},
}
YAML = yaml.safe_dump({"trainer": {"train_steps": 100, "optimizer_config": SETTINGS}})
EXPERIMENTS = sorted(parsing.experiments())


@pytest.fixture
def yaml_file(tmp_path):
    (tmp_path / "some.yaml").write_text(YAML)
    return str(tmp_path / "some.yaml")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_yaml_names_ours(name, yaml_file):
    params = exp_factory.get_exp_config(name)
    # As Model Garden's mains read a YAML.
    hyperparams.override_params_dict(params, yaml_file, is_strict=True)
    config = params.trainer.optimizer_config
    assert isinstance(config.optimizer.get(), optimizers.SETTINGS["tf_lamb"])
    assert config.optimizer.get().beta_2 == 0.99
    assert config.as_dict()["optimizer"].keys() == {"type", "tf_lamb"}
    config.ema = None
    factory = optimization.OptimizerFactory(config)
    rate = factory.build_learning_rate()
    assert float(rate(5)) == pytest.approx(0.05)
    assert type(factory.build_optimizer(rate)) is tf_lamb.tf_keras.LAMB


def test_a_choice_of_someone_else_knows_ours_too():
    with gin.unlock_config():  # a main that ran before in this process has locked it
        from official.projects.detr import optimization as detr

    config = detr.OptimizationConfig(SETTINGS)
    assert config.optimizer.get().beta_2 == 0.99
    assert config.optimizer.detr_adamw is not None


def test_a_choice_that_is_older_than_ours_knows_ours_where_it_is_copied():
    """Model Garden's pretraining experiments copy one that was made when they were imported."""
    old = optimization.OptimizationConfig()
    for choice in (old.optimizer, old.learning_rate, old.warmup):
        for key in [key for key in choice.__dict__ if key.startswith("tf_")]:
            del choice.__dict__[key]
    params = exp_factory.get_exp_config("bert/pretraining")
    params.trainer.optimizer_config = old
    params.override({"trainer": {"optimizer_config": SETTINGS}}, is_strict=True)
    assert params.trainer.optimizer_config.optimizer.get().beta_2 == 0.99
