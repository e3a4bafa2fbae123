"""Seconds of a step: a few steps of the experiment's own task and trainer, on one device."""

import statistics
import time

import tensorflow as tf
from official.common import distribute_utils
from official.core import task_factory, train_utils
from official.modeling import performance

from tf_lamb.model_garden.common.errors import UserError

CALLS, STEPS = 3, 3  # that are timed, and the steps of each


def sizes(most: int) -> list[int]:
    """The micro-batches to time: the largest, a quarter and a sixteenth of it."""
    if most < 2:
        raise UserError(
            "one example at once cannot be timed against fewer: write --micro_batch_size=N, the "
            "most examples that a device holds, or --step_seconds"
        )
    return sorted({max(most // part, 1) for part in (16, 4, 1)})


def one_micro_batch(params, batch: int):
    """The experiment at this batch, without accumulation, and so without what it measures."""
    optimizer = params.trainer.optimizer_config.optimizer
    alone = {"gradient_accumulation_steps": 1, "measure_noise": {"enabled": False}}
    if not hasattr(optimizer.get(), "gradient_accumulation_steps"):
        alone = {}
    return params.replace(
        task={"train_data": {"global_batch_size": batch}},
        trainer={"optimizer_config": {"optimizer": {optimizer.type: alone}}},
    )


def seconds(params, examples: int) -> float:
    """Seconds of a step of this many examples on one device, reading and update included.

    The median of a few calls; one before them compiles. Nothing is saved.

    Args:
        params: the experiment.
        examples: the micro-batch.

    Raises:
        UserError: where such a step does not fit the device.
    """
    params = one_micro_batch(params, examples)
    if params.runtime.mixed_precision_dtype:
        performance.set_mixed_precision_policy(params.runtime.mixed_precision_dtype)
    strategy = distribute_utils.get_distribution_strategy(
        "one_device", num_gpus=min(params.runtime.num_gpus, 1)
    )
    try:
        with strategy.scope():
            task = task_factory.get_task(params.task)
            trainer = train_utils.create_trainer(params, task, train=True, evaluate=False)
            trainer.has_our_runner = True  # nobody has to see to so few steps
            _train(trainer, 1)
            return statistics.median(_train(trainer, STEPS) / STEPS for _ in range(CALLS))
    except tf.errors.ResourceExhaustedError as error:
        raise UserError(
            f"{examples:,} examples at once do not fit this device: write --micro_batch_size=N, "
            "with fewer"
        ) from error


def _train(trainer, steps):
    """Seconds that so many steps take, until their loss is known."""
    begun = time.perf_counter()
    float(trainer.train(tf.constant(steps))["training_loss"])
    return time.perf_counter() - begun
