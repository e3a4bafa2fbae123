"""Converts a recipe to the settings of an experiment, and an experiment to a recipe.

A recipe, `tf_lamb.core.recipes.Recipe`, holds the batch size, the number of steps, the learning
rate over the steps, and the optimizer's arguments of a run.
"""

import dataclasses
import itertools
import math
from typing import Any

from tf_lamb.core import recipes, schedules
from tf_lamb.core.recipes.published import STAGED_NAMES
from tf_lamb.model_garden.common.errors import UserError, named
from tf_lamb.model_garden.common.yamls import at

# Optimizer of a published recipe -> the key of this package's optimizer in Model Garden.
_OPTIMIZERS = {"LAMB": "tf_lamb", "LARS": "tf_lars"}
# The optimizers whose learning rate is scaled in proportion to the batch size. For all others it is
# scaled with the square root of the batch size.
_SGD = ("sgd", "sgd_experimental", "tf_sgdp")
# Class of a schedule -> its key in Model Garden.
_SCHEDULES = {
    schedules._Constant: "tf_lamb_constant",
    schedules._Polynomial: "tf_lamb_polynomial",
    schedules._MultiStep: "tf_lamb_multi_step",
}
# The settings of a trainer that are intervals, in steps.
_INTERVALS = ("summary_interval", "checkpoint_interval", "validation_interval")


def settings_of_recipe(recipe: recipes.Recipe) -> dict:
    """Returns everything in a recipe as nested settings of an experiment."""
    optimizer = recipe.optimizer or ""  # every published recipe has one
    kind, arguments = _OPTIMIZERS[optimizer], recipe.arguments(optimizer)
    task: dict = {"train_data": {"global_batch_size": recipe.batch_size}}
    if recipe.label_smoothing is not None:
        task["losses"] = {"one_hot": True, "label_smoothing": recipe.label_smoothing}
    config = {
        "optimizer": {"type": kind, kind: _plain(arguments)},
        **learning_rate(recipe.schedule(schedules)),
    }
    return {
        "task": task,
        "trainer": {"train_steps": recipe.train_steps, "optimizer_config": config},
    }


def learning_rate(schedule) -> dict:
    """Converts a schedule of `tf_lamb.core` to settings of an optimizer config.

    Args:
        schedule: The schedule, with its warmup around it if it has one.

    Returns:
        The settings "learning_rate" and "warmup".
    """
    warmup: dict = {"type": None}
    if isinstance(schedule, schedules.Warmup):
        fields = {
            field.name: getattr(schedule, field.name) for field in dataclasses.fields(schedule)
        }
        schedule = fields.pop("after")
        warmup = {"type": "tf_lamb", "tf_lamb": fields}
    kind = _SCHEDULES[type(schedule)]
    rate = _plain(dataclasses.asdict(schedule))
    return {"learning_rate": {"type": kind, kind: rate}, "warmup": warmup}


def _plain(fields: dict) -> dict:
    """Returns the fields with lists in place of tuples."""
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()
    }


def intervals(trainer, train_steps: float, loop: int | None = None) -> dict:
    """Returns `steps_per_loop` and the intervals of a trainer for a run of another length.

    Each keeps its share of the run. The intervals are rounded to multiples of `steps_per_loop`.

    Args:
        trainer: The trainer config with its `train_steps`, `steps_per_loop` and intervals.
        train_steps: The steps of the new run.
        loop: The new `steps_per_loop`. Defaults to None: the same share of the run as before.
    """
    share = train_steps / trainer.train_steps
    loop_steps = loop or max(round(trainer.steps_per_loop * share), 1)
    settings = {"steps_per_loop": loop_steps}
    for name in _INTERVALS:
        if (interval := getattr(trainer, name)) > 0:
            settings[name] = max(round(interval * share / loop_steps), 1) * loop_steps
    return settings


def published(name: str, batch_size: int, params, own: dict | None = None) -> tuple[str, dict]:
    """Returns the text that describes a published recipe, and its settings.

    Args:
        name: The name of the recipe. If it has several stages, the stage with this batch size is
            used.
        batch_size: The batch size, in examples.
        params: The experiment's `ExperimentConfig`.
        own: The settings of `--params_override`. Defaults to None.

    Raises:
        ValueError: if the recipe has no such batch, or is for another model or sequence length.
    """
    recipe, model = _at(name, batch_size), model_of(params)
    if recipe.model != model:
        raise ValueError(
            f"{name} is a recipe for {recipe.model}, but this experiment trains {model}. Choose "
            "another, or leave --recipe out to scale what the experiment says of its own batch"
        )
    path, tokens = "task.train_data.seq_length", recipe.sequence_length
    value = at(own, path) or getattr(params.task.train_data, "seq_length", tokens)
    if tokens not in (None, value):
        raise ValueError(
            f"{recipe.title}, trains on sequences of {tokens} tokens, but {path} is {value}. Write "
            f"{path}={tokens}, with data of that length, or choose another recipe"
        )
    return str(recipe), settings_of_recipe(recipe)


def _at(name: str, batch_size: int) -> recipes.Recipe:
    """Returns a published recipe for a batch size, or its stage that has this batch size.

    Raises `ValueError` if the recipe, or none of its stages, is for this batch size.
    """
    if name not in STAGED_NAMES:
        return recipes.published(name, batch_size)
    batches = batches_of_stages(name)
    if batch_size not in batches:
        sizes = " and ".join(f"{batch:,}" for batch in batches)
        raise ValueError(
            f"{name} has a batch a stage, {sizes}, and no stage at {batch_size:,}. Take one of them"
        )
    return recipes.published(name).stages[batches.index(batch_size)]


def batches_of_stages(name: str | None) -> list[int]:
    """Returns the batch of every stage of a published recipe; an empty list if it has no stages."""
    return [stage.batch_size for stage in recipes.published(name)] if name in STAGED_NAMES else []


def decay_schedule(optimizer) -> Any:
    """Returns the `weight_decay_schedule` in an optimizer's settings; None if it is off."""
    schedule = getattr(optimizer, "weight_decay_schedule", None)
    return schedule if schedule is not None and schedule.type else None


def model_of(params) -> str:
    """Returns the name of the model that an experiment trains, as in `Recipe.model`."""
    from official.nlp.tasks import masked_lm
    from official.vision.configs import image_classification

    task = params.task
    if isinstance(task, masked_lm.MaskedLMConfig):
        return "BERT" if task.model.encoder.type.startswith("bert") else task.model.encoder.type
    if isinstance(task, image_classification.ImageClassificationTask):
        backbone = task.model.backbone
        return f"ResNet-{backbone.get().model_id}" if backbone.type == "resnet" else backbone.type
    return type(task).__name__


# -- a batch that grows ---------------------------------------------------------------------------


def grown(params, largest_batch: int, title: str, examples=None) -> tuple[str, list[dict]]:
    """Splits an experiment into stages with growing batches, by `tf_lamb.recipes.growing`.

    Intervals between checkpoints and evaluations stay the same number of examples. Moving averages
    of the weights begin after the same number of examples. With `resume_in_order`, each stage
    continues with the example after the last one of the previous stage.

    Args:
        params: The experiment's `ExperimentConfig`.
        largest_batch: The largest batch, in examples.
        title: The name of the experiment, for the text.
        examples: The number of examples in the training data. Defaults to None: unknown.

    Returns:
        A text to print that explains the stages, and the nested settings of each stage.

    Raises:
        UserError: if the batch of this experiment cannot grow.
    """
    batch = params.task.train_data.global_batch_size
    if largest_batch < 2 * batch:
        raise UserError(
            f"--largest_batch={largest_batch} is less than twice task.train_data."
            f"global_batch_size={batch}. Write --largest_batch={2 * batch}, or more"
        )
    if not hasattr(params.task, "init_optimizer"):
        raise UserError(
            f"--largest_batch keeps the optimizer from stage to stage, and "
            f"{type(params.task).__name__} cannot hand it over. Take lamb/bert_pretraining, "
            "lamb/resnet_imagenet or another experiment of ours"
        )
    optimizer = params.trainer.optimizer_config.optimizer
    if getattr(getattr(optimizer.get(), "adascale", None), "scale", None) is not None:
        raise UserError(
            "--largest_batch: AdaScale scales the rate of one batch, and would go on counting its "
            f"steps. Write trainer.optimizer_config.optimizer.{optimizer.type}.adascale.scale=null"
        )
    if decay_schedule(optimizer.get()):
        path = f"trainer.optimizer_config.optimizer.{optimizer.type}.weight_decay_schedule"
        raise UserError(
            f"--largest_batch takes fewer steps, which {path} counts. Write {path}.type=null, and "
            "a number as weight_decay"
        )
    with named(f"--largest_batch={largest_batch}"):
        recipe = dataclasses.replace(recipe_of(params, title), examples=examples)
        staged = recipes.growing(recipe, largest_batch)
    settings, examples_seen = [], 0
    for stage in staged:
        settings.append(_settings_of_stage(params, staged, stage, examples_seen))
        examples_seen += stage.examples_seen
    return str(staged), settings


def recipe_of(params, title: str) -> recipes.Recipe:
    """Returns an experiment as a recipe with the same learning rate at every step.

    Args:
        params: The experiment's `ExperimentConfig`.
        title: The title of the recipe.

    Raises:
        UserError: if a `Recipe` cannot describe this learning rate.
    """
    config = params.trainer.optimizer_config
    fields = _falling(config.learning_rate, config.warmup)
    if not fields:
        raise UserError(
            f"no batch grows with learning_rate.type={config.learning_rate.type} and warmup.type="
            f"{config.warmup.type}. Write tf_lamb_polynomial or polynomial, or tf_lamb_multi_step "
            "or stepwise with one factor at all boundaries, without offset or cycle, after no "
            "warmup or a linear one"
        )
    return recipes.Recipe(
        title=title,
        batch_size=params.task.train_data.global_batch_size,
        train_steps=params.trainer.train_steps,
        optimizer="SGD" if config.optimizer.type in _SGD else config.optimizer.type,
        **fields,
    )


def _falling(decay, warming) -> dict[str, Any] | None:
    """Converts the configs of a decay and of the warmup before it to fields of a `Recipe`.

    Returns None if a `Recipe` cannot describe this learning rate.
    """
    fields = _decay(decay.type, decay.get())
    return fields and _warmed(fields, warming.type, warming.get())


def _decay(kind, rate) -> dict[str, Any] | None:
    """Converts the config of a learning-rate decay to fields of a `Recipe`.

    Returns None if a `Recipe` cannot describe this decay, for example one with an offset.
    """
    if any(getattr(rate, key, 0) for key in ("offset", "cycle")):
        return None
    lengths = {"polynomial": "decay_steps", "tf_lamb_polynomial": "steps"}
    if kind in lengths:
        return {
            "learning_rate": rate.initial_learning_rate,
            "decay_steps": getattr(rate, lengths[kind]),
            "end_learning_rate": rate.end_learning_rate,
            "power": rate.power,
        }
    if kind == "tf_lamb_multi_step":
        rates, boundaries = rate.learning_rates, [math.ceil(step) for step in rate.boundaries]
    elif kind == "stepwise":
        # At the boundary itself, Keras's schedule still has the earlier rate. The new rate begins
        # one step later.
        rates, boundaries = rate.values, [step + 1 for step in rate.boundaries]
    else:
        return None
    factors = [new / old for old, new in itertools.pairwise(rates) if old]
    if not boundaries or len(factors) != len(boundaries) or boundaries[0] < 1:
        return None
    if any(not math.isclose(factor, factors[0], rel_tol=1e-6) for factor in factors):
        return None
    return {
        "learning_rate": rates[0], "decay": "multi_step", "boundaries": tuple(boundaries),
        "decay_rate": factors[0],
    }  # fmt: skip


def _warmed(decay: dict[str, Any], kind, warmup) -> dict[str, Any] | None:
    """Adds a warmup to the fields of a `Recipe`, which already describe the decay.

    Returns None if a `Recipe` cannot describe this warmup together with this decay.
    """
    if kind is None:
        return decay | {"warmup_steps": 0}
    boundaries = decay.get("boundaries")
    if kind == "tf_lamb" and (not warmup.steps or warmup.kind == "linear"):
        if boundaries and warmup.handover == "continuous":
            decay = decay | {"boundaries": tuple(warmup.steps + step for step in boundaries)}
        return decay | {
            "warmup_steps": warmup.steps, "initial_learning_rate": warmup.start,
            "handover": warmup.handover,
        }  # fmt: skip
    # Model Garden's warmup ends at the rate that the decay has at that step, and the decay counts
    # its steps from step 0 of training. A `Recipe` has the rate at the end of warmup and the steps
    # after warmup, which are computed below.
    if kind != "linear" or warmup.warmup_steps >= (boundaries or [decay.get("decay_steps")])[0]:
        return None
    fields = decay | {
        "warmup_steps": warmup.warmup_steps, "initial_learning_rate": warmup.warmup_learning_rate,
        "handover": "continuous",
    }  # fmt: skip
    if boundaries:
        return fields
    length, end = decay["decay_steps"], decay["end_learning_rate"]
    remaining = length - warmup.warmup_steps
    peak = end + (decay["learning_rate"] - end) * (remaining / length) ** decay["power"]
    return fields | {"learning_rate": peak, "decay_steps": remaining}


def _settings_of_stage(params, staged, stage, seen: int) -> dict:
    """Returns the settings of one stage of `staged`, a recipe in stages.

    `seen` is the number of examples on which the earlier stages train.
    """
    config = learning_rate(stage.schedule(schedules))
    if not stage.warmup_steps:  # this warmup is needed for its setting `begin_step`
        config["warmup"] = {"type": "tf_lamb", "tf_lamb": {"steps": 0}}
    ema, data = params.trainer.optimizer_config.ema, params.task.train_data
    if ema is not None and ema.start_step > 0:
        config["ema"] = {"start_step": _updates(staged, ema.start_step * data.global_batch_size)}
    train_data = {"global_batch_size": stage.batch_size}
    if hasattr(data, "begin_example"):
        train_data["begin_example"] = data.begin_example + seen
    factor = stage.batch_size / data.global_batch_size
    trainer = {
        "train_steps": stage.train_steps,
        "optimizer_config": config,
        **intervals(params.trainer, params.trainer.train_steps / factor),
    }
    return {"task": {"train_data": train_data}, "trainer": trainer}


def _updates(staged, examples: int) -> int:
    """Returns the number of updates after which training has seen a number of examples.

    `staged` is a recipe in stages. The updates are counted from the beginning of its first stage.
    """
    updates = 0
    for stage in staged:
        if examples <= stage.examples_seen:
            break
        examples, updates = examples - stage.examples_seen, updates + stage.train_steps
    return updates + math.ceil(examples / stage.batch_size)
