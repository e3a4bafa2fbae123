"""Model Garden's trainer, of which one step is one update of the weights.

Under `gradient_accumulation_steps: N` an optimizer updates every N-th time it is called. This
trainer calls it N times a step, with an N-th of the batch each time, so that steps, intervals and
the learning rate count updates, and `task.train_data.global_batch_size` is the batch of an update,
on a pod and on one device alike.

A step whose gradients are not finite is skipped, in float16, too. `global_step` counts it; the
optimizer's `iterations`, which the learning rate follows, does not.
"""

import tensorflow as tf
from official.core import base_trainer, train_lib

from tf_lamb.model_garden.checks import records
from tf_lamb.model_garden.checks.data import no_batch
from tf_lamb.model_garden.common import batches, seams
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.experiments import steered
from tf_lamb.model_garden.folders import model_dirs
from tf_lamb.model_garden.running import runner


class Trainer(base_trainer.Trainer):
    """Model Garden's trainer in all but how often a step calls the task's."""

    def __init__(self, config, task, model, optimizer, *args, **kwargs):
        self._micro_batches = batches.micro_batches(config)
        super().__init__(config, task, model, optimizer, *args, **kwargs)
        if (measured := runner.measuring(optimizer)) is not None:
            try:  # now, where it can still refuse
                measured.build(model.trainable_variables)
            except ValueError as error:
                raise UserError(str(error)) from error

    def distribute_dataset(self, dataset_or_fn, data, *args, **kwargs):
        """See base class; the batches of training are micro-batches, and no value is beyond."""
        if data is self.config.task.train_data and self._micro_batches > 1:
            # Only now does a TPU say how many replicas it has.
            replicas = self.strategy.num_replicas_in_sync
            batches.per_replica_batch(data.global_batch_size, replicas, self._micro_batches)
            data = data.replace(global_batch_size=data.global_batch_size // self._micro_batches)
        if (within := records.limits(self.config.task, data)) and callable(dataset_or_fn):
            build = dataset_or_fn

            def dataset_or_fn(data, input_context=None):  # which orbit asks for by its name
                return records.checked(build(data, input_context), within)

        return super().distribute_dataset(dataset_or_fn, data, *args, **kwargs)

    def initialize(self):
        """See base class; an earlier stage may hand on its optimizer, too."""
        config = self.task.task_config
        try:
            super().initialize()
            if getattr(config, "init_optimizer", False):
                path = model_dirs.checkpoint_in(config.init_checkpoint)
                # With the model: averages, and slots of Model Garden's, are found by their weights.
                whole = tf.train.Checkpoint(model=self.model, optimizer=self.optimizer)
                whole.read(path).expect_partial().assert_existing_objects_matched()
        except ValueError as error:
            raise UserError(
                f"task.init_checkpoint={config.init_checkpoint} does not fit this model: {error}"
            ) from error

    def eval_begin(self):
        """See base class."""
        self._batches = 0
        return super().eval_begin()

    def eval_reduce(self, state=None, step_outputs=None):
        """See base class, which calls it after each batch."""
        self._batches += 1
        return super().eval_reduce(state, step_outputs)

    def eval_end(self, aggregated_logs=None):
        """See base class; without a batch there are no results."""
        # A loop of TensorFlow's calls no `eval_reduce`, and has an error of its own.
        if not self._batches and not self.config.trainer.eval_tf_while_loop:
            raise UserError(no_batch(self.config.task.validation_data))
        return super().eval_end(aggregated_logs)

    def train_loop_begin(self):
        """See base class; refuses what nobody sees to."""
        rate = steered.rate_of(self.optimizer)
        if rate and not rate.is_watched:
            raise UserError(
                "the learning rate follows the loss, and nobody watches the loss in this loop. "
                "Train with the runner of tf_lamb.model_garden.running.runner, or give the loop "
                "the action that the learning rate's own `action` makes"
            )
        super().train_loop_begin()

    def train_step(self, iterator):
        """See base class; as many micro-batches as the optimizer makes one update of."""
        if self._micro_batches == 1:
            return super().train_step(iterator)

        done = tf.identity(self.global_step)
        step = base_trainer.Trainer.train_step

        def micro_step(i):
            step(self, iterator)
            return [i + 1]

        tf.while_loop(lambda i: i < self._micro_batches, micro_step, [0], parallel_iterations=1)
        self.global_step.assign(done + 1)  # which each of them has counted


def register_trainer() -> None:
    """Makes Model Garden's `train_lib` use this trainer, and the runner that belongs to it.

    Unless gin is told to make another trainer, or a runner of ours is there.
    """
    if not issubclass(train_lib.OrbitExperimentRunner, runner.Runner):
        runner.install()
    seams.use_trainer(Trainer)
