"""An experiment whose batch grows: its stages are those of `recipes.growing`.

Rates and steps are the recipe's. Intervals keep their examples, averages of the weights begin with
the same example, and data that resume in order go on from stage to stage.
"""

import dataclasses
import math
from typing import Any

from tf_lamb.core import recipes, schedules
from tf_lamb.model_garden.common.errors import UserError, named
from tf_lamb.model_garden.experiments.recipes import intervals, learning_rate

_SGD = ("sgd", "sgd_experimental", "tf_sgdp")


def grown(params, largest_batch: int, title: str, examples=None) -> tuple[str, list[dict]]:
    """The arithmetic of a batch that grows, and the settings of each stage.

    Args:
        params: the experiment at its first batch, which can be trained.
        largest_batch: examples an update, at most.
        title: of the experiment.
        examples: of its training data, where they are known.

    Raises:
        UserError: where its batch cannot grow.
    """
    _check(params, largest_batch)
    with named(f"--largest_batch={largest_batch}"):
        recipe = dataclasses.replace(recipe_of(params, title), examples=examples)
        staged = recipes.growing(recipe, largest_batch)
    settings, seen = [], 0
    for stage in staged:
        settings.append(_settings(params, staged, stage, seen))
        seen += stage.examples_seen
    return str(staged), settings


def _check(params, largest_batch) -> None:
    batch, task = params.task.train_data.global_batch_size, params.task
    if largest_batch < 2 * batch:
        raise UserError(
            f"--largest_batch={largest_batch} is less than twice task.train_data."
            f"global_batch_size={batch}. Write --largest_batch={2 * batch}, or more"
        )
    if not hasattr(task, "init_optimizer"):
        raise UserError(
            f"--largest_batch keeps the optimizer from stage to stage, and {type(task).__name__} "
            "cannot hand it over. Take lamb/bert_pretraining, lamb/resnet_imagenet or another "
            "experiment of ours"
        )
    optimizer = params.trainer.optimizer_config.optimizer
    path, own = f"trainer.optimizer_config.optimizer.{optimizer.type}", optimizer.get()
    if getattr(getattr(own, "adascale", None), "scale", None) is not None:
        raise UserError(
            "--largest_batch: AdaScale scales the rate of one batch, and would go on counting its "
            f"steps. Write {path}.adascale.scale=null"
        )
    if getattr(getattr(own, "weight_decay_schedule", None), "type", None):
        raise UserError(
            f"--largest_batch takes fewer steps, which {path}.weight_decay_schedule counts. Write "
            f"{path}.weight_decay_schedule.type=null, and a number as weight_decay"
        )


def recipe_of(params, title: str) -> recipes.Recipe:
    """An experiment as a recipe, whose rate at every step is that of its settings."""
    config = params.trainer.optimizer_config
    kind, warmup = config.learning_rate.type, config.warmup.type
    decay = _decay(kind, config.learning_rate.get())
    found = decay and _warmed(decay, warmup, config.warmup.get())
    if not found:
        raise UserError(
            f"no batch grows with learning_rate.type={kind} and warmup.type={warmup}. Write tf_lamb"
            "_polynomial or polynomial, without offset or cycle, after no warmup or a linear one"
        )
    return recipes.Recipe(
        title=title,
        batch_size=params.task.train_data.global_batch_size,
        train_steps=params.trainer.train_steps,
        optimizer="SGD" if config.optimizer.type in _SGD else config.optimizer.type,
        **found,
    )


def _decay(kind, rate) -> dict[str, Any] | None:
    """A learning rate without warmup as a recipe says it; None where it cannot."""
    lengths = {"polynomial": "decay_steps", "tf_lamb_polynomial": "steps"}
    if kind not in lengths or any(getattr(rate, name, 0) for name in ("offset", "cycle")):
        return None
    return {
        "learning_rate": rate.initial_learning_rate,
        "decay_steps": getattr(rate, lengths[kind]),
        "end_learning_rate": rate.end_learning_rate,
        "power": rate.power,
    }


def _warmed(decay: dict, kind, warmup) -> dict[str, Any] | None:
    """The same with warmup; None where a recipe has no such warmup."""
    if kind is None:
        return {**decay, "warmup_steps": 0}
    if kind == "tf_lamb":
        if warmup.steps and warmup.kind != "linear":
            return None
        steps, start, handover = warmup.steps, warmup.start, warmup.handover
    elif kind == "linear" and warmup.warmup_steps < decay["decay_steps"]:
        # Model Garden's leads to the rate that decay has by then, whose steps count from 0.
        steps, start, handover = warmup.warmup_steps, warmup.warmup_learning_rate, "continuous"
        end, left = decay["end_learning_rate"], decay["decay_steps"] - steps
        share = (left / decay["decay_steps"]) ** decay["power"]
        peak = end + (decay["learning_rate"] - end) * share
        decay = {**decay, "learning_rate": peak, "decay_steps": left}
    else:
        return None
    return {
        **decay, "warmup_steps": steps, "initial_learning_rate": start, "handover": handover,
    }  # fmt: skip


def _settings(params, staged, stage, seen: int) -> dict:
    """A stage of a recipe, after so many examples, as settings of the experiment."""
    times = stage.batch_size / params.task.train_data.global_batch_size
    config = learning_rate(stage.schedule(schedules))
    if not stage.warmup_steps:  # it says where the schedule begins, too
        config["warmup"] = {"type": "tf_lamb", "tf_lamb": {"steps": 0}}
    ema = params.trainer.optimizer_config.ema
    if ema is not None and ema.start_step > 0:
        config["ema"] = {"start_step": _updates(staged, params, ema.start_step)}
    data = {"global_batch_size": stage.batch_size}
    if hasattr(params.task.train_data, "begin_example"):
        data["begin_example"] = params.task.train_data.begin_example + seen
    trainer = {
        "train_steps": stage.train_steps,
        "optimizer_config": config,
        **intervals(params.trainer, params.trainer.train_steps / times),
    }
    return {"task": {"train_data": data}, "trainer": trainer}


def _updates(staged, params, steps: int) -> int:
    """The updates of all stages with as many examples as so many steps of the first batch."""
    examples, done = steps * params.task.train_data.global_batch_size, 0
    for stage in staged:
        if examples <= stage.examples_seen:
            return done + math.ceil(examples / stage.batch_size)
        examples, done = examples - stage.examples_seen, done + stage.train_steps
    return done + math.ceil(examples / stage.batch_size)
