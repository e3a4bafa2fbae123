"""Our experiments: Model Garden's, with our optimizers and the numbers of a published recipe.

Nothing of Model Garden is imported before one is asked for: their names are wanted at once.
"""

import functools

from tf_lamb.core import recipes
from tf_lamb.model_garden.experiments.recipes import intervals, settings


def _trained_by(recipe: recipes.Recipe, stock: str):
    """A stock experiment with the optimizer, the schedule and the steps of a recipe."""
    from official.core import exp_factory
    from official.modeling import optimization

    experiment = exp_factory.get_exp_config(stock)
    experiment.trainer.override(intervals(experiment.trainer, recipe.train_steps))
    experiment.trainer.optimizer_config = optimization.OptimizationConfig()
    experiment.override(settings(recipe), is_strict=True)
    return experiment


def _bert(recipe: recipes.Recipe):
    from tf_lamb.model_garden.tasks import masked_lm as tasks

    experiment = _trained_by(recipe, "bert/pretraining")
    task = tasks.MaskedLMConfig(experiment.task.as_dict())
    task.scale_loss = True  # the stock default, false, came along
    experiment.task = task
    return experiment


def lamb_bert_pretraining():
    """`bert/pretraining` with untuned LAMB, at the paper's smallest batch: 512."""
    return _bert(recipes.untuned_lamb_bert(512))


def lamb_bert_pretraining_phase2():
    """`bert/pretraining` as the second stage of mixed-batch BERT: 32,768 at 512 tokens.

    Name the first stage's folder in `task.init_checkpoint`.
    """
    return _bert(recipes.bert_mixed_batch().stages[1])


def _resnet(recipe: recipes.Recipe):
    from tf_lamb.model_garden.tasks import images as image_tasks

    experiment = _trained_by(recipe, "resnet_imagenet")
    experiment.task = image_tasks.ImageClassificationConfig(experiment.task.as_dict())
    experiment.task.losses.l2_weight_decay = 0.0  # the optimizer decays
    return experiment


def lamb_resnet_imagenet():
    """`resnet_imagenet` with untuned LAMB, at the paper's smallest batch: 512."""
    return _resnet(recipes.untuned_lamb_resnet50(512))


def lars_resnet_imagenet():
    """`resnet_imagenet` with LARS by LEGW, at the smallest batch that was reproduced: 512."""
    return _resnet(recipes.legw_resnet50_lars(512))


def lars_resnet_imagenet_conadv():
    """`lars/resnet_imagenet`, trained on adversarial examples of each batch too."""
    from tf_lamb.model_garden.tasks import adversarial as adversarial_tasks

    experiment = lars_resnet_imagenet()
    experiment.task = adversarial_tasks.ConcurrentAdversarialConfig(experiment.task.as_dict())
    return experiment


_EXPERIMENTS = {
    "lamb/bert_pretraining": lamb_bert_pretraining,
    "lamb/bert_pretraining_phase2": lamb_bert_pretraining_phase2,
    "lamb/resnet_imagenet": lamb_resnet_imagenet,
    "lars/resnet_imagenet": lars_resnet_imagenet,
    "lars/resnet_imagenet_conadv": lars_resnet_imagenet_conadv,
}


@functools.cache
def register_experiments() -> None:
    """Registers each experiment under its name, beside the stock ones."""
    from official.common import registry_imports  # noqa: F401  (registers those)
    from official.core import exp_factory

    for name, factory in _EXPERIMENTS.items():
        exp_factory.register_config_factory(name)(factory)
