"""Registers, on import, experiments of Model Garden with the settings of published recipes."""

from official.common import registry_imports  # noqa: F401  (registers Model Garden's experiments)
from official.core import exp_factory
from official.modeling import optimization

from tf_lamb.core import recipes
from tf_lamb.model_garden.experiments.recipes import intervals, settings_of_recipe
from tf_lamb.model_garden.tasks import ImageClassificationConfig, MaskedLMConfig


def _trained_by(recipe: recipes.Recipe, stock: str):
    """Returns the Model Garden experiment named `stock`, overridden with settings of a recipe.

    These are the optimizer, the learning rate schedule, the batch size, the steps and the label
    smoothing.
    """
    experiment = exp_factory.get_exp_config(stock)
    experiment.trainer.override(intervals(experiment.trainer, recipe.train_steps))
    experiment.trainer.optimizer_config = optimization.OptimizationConfig()
    experiment.override(settings_of_recipe(recipe), is_strict=True)
    return experiment


def _bert(recipe: recipes.Recipe):
    """Returns `bert/pretraining` with the settings of a recipe, and this package's task."""
    experiment = _trained_by(recipe, "bert/pretraining")
    experiment.task = MaskedLMConfig(experiment.task.as_dict())
    experiment.task.scale_loss = True  # as_dict() copied False, the default of Model Garden
    return experiment


def _resnet(recipe: recipes.Recipe):
    """Returns `resnet_imagenet` with the settings of a recipe, and this package's task."""
    experiment = _trained_by(recipe, "resnet_imagenet")
    experiment.task = ImageClassificationConfig(experiment.task.as_dict())
    experiment.task.losses.l2_weight_decay = 0.0  # the optimizer decays the weights
    return experiment


@exp_factory.register_config_factory("lamb/bert_pretraining")
def lamb_bert_pretraining():
    """Returns `bert/pretraining` with LAMB, by the LAMB paper's recipe for a batch of 512.

    That is the smallest batch size in the paper's table of untuned LAMB, whose settings follow from
    the batch size alone.
    """
    return _bert(recipes.published("untuned_lamb_bert", 512))


@exp_factory.register_config_factory("lamb/bert_pretraining_phase2")
def lamb_bert_pretraining_phase2():
    """Returns `bert/pretraining` as the second stage of the LAMB paper's mixed-batch training.

    The batch is 32,768 sequences of 512 tokens. Set `task.init_checkpoint` to the folder of the
    first stage.
    """
    return _bert(recipes.published("bert_mixed_batch").stages[1])


@exp_factory.register_config_factory("lamb/resnet_imagenet")
def lamb_resnet_imagenet():
    """Returns `resnet_imagenet` with LAMB, by the LAMB paper's recipe for a batch of 512.

    That is the smallest batch size in the paper's table of untuned LAMB, whose settings follow from
    the batch size alone.
    """
    return _resnet(recipes.published("untuned_lamb_resnet50", 512))


@exp_factory.register_config_factory("lars/resnet_imagenet")
def lars_resnet_imagenet():
    """Returns `resnet_imagenet` with LARS, by the LEGW paper's recipe for a batch of 512.

    That is the batch size from which the recipe scales to larger ones.
    """
    return _resnet(recipes.published("legw_resnet50_lars", 512))
