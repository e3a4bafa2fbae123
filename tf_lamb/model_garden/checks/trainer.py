"""Checks of the settings of a trainer: steps, intervals, and what the best checkpoint is."""

import math

import tensorflow as tf
from official.core import base_task, task_factory

from tf_lamb.model_garden.common.errors import UserError, unknown
from tf_lamb.model_garden.folders import checkpoints


def check_loop(trainer, evaluating: bool) -> None:
    """Raises where summaries or checkpoints cannot be had at their intervals.

    They are written between two loops of steps; an evaluation ends a loop, too.
    """
    loop, every = trainer.steps_per_loop, trainer.checkpoint_interval
    if not isinstance(loop, int) or loop < 1:
        raise UserError(f"trainer.steps_per_loop is {loop}. Set it to 1 or more")
    intervals = {"summary_interval": trainer.summary_interval}
    evaluated = trainer.validation_interval if evaluating else None
    if every < trainer.train_steps and not (evaluated and every % evaluated == 0):
        intervals["checkpoint_interval"] = every
    for name, interval in intervals.items():
        if interval and interval % loop:
            fits = math.gcd(loop, *filter(None, intervals.values()))
            raise UserError(
                f"trainer.{name}={interval:,} is no multiple of trainer.steps_per_loop={loop:,}. "
                f"Write trainer.steps_per_loop={fits:,}, or another interval"
            )


def check_best(params) -> None:
    """Raises where what the best checkpoint is chosen by is no result of an evaluation."""
    trainer = params.trainer
    name, best = trainer.best_checkpoint_eval_metric, trainer.best_checkpoint_metric_comp
    if not name or not trainer.best_checkpoint_export_subdir:
        return
    if best not in ("higher", "lower"):
        raise UserError(unknown("trainer.best_checkpoint_metric_comp", best, ("higher", "lower")))
    if (known := _results(params.task)) and name not in known:
        raise UserError(unknown("trainer.best_checkpoint_eval_metric", name, known))


def _results(config) -> list[str]:
    """The names of an evaluation's results; none where they are known only after the first."""
    try:
        with tf.Graph().as_default():  # makes no variable on a device
            task = task_factory.get_task(config, logging_dir=None)
            names = [metric.name for metric in task.build_metrics(training=False)]
    except Exception:  # which its main will have, too
        return []
    is_known = type(task).reduce_aggregated_logs is base_task.Task.reduce_aggregated_logs
    return ["validation_loss", *names] if is_known else []


def check_steps(params, model_dir: str) -> None:
    """Raises where more steps were taken than are asked for."""
    done, steps = checkpoints.steps_done(model_dir), params.trainer.train_steps
    if done > steps:
        raise UserError(
            f"--model_dir={model_dir} has taken {done:,} steps, more than trainer.train_steps="
            f"{steps:,}. Write trainer.train_steps=N, with more than {done:,}, to go on, or choose "
            "another --model_dir"
        )
