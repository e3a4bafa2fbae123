"""Model Garden's image classification task, with batch normalization by groups."""

import dataclasses

from official.core import task_factory
from official.vision.configs import image_classification as configs
from official.vision.tasks import image_classification

import tf_lamb.tf_keras
from tf_lamb.model_garden.common import batches
from tf_lamb.model_garden.common.errors import UserError


@dataclasses.dataclass
class ImageClassificationConfig(configs.ImageClassificationTask):
    """Model Garden's image classification config, and two fields more.

    Attributes:
        init_optimizer: as of our masked-LM task.
        ghost_batch_size: examples that batch normalization takes together, as
            `tf_lamb.tf_keras.GhostBatchNormalization` documents; divides what a replica sees at
            once. None leaves Model Garden's own, over all that a replica sees.
    """

    init_optimizer: bool = False
    ghost_batch_size: int | None = None


@task_factory.register_task_cls(ImageClassificationConfig)
class ImageClassificationTask(image_classification.ImageClassificationTask):
    """Model Garden's image classification task in all but its batch normalization."""

    def build_model(self):
        """See base class; normalizes by groups where that was asked for."""
        model = super().build_model()
        if (size := self.task_config.ghost_batch_size) is not None:
            tf_lamb.tf_keras.replace_batch_normalization(model, size)
        return model


def check_groups(params, examples) -> None:
    """Raises where a replica's examples cannot be normalized by groups."""
    size = getattr(params.task, "ghost_batch_size", None)
    if size is None:
        return
    if not isinstance(size, int) or size < 1:
        raise UserError(f"task.ghost_batch_size is {size}. Set it to 1 or more, or to null")
    if params.task.model.norm_activation.use_sync_bn:
        raise UserError(
            f"task.ghost_batch_size={size} normalizes within a replica, and task.model."
            "norm_activation.use_sync_bn over all of them: set one of the two to null or false"
        )
    if examples % size:
        known = batches.replicas(params) is not None
        seen = "a replica sees at once" if known else "all replicas see together"
        raise UserError(
            f"task.ghost_batch_size={size} does not divide the {examples:,} examples that {seen}. "
            "Take one that does, or another task.train_data.global_batch_size"
        )
