"""Our experiments: Model Garden's, with our optimizers and numbers that come from the papers."""

import functools

from official.common import registry_imports  # noqa: F401  (registers the stock experiments)
from official.core import config_definitions, exp_factory

from tf_lamb.model_garden import configs, tasks


def lamb_bert_pretraining() -> config_definitions.ExperimentConfig:
    """`bert/pretraining` with LAMB: 1,000,000 steps at batch 512.

    Learning rate and warmup are those of untuned LAMB at this batch (arXiv:1904.00962v5):
    5 / (2^3 * 10^3) = 6.25e-4, and 1/320 of the steps.
    """
    experiment = exp_factory.get_exp_config("bert/pretraining")
    task = tasks.MaskedLMConfig(experiment.task.as_dict())
    task.scale_loss = True  # the stock default, false, came along
    experiment.task = task
    steps = experiment.trainer.train_steps
    experiment.trainer.optimizer_config = configs.OptimizationConfig(
        {
            "optimizer": {
                "type": "tf_lamb",
                "tf_lamb": {
                    "weight_decay": 0.01,
                    "exclude_from_weight_decay": ["LayerNorm", "layer_norm", "bias"],
                    "global_clipnorm": 1.0,
                },
            },
            "learning_rate": {
                "type": "polynomial",
                "polynomial": {
                    "initial_learning_rate": 6.25e-4,
                    "end_learning_rate": 0.0,
                    "decay_steps": steps,
                },
            },
            "warmup": {"type": "linear", "linear": {"warmup_steps": steps // 320}},
        }
    )
    return experiment


_EXPERIMENTS = {"lamb/bert_pretraining": lamb_bert_pretraining}


@functools.cache
def register_experiments() -> None:
    """Registers each experiment under its name."""
    for name, factory in _EXPERIMENTS.items():
        exp_factory.register_config_factory(name)(factory)
