"""A recipe as nested settings of an experiment, and an experiment as a recipe that may grow."""

import dataclasses
import itertools
import math
from typing import Any

from tf_lamb.core import recipes, schedules
from tf_lamb.core.recipes.published import IN_STAGES
from tf_lamb.model_garden.common.errors import UserError, named
from tf_lamb.model_garden.common.yamls import at

_OPTIMIZERS = {"LAMB": "tf_lamb", "LARS": "tf_lars"}
_SGD = ("sgd", "sgd_experimental", "tf_sgdp")
_SCHEDULES = {
    schedules._Constant: "tf_lamb_constant",
    schedules._Polynomial: "tf_lamb_polynomial",
    schedules._MultiStep: "tf_lamb_multi_step",
}
_INTERVALS = ("summary_interval", "checkpoint_interval", "validation_interval")


def settings_of_recipe(recipe: recipes.Recipe) -> dict:
    """All that a recipe says, as settings."""
    optimizer = recipe.optimizer or ""  # a published one names its own
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
    """A schedule of the core as settings: of the learning rate, and of warmup."""
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
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()
    }


def intervals(trainer, train_steps: float, loop: int | None = None) -> dict:
    """Loops and intervals of so many steps, at the shares of training that a trainer has them."""
    share = train_steps / trainer.train_steps
    loop_steps = loop or max(round(trainer.steps_per_loop * share), 1)
    settings = {"steps_per_loop": loop_steps}
    for name in _INTERVALS:
        if (interval := getattr(trainer, name)) > 0:
            settings[name] = max(round(interval * share / loop_steps), 1) * loop_steps
    return settings


def published(name: str, batch_size: int, params, own: dict | None = None) -> tuple[str, dict]:
    """The printed form and the settings of a published recipe, which has to be for this model.

    One in stages gives the stage of this batch. `own` is what `--params_override` says.
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
    """A published recipe at a batch."""
    if name not in IN_STAGES:
        return recipes.published(name, batch_size)
    batches = batches_of_stages(name)
    if batch_size not in batches:
        sizes = " and ".join(f"{batch:,}" for batch in batches)
        raise ValueError(
            f"{name} has a batch a stage, {sizes}, and no stage at {batch_size:,}. Take one of them"
        )
    return recipes.published(name).stages[batches.index(batch_size)]


def batches_of_stages(name: str | None) -> list[int]:
    """The batch of every stage of a published recipe; none of one without stages."""
    return [stage.batch_size for stage in recipes.published(name)] if name in IN_STAGES else []


def decay_schedule(optimizer) -> Any:
    """The choice of a schedule that weight decay follows; None where it follows none."""
    schedule = getattr(optimizer, "weight_decay_schedule", None)
    return schedule if schedule is not None and schedule.type else None


def model_of(params) -> str:
    """The name of the model that an experiment trains, as recipes spell it."""
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
    """The arithmetic of a batch that grows by `recipes.growing`, and the settings of each stage.

    Intervals keep their examples, averages of the weights begin with the same example, and data
    that resume in order go on from stage to stage. `examples` are those of the training data, where
    they are known.
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
    """An experiment as a recipe, whose rate at every step is that of its settings."""
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
    """A learning rate and its warmup as a recipe says them; None where it cannot."""
    fields = _decay(decay.type, decay.get())
    return fields and _warmed(fields, warming.type, warming.get())


def _decay(kind, rate) -> dict[str, Any] | None:
    """A learning rate without warmup."""
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
    elif kind == "stepwise":  # Keras's, whose boundary has the rate before
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
    """The same with warmup; None where a recipe has no such warmup."""
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
    # Model Garden's leads to the rate that decay has by then, whose steps count from 0.
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
    """A stage of a recipe, after so many examples, as settings of the experiment."""
    config = learning_rate(stage.schedule(schedules))
    if not stage.warmup_steps:  # it says where the schedule begins, too
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
    """The updates of all stages, the first first, until they have seen so many examples."""
    updates = 0
    for stage in staged:
        if examples <= stage.examples_seen:
            break
        examples, updates = examples - stage.examples_seen, updates + stage.train_steps
    return updates + math.ceil(examples / stage.batch_size)
