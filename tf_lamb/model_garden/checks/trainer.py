"""Checks the settings of a trainer: steps, intervals, and the choice of the best checkpoint."""

import math

import tensorflow as tf
from official.core import base_task, task_factory

from tf_lamb.model_garden.common.errors import UserError, unknown
from tf_lamb.model_garden.folders import checkpoints


def check_loop(trainer, evaluating: bool) -> None:
    """Checks the intervals of a trainer, in steps.

    Orbit trains in loops of `steps_per_loop` steps, and writes summaries and checkpoints between
    two loops. An evaluation that is due within a loop ends the loop earlier.

    Args:
        trainer: the settings of the trainer.
        evaluating: whether the run evaluates.

    Raises:
        UserError: if `steps_per_loop` or `checkpoint_interval` is below 1, or if `steps_per_loop`
            does not divide an interval of summaries or checkpoints.
    """
    steps_per_loop, checkpoint_interval = trainer.steps_per_loop, trainer.checkpoint_interval
    steps = {"steps_per_loop": steps_per_loop, "checkpoint_interval": checkpoint_interval}
    for name, count in steps.items():
        if not isinstance(count, int) or count < 1:
            raise UserError(f"trainer.{name} is {count}. Set it to 1 or more")
    intervals = {"summary_interval": trainer.summary_interval}
    validation_interval = trainer.validation_interval if evaluating else None
    # If every checkpoint is due at a step with an evaluation, the interval of checkpoints need not
    # be a multiple of `steps_per_loop`, because an evaluation ends a loop.
    if checkpoint_interval < trainer.train_steps and not (
        validation_interval and checkpoint_interval % validation_interval == 0
    ):
        intervals["checkpoint_interval"] = checkpoint_interval
    for name, interval in intervals.items():
        if interval and interval % steps_per_loop:
            divisor = math.gcd(steps_per_loop, *filter(None, intervals.values()))
            raise UserError(
                f"trainer.{name}={interval:,} is no multiple of trainer.steps_per_loop="
                f"{steps_per_loop:,}. Write trainer.steps_per_loop={divisor:,}, or another interval"
            )


def check_best(params) -> None:
    """Checks the metric by which the best checkpoint is chosen.

    Args:
        params: the experiment's `ExperimentConfig`.

    Raises:
        UserError: if evaluations do not report that metric, or the comparison is unknown.
    """
    trainer = params.trainer
    name, comparison = trainer.best_checkpoint_eval_metric, trainer.best_checkpoint_metric_comp
    if not name or not trainer.best_checkpoint_export_subdir:
        return
    if comparison not in ("higher", "lower"):
        raise UserError(
            unknown("trainer.best_checkpoint_metric_comp", comparison, ("higher", "lower"))
        )
    if (metrics := _results(params.task)) and name not in metrics:
        raise UserError(unknown("trainer.best_checkpoint_eval_metric", name, metrics))


def _results(config) -> list[str]:
    """Returns the names of the results of an evaluation, such as "validation_loss".

    The list is empty if they cannot be known before the run.
    """
    try:
        with tf.Graph().as_default():  # in a graph, no variable is made on a device
            task = task_factory.get_task(config, logging_dir=None)
            names = [metric.name for metric in task.build_metrics(training=False)]
    except Exception:  # ignored, because Model Garden's main raises it later
        return []
    is_known = type(task).reduce_aggregated_logs is base_task.Task.reduce_aggregated_logs
    return ["validation_loss", *names] if is_known else []


def check_steps(params, model_dir: str) -> None:
    """Checks that the run in a folder has not taken more steps than `trainer.train_steps`.

    Args:
        params: the experiment's `ExperimentConfig`.
        model_dir: the folder of the run.

    Raises:
        UserError: if the run has taken more steps.
    """
    step, train_steps = checkpoints.steps_done(model_dir), params.trainer.train_steps
    if step > train_steps:
        raise UserError(
            f"--model_dir={model_dir} has taken {step:,} steps, more than trainer.train_steps="
            f"{train_steps:,}. Write trainer.train_steps=N, with more than {step:,}, to go on, or "
            "choose another --model_dir"
        )
