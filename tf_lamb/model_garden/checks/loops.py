"""What can be known to be wrong with a run's steps and intervals, one sentence each."""

import math

from tf_lamb.model_garden.folders import checkpoints


def why_no_loop(trainer, evaluating: bool) -> str | None:
    """Why summaries or checkpoints cannot be had at their intervals, or None.

    They are written between two loops of steps; an evaluation ends a loop, too.
    """
    loop, every = trainer.steps_per_loop, trainer.checkpoint_interval
    if not isinstance(loop, int) or loop < 1:
        return f"trainer.steps_per_loop is {loop}. Set it to 1 or more"
    intervals = {"summary_interval": trainer.summary_interval}
    ends_loops = (
        evaluating and trainer.validation_interval and not every % trainer.validation_interval
    )
    if every < trainer.train_steps and not ends_loops:
        intervals["checkpoint_interval"] = every
    for name, interval in intervals.items():
        if interval and interval % loop:
            fits = math.gcd(loop, *filter(None, intervals.values()))
            return (
                f"trainer.{name}={interval:,} is no multiple of trainer.steps_per_loop={loop:,}. "
                f"Write trainer.steps_per_loop={fits:,}, or another interval"
            )
    return None


def why_no_steps(params, model_dir: str) -> str | None:
    """Why training has no steps left, or None."""
    done, steps = checkpoints.steps_done(model_dir), params.trainer.train_steps
    if done > steps:
        return (
            f"--model_dir={model_dir} has taken {done:,} steps, more than trainer.train_steps="
            f"{steps:,}. Write trainer.train_steps=N, with more than {done:,}, to go on, or choose "
            "another --model_dir"
        )
    return None
