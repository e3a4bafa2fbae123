"""Extends two tasks of Model Garden for large batches.

The masked-LM task gets loss scaling in float16, and can continue with the next batch of its data
when a run resumes. The image classification task gets batch normalization over groups of examples
(ghost batch normalization).
"""

import dataclasses
import functools
import types

import tensorflow as tf
from absl import logging
from official.core import base_task, task_factory
from official.nlp.data import data_loader_factory, pretrain_dataloader
from official.nlp.tasks import masked_lm
from official.vision.configs import image_classification as image_configs
from official.vision.tasks import image_classification

import tf_lamb.tf_keras
from tf_lamb.model_garden.common import seams
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.folders import checkpoints, model_dirs


@dataclasses.dataclass
class PretrainDataConfig(pretrain_dataloader.BertPretrainDataConfig):
    """Model Garden's pretraining data config, with two more fields.

    Attributes:
        resume_in_order: Whether a run that resumes from a checkpoint continues with the batch after
            the last one before the checkpoint, and not with the first batch. Needs `seed`, and the
            same `global_batch_size` and number of replicas as before. The earlier batches are read
            and thrown away. That takes half a second for a thousand small batches, but much longer
            if the run has taken many steps. Defaults to False.
        begin_example: The number of examples on which earlier stages of training have trained. With
            `resume_in_order` these examples are skipped. Defaults to 0.
    """

    resume_in_order: bool = False
    begin_example: int = 0


@dataclasses.dataclass
class MaskedLMConfig(masked_lm.MaskedLMConfig):
    """Model Garden's masked-LM config, with another default for `scale_loss` and one more field.

    Attributes:
        scale_loss: Whether gradients are averaged over the replicas and, in float16, the loss is
            scaled. False gives Model Garden's own train step, which sums the gradients over the
            replicas and leaves float16 without loss scaling. Defaults to True.
        init_optimizer: Whether a run that starts from `init_checkpoint` also restores the optimizer
            from it: the slot variables and the number of steps, which bias correction needs. The
            learning-rate schedule would continue at that step, too. To start it anew, set
            `warmup.tf_lamb.begin_step` to that number. Defaults to False.
        train_data: The training data, a `PretrainDataConfig`.
        validation_data: The validation data, a `PretrainDataConfig`.
    """

    scale_loss: bool = True
    init_optimizer: bool = False
    train_data: PretrainDataConfig = dataclasses.field(default_factory=PretrainDataConfig)
    validation_data: PretrainDataConfig = dataclasses.field(
        default_factory=lambda: PretrainDataConfig(is_training=False)
    )


_of_our_data = data_loader_factory.register_data_loader_cls(PretrainDataConfig)
_of_our_data(pretrain_dataloader.BertPretrainDataLoader)


def check_order(data) -> None:
    """Checks that a data config with `resume_in_order` gives its examples in a fixed order.

    Args:
        data: The config of the training data.

    Raises:
        UserError: if `resume_in_order` is set and the order of the examples is not fixed.
    """
    if not getattr(data, "resume_in_order", False):
        return
    if data.seed is None or data.deterministic is False:
        raise UserError(
            "task.train_data.resume_in_order needs task.train_data.seed, any number, and no "
            "task.train_data.deterministic=false"
        )
    if data.enable_tf_data_service:
        raise UserError(
            "task.train_data.resume_in_order cannot hold with enable_tf_data_service, which deals "
            "batches out in no fixed order: set one of the two to false"
        )


def check_heads(task, evaluating: bool) -> None:
    """Checks the next-sentence labels of a masked-LM task.

    If the training data have these labels, the model needs a head for them. The validation data
    must have the labels if and only if the training data do.

    Args:
        task: The config of the task; only a masked-LM config is checked.
        evaluating: Whether the run evaluates.

    Raises:
        UserError: if the head is missing, or training and validation data differ.
    """
    if not isinstance(task, masked_lm.MaskedLMConfig):
        return
    # seam: relies on tf-models-official 2.20.0. Its loss reads only the output of the head named
    # `next_sentence`, and the settings of `train_data` decide which metrics an evaluation has.
    setting = "use_next_sentence_label"
    labeled, parts = getattr(task.train_data, setting, False), ("train_data", "validation_data")
    if evaluating and getattr(task.validation_data, setting, labeled) != labeled:
        raise UserError(
            f"task.train_data.{setting} is {labeled}, and task.validation_data.{setting} is "
            f"{not labeled}. Write the same for both"
        )
    names = [head.name for head in task.model.cls_heads or ()]
    if labeled and "next_sentence" not in names:
        overrides = ",".join(f"task.{part}.{setting}=false" for part in parts)
        raise UserError(
            f"task.model.cls_heads has no head named next_sentence, which the labels of the next "
            f"sentence need, but {', '.join(map(repr, names)) or 'none'}. Name one so, or write "
            f"{overrides}"
        )


@task_factory.register_task_cls(MaskedLMConfig)
class MaskedLMTask(masked_lm.MaskedLMTask):
    """Model Garden's masked-LM task, with loss scaling in its train step, and `resume_in_order`."""

    def build_model(self, params=None):
        """Builds the model as the base class does, and also creates the weights of its heads."""
        model = super().build_model(params)
        # Model Garden would create the weights of the heads in the first step, where each replica
        # runs in a thread of its own. The threads share Python's random numbers, so a seed would
        # not determine the weights.
        model(model.inputs)
        return model

    def initialize(self, model):
        """Restores every weight of the model from `task.init_checkpoint`.

        If it is not set, or was not saved by a Model Garden trainer, calls the base class. Logs a
        warning if the checkpoint has variables that the model lacks.

        Args:
            model: The model.

        Raises:
            ValueError: if the checkpoint lacks a variable of the model.
        """
        path = self.task_config.init_checkpoint
        path = path and model_dirs.checkpoint_in(path)
        names = [name for name, _ in tf.train.list_variables(path)] if path else []
        if not path or not any(name.startswith("model/") for name in names):
            super().initialize(model)
            return
        # The base class is not used, because it does not restore the last layer of the head for the
        # next sentence.
        checkpoint = tf.train.Checkpoint(model=model)
        missing, extra = checkpoints.gaps(path, checkpoint, model.variables)
        if missing:
            raise ValueError(checkpoints.lacks(missing))
        if extra:
            logging.warning(
                "task.init_checkpoint=%s holds %d variables that this model has not, %s for one: "
                "they are left out.", path, len(extra), extra[0]
            )  # fmt: skip
        checkpoint.read(path).expect_partial()
        logging.info("Took over the weights of %s.", path)

    def build_inputs(self, params, input_context=None):
        """Makes the dataset as the base class does; with `resume_in_order`, skips earlier batches.

        Args:
            params: The data config.
            input_context: The `tf.distribute.InputContext`. Defaults to None.

        Returns:
            The dataset.

        Raises:
            UserError: if `resume_in_order` is set and the order of the examples is not fixed.
        """
        dataset = super().build_inputs(params, input_context)
        if not (params.is_training and getattr(params, "resume_in_order", False)):
            return dataset
        check_order(params)
        steps = checkpoints.steps_done(self.logging_dir)
        examples_seen = steps * self.task_config.train_data.global_batch_size + params.begin_example
        # One element of the dataset is the micro-batch of one replica. In `params`, the trainer has
        # set `global_batch_size` to the examples of a micro-batch over all replicas. In
        # `task_config`, `global_batch_size` is still the number of examples of an update. An input
        # pipeline reads one element for each of its replicas.
        elements = examples_seen // params.global_batch_size
        if input_context is not None:
            elements *= input_context.num_replicas_in_sync // input_context.num_input_pipelines
        if examples_seen:
            logging.info("Skipping the batches of %d examples that were seen.", examples_seen)
        return dataset.skip(elements)

    def train_step(self, inputs, model, optimizer, metrics):
        """Runs a training step; scales the loss in float16, and averages gradients over replicas.

        With `scale_loss=False`, runs the step of the base class.

        Args:
            inputs: A batch of one replica.
            model: The model.
            optimizer: The optimizer.
            metrics: The metrics to update.

        Returns:
            Name -> value of the loss and the metrics.
        """
        if not self.task_config.scale_loss:
            return super().train_step(inputs, model, optimizer, metrics)
        # seam: relies on tf-models-official 2.20.0. `base_task.Task.train_step` scales the loss and
        # averages, but does not pass the metrics to `build_losses`, which needs them for this task.
        # So it gets an object in place of the task, whose `build_losses` has the metrics.
        task = types.SimpleNamespace(
            loss=self.loss,
            build_losses=functools.partial(self.build_losses, metrics=metrics),
            process_metrics=self.process_metrics,
        )
        return base_task.Task.train_step(task, inputs, model, optimizer, metrics)


seams.add_export(MaskedLMTask)


@dataclasses.dataclass
class ImageClassificationConfig(image_configs.ImageClassificationTask):
    """Model Garden's image classification config, with two more fields.

    Attributes:
        init_optimizer: The same as in `MaskedLMConfig`. Defaults to False.
        ghost_batch_size: The number of examples in a group of batch normalization, as
            `tf_lamb.tf_keras.GhostBatchNormalization` documents. It must divide the number of
            examples that a replica sees at once. Defaults to None: Model Garden's batch
            normalization, without groups.
    """

    init_optimizer: bool = False
    ghost_batch_size: int | None = None


@task_factory.register_task_cls(ImageClassificationConfig)
class ImageClassificationTask(image_classification.ImageClassificationTask):
    """Model Garden's image classification task, with ghost batch normalization."""

    def build_model(self):
        """Builds the model as the base class does; `ghost_batch_size` changes its normalization."""
        model = super().build_model()
        if (size := self.task_config.ghost_batch_size) is not None:
            tf_lamb.tf_keras.replace_batch_normalization(model, size)
        return model


def check_groups(params, examples: int) -> None:
    """Checks that `ghost_batch_size`, if it is set, splits the examples of a replica into groups.

    Args:
        params: The experiment's `ExperimentConfig`.
        examples: The number of examples that a replica sees at once.

    Raises:
        UserError: if `ghost_batch_size` does not divide `examples`, or if batch normalization is
            synchronized over the replicas.
    """
    size = getattr(params.task, "ghost_batch_size", None)
    if size is None:
        return
    if params.task.model.norm_activation.use_sync_bn:
        raise UserError(
            f"task.ghost_batch_size={size} normalizes within a replica, and task.model."
            "norm_activation.use_sync_bn over all of them: set one of the two to null or false"
        )
    if not isinstance(size, int) or size < 1 or examples % size:
        raise UserError(
            f"task.ghost_batch_size={size} does not divide the {examples:,} examples that are seen "
            "at once. Take one that does, or another task.train_data.global_batch_size"
        )
