"""What a published recipe says, as the settings of an experiment.

Settings are nested dicts, as a YAML holds them; an experiment's config is overridden with them.
"""

import dataclasses

from tf_lamb.core import recipes, schedules

_OPTIMIZERS = {"LAMB": "tf_lamb", "LARS": "tf_lars"}
_SCHEDULES = {
    schedules.Constant: "tf_lamb_constant",
    schedules.Polynomial: "tf_lamb_polynomial",
    schedules.MultiStep: "tf_lamb_multi_step",
}
# Those that were published for one model, and are given by the batch alone.
PUBLISHED = {
    name: getattr(recipes, name)
    for name in (
        "untuned_lamb_bert", "untuned_lamb_resnet50", "legw_resnet50_lars", "mlperf_lamb_bert",
        "mlperf_lars",
    )
}  # fmt: skip
_INTERVALS = ("summary_interval", "checkpoint_interval", "validation_interval")


def settings(recipe: recipes.Recipe) -> dict:
    """All that a recipe says, as settings."""
    kind = _OPTIMIZERS[recipe.optimizer]
    arguments = recipes.arguments(recipe, recipe.optimizer)
    task = {"train_data": {"global_batch_size": recipe.batch_size}}
    if recipe.label_smoothing is not None:
        task["losses"] = {"one_hot": True, "label_smoothing": recipe.label_smoothing}
    config = {
        "optimizer": {"type": kind, kind: _plain(arguments)},
        **_learning_rate(recipes.schedule(recipe, schedules)),
    }
    return {
        "task": task, "trainer": {"train_steps": recipe.train_steps, "optimizer_config": config},
    }  # fmt: skip


def _learning_rate(schedule) -> dict:
    warmup = {"type": None}
    if isinstance(schedule, schedules.Warmup):
        fields = {f.name: getattr(schedule, f.name) for f in dataclasses.fields(schedule)}
        schedule = fields.pop("after")
        warmup = {"type": "tf_lamb", "tf_lamb": fields}
    kind = _SCHEDULES[type(schedule)]
    rate = _plain(dataclasses.asdict(schedule))
    return {"learning_rate": {"type": kind, kind: rate}, "warmup": warmup}


def _plain(fields: dict) -> dict:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}


def intervals(trainer, train_steps: int, loop: int | None = None) -> dict:
    """Loops and intervals, at the same shares of training as before.

    Args:
        trainer: settings of the training that they were written for.
        train_steps: of the one that they are for.
        loop: steps of a loop, where they are given.
    """
    share = train_steps / trainer.train_steps
    every = loop or max(round(trainer.steps_per_loop * share), 1)
    found = {"steps_per_loop": every}
    for name in _INTERVALS:
        if (interval := getattr(trainer, name)) > 0:
            found[name] = max(round(interval * share / every), 1) * every
    return found


def published(name: str, batch_size: int, params) -> tuple[str, dict]:
    """What a published recipe says at this batch: its print, and the settings.

    Raises:
        ValueError: where it was made for another model, or says nothing of this batch.
    """
    recipe, model = PUBLISHED[name](batch_size), model_of(params)
    if recipe.model != model:
        raise ValueError(
            f"{name} is a recipe for {recipe.model}, but this experiment trains {model}. Choose "
            "another, or leave --recipe out to scale what the experiment says of its own batch"
        )
    return str(recipe), settings(recipe)


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
