"""A recipe as the settings of an experiment: at one batch, or scaled to another.

Settings are nested dicts, as a YAML holds them; an experiment's config is overridden with them.

`fill_in` is what `--global_batch_size` does. The whole curve of the learning rate is multiplied by
one factor and stretched over the new number of steps; warmup has a length of its own. Where it is
Model Garden's own, which ends on the curve of its decay, the factor is that of the rate there. What
is in an experiment's config needs no other name. Where `--params_override` has the number of steps
or the length of warmup, the curve follows it.
"""

import dataclasses
from fractions import Fraction
from typing import Any

from tf_lamb.core import checks, recipes, schedules
from tf_lamb.core.recipes.scaling import nearest
from tf_lamb.model_garden.common.yamls import at
from tf_lamb.model_garden.experiments import decays

_OPTIMIZERS = {"LAMB": "tf_lamb", "LARS": "tf_lars"}
_SCHEDULES = {
    schedules._Constant: "tf_lamb_constant",
    schedules._Polynomial: "tf_lamb_polynomial",
    schedules._MultiStep: "tf_lamb_multi_step",
}
# Those that were published for one model, and are given by the batch alone.
PUBLISHED = ("untuned_lamb_bert", "untuned_lamb_resnet50", "legw_resnet50_lars", "mlperf_lars")
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
        fields = {f.name: getattr(schedule, f.name) for f in dataclasses.fields(schedule)}
        schedule = fields.pop("after")
        warmup = {"type": "tf_lamb", "tf_lamb": fields}
    kind = _SCHEDULES[type(schedule)]
    rate = _plain(dataclasses.asdict(schedule))
    return {"learning_rate": {"type": kind, kind: rate}, "warmup": warmup}


def _plain(fields: dict) -> dict:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}


def intervals(trainer, train_steps: float, loop: int | None = None) -> dict:
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
    """The printed form and the settings of a published recipe at this batch.

    Raises:
        ValueError: where it was made for another model, or says nothing of this batch.
    """
    recipe, model = recipes.published(name, batch_size), model_of(params)
    if recipe.model != model:
        raise ValueError(
            f"{name} is a recipe for {recipe.model}, but this experiment trains {model}. Choose "
            "another, or leave --recipe out to scale what the experiment says of its own batch"
        )
    return str(recipe), settings_of_recipe(recipe)


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


TRANSFER = "transfer"
RECIPES = ("legw", "sqrt", TRANSFER, *PUBLISHED)
DEFAULT = "legw"

RATES = {
    "learning_rate", "initial_learning_rate", "end_learning_rate", "learning_rates", "values",
    "start", "warmup_learning_rate",
}  # fmt: skip
_STEPS = {"steps", "decay_steps", "boundaries", "offset"}
_SCALABLE = ("constant", "stepwise", "polynomial", "cosine", "exponential")


def fill_in(name: str, batch_size: int, params, own: dict | None = None) -> tuple[str, dict]:
    """The arithmetic and the settings of a recipe for an experiment at this batch.

    Args:
        name: of the recipe.
        batch_size: examples an update.
        params: the experiment at the batch at which it was tuned.
        own: what `--params_override` says; it holds, whatever the recipe says.

    Raises:
        TypeError: where a number of steps is no whole number.
        ValueError: where there is no such recipe for this model, schedule, batch or number of
            steps, or warmup would be longer than training.
    """
    tuned, steps = params.trainer.train_steps, at(own, "trainer.train_steps")
    if name in PUBLISHED:
        text, settings = published(name, batch_size, params)
        train_steps = settings["trainer"]["train_steps"]
        if steps not in (None, train_steps):
            raise ValueError(
                f"{name} trains for {train_steps:,} steps, but --params_override says trainer."
                f"train_steps={steps}. Leave one of them out"
            )
        stretch = Fraction(train_steps, tuned)
    else:
        if steps is not None:
            stretch = Fraction(checks.integer("trainer.train_steps", steps), tuned)
        else:
            checks.integer("batch_size", batch_size)
            stretch = Fraction(params.task.train_data.global_batch_size, batch_size)
        text, settings = _scaled(name, batch_size, params, own, stretch)
    trainer = settings["trainer"]
    trainer.update(
        intervals(params.trainer, trainer["train_steps"], at(own, "trainer.steps_per_loop"))
    )
    for path, value in _other_steps(params.trainer.optimizer_config, stretch):
        text += f"\n  {'.'.join(path)} = {value if isinstance(value, list) else f'{value:,}'} steps"
        place = trainer["optimizer_config"]
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = value
    return text, settings


def _multiplied(schedule, factor) -> dict:
    """The settings of a schedule that are rates, multiplied."""
    return _each(schedule, RATES, lambda rate: rate * factor)


def _stretched(schedule, stretch, before=0, after=0) -> dict:
    """The settings that are steps, stretched; warmup has so many steps before, and after."""
    return _each(schedule, _STEPS, lambda n: max(nearest((n + before) * stretch) - after, 1))


def _each(schedule, names, change) -> dict:
    found = {key: value for key, value in schedule.as_dict().items() if value and key in names}
    return {k: [*map(change, v)] if isinstance(v, list) else change(v) for k, v in found.items()}


def _other_steps(config, stretch):
    """Paths and values of what is counted in steps, too, besides the learning rate."""
    kind, optimizer = config.optimizer.type, config.optimizer.get()
    adascale = getattr(optimizer, "adascale", None)
    if adascale is not None and (steps := adascale.base_steps):
        place = "optimizer", kind, "adascale", "base_steps"
        yield place, max(nearest(steps * stretch), 1)
    if decay := _decay_schedule(optimizer):
        for key, steps in _stretched(decay.get(), stretch).items():
            yield ("optimizer", kind, "weight_decay_schedule", decay.type, key), steps
    if config.ema is not None and (steps := config.ema.start_step) > 0:
        yield ("ema", "start_step"), nearest(steps * stretch)


def _decay_schedule(optimizer) -> Any:
    """The schedule that weight decay follows, if any."""
    schedule = getattr(optimizer, "weight_decay_schedule", None)
    return schedule if schedule is not None and schedule.type else None


def _peak(name: str, schedule) -> float:
    """The largest rate of a schedule."""
    if schedule.type not in _SCALABLE and not str(schedule.type).startswith("tf_lamb_"):
        raise ValueError(
            f"--global_batch_size cannot scale {name}.type={schedule.type}, only "
            f"{', '.join(_SCALABLE)} and those of tf_lamb. Write what this batch needs into a YAML"
        )
    rates = [v for k, v in schedule.get().as_dict().items() if k in RATES and v is not None]
    if not rates:
        raise ValueError(
            f"trainer.optimizer_config.{name}.{schedule.type} names no rate to scale. Write one "
            "into a YAML, because a rate of --params_override holds as it is"
        )
    return max(max(r) if isinstance(r, list) else r for r in rates)


@dataclasses.dataclass(frozen=True)
class Curve:
    """A learning rate over the steps, with the warmup that leads to it.

    Attributes:
        rate: the choice of a learning rate.
        kind: the type of the warmup, and `warmup` its settings; None without one.
        said: what `--params_override` says of the rate: it holds as it is.
    """

    rate: Any
    kind: str | None
    warmup: Any
    said: dict

    @property
    def length(self) -> str:
        """The setting that has the steps of warmup."""
        return "steps" if self.kind == "tf_lamb" else "warmup_steps"

    @property
    def warmup_steps(self) -> int:
        """The steps of warmup; 0 without one."""
        return getattr(self.warmup, self.length, None) or 0

    @property
    def ends_on_decay(self) -> bool:
        """Whether warmup rises to what is left of the decay by then, as Model Garden's own do."""
        return self.warmup is not None and self.kind != "tf_lamb"

    @property
    def peak(self) -> float:
        """The rate where warmup ends."""
        largest = _peak("learning_rate", self.rate)
        if not self.ends_on_decay:
            return largest
        rate = self.rate.get().as_dict()
        known = {key: self.said.get(key) if value is None else value for key, value in rate.items()}
        return decays.peak(self.rate.type, known, self.warmup_steps) or largest

    def scaled(self, peak: float, stretch, warmup_steps: int) -> dict:
        """The rate's settings that change: the peak, and the length behind such a warmup."""
        rate, kind = self.rate.get(), self.rate.type
        # Decay may end so many steps after warmup. An exponential one has a period, and no end.
        ours = self.kind == "tf_lamb" and self.warmup.handover == "continuous"
        behind = ours and "exponential" not in kind
        before, after = (self.warmup_steps, warmup_steps) if behind else (0, 0)
        found = _multiplied(rate, peak / self.peak) | _stretched(rate, stretch, before, after)
        if self.ends_on_decay:
            all_of_it = {**rate.as_dict(), **found, **self.said}
            found |= decays.with_peak(kind, all_of_it, warmup_steps, peak)
        return found

    def warmed(self, peak: float, steps: int) -> dict:
        """The warmup's settings for another peak and so many steps."""
        factor = peak / self.peak
        own = {**self.warmup.as_dict(), **_multiplied(self.warmup, factor), self.length: steps}
        return {"type": self.kind, self.kind: own}


def _recipe(name, batch_size, base, steps, curve: Curve, moving: dict) -> recipes.Recipe:
    """The rule's recipe for another batch than the base, over so many steps."""
    examples = steps * batch_size
    if name != TRANSFER:  # which cuts a warmup to its share of training
        # Of a run that is long enough: what a rule says does not depend on the length.
        examples += curve.warmup_steps * max(base, batch_size)
    share = curve.warmup_steps * base / examples
    of: dict = {"examples": examples, "epochs": 1}
    if name != TRANSFER:
        return recipes.scale(batch_size, base, curve.peak, share, rule=name, **of)
    return recipes.transfer(batch_size, base, curve.peak, warmup_epochs=share, **of | moving)


def _scaled(name, batch_size, params, own, stretch) -> tuple[str, dict]:
    """The arithmetic and the settings of a rule: the recipe of the experiment, the curve by it."""
    config, base = params.trainer.optimizer_config, params.task.train_data.global_batch_size
    said = at(own, f"trainer.optimizer_config.learning_rate.{config.learning_rate.type}") or {}
    curve = Curve(config.learning_rate, *_warmup(config, name), said)
    moving = _moving(config) if name == TRANSFER else {}
    exact = params.trainer.train_steps * stretch
    ratio, steps = (
        f"{params.trainer.train_steps:,} steps x {base:,} / {batch_size:,} =",
        nearest(exact),
    )
    if not steps:
        raise ValueError(
            f"nothing would be trained: {ratio} {float(exact):.3g} steps. Take a smaller batch"
        )
    recipe = _recipe(name, batch_size, base, steps, curve, moving)
    own_warmup = recipe.warmup_steps or min(curve.warmup_steps, 1)  # a warmup stays one
    place = f"warmup.{curve.kind}.{curve.length}"
    warmup_steps = at(own, f"trainer.optimizer_config.{place}")
    if warmup_steps is None and (warmup_steps := own_warmup) > steps:
        raise ValueError(
            f"{recipe.title}: warmup is longer than training, {own_warmup:,} > {steps:,} "
            "steps. Train for longer, or take a smaller batch"
        )
    checks.integer(place, warmup_steps, 0)

    peak = recipe.learning_rate
    rate = curve.scaled(peak, stretch, warmup_steps)
    found = {"learning_rate": {curve.rate.type: rate}, **_moved(config, recipe, moving)}
    if own_warmup:
        found["warmup"] = curve.warmed(peak, own_warmup)
    is_given = at(own, "trainer.train_steps") is not None
    training = f"{steps:,} steps, as --params_override has it"
    text = "\n  ".join(
        [
            f"{recipe.title} from batch {base:,}, at which this experiment was tuned, to "
            f"{batch_size:,}",
            *_without_epochs(recipe, name),
            *_on_the_curve(curve.rate, rate, curve.peak, peak),
            f"training = {training if is_given else f'{ratio} {steps:,} steps'}",
            f"warmup = {own_warmup:,} steps, {curve.warmup_steps:,} before",
            f"source: {recipe.source}",
        ]
    )
    return text, {
        "task": {"train_data": {"global_batch_size": batch_size}},
        "trainer": {"train_steps": steps, "optimizer_config": found},
    }


def _warmup(config, name) -> tuple[str | None, Any]:
    """The type of the warmup and the warmup, which `transfer` has at a larger batch in any case."""
    kind, warmup = config.warmup.type, config.warmup.get()
    if kind is None and name == TRANSFER:
        return "tf_lamb", config.warmup.tf_lamb.replace(steps=0, start=0.0, handover="continuous")
    return kind, warmup


_OF_OPTIMIZER = "weight_decay", "beta_2"


def _field(optimizer, name) -> str:
    """A setting by the name that an optimizer has for it; Model Garden's own have another."""
    is_theirs = name == "weight_decay" and hasattr(optimizer, "weight_decay_rate")
    return "weight_decay_rate" if is_theirs else name


def _moving(config) -> dict:
    """The settings that `transfer` moves, of an optimizer that has them."""
    optimizer = config.optimizer.get()
    found = {name: getattr(optimizer, _field(optimizer, name), None) for name in _OF_OPTIMIZER}
    if decay := _decay_schedule(optimizer):
        name = f"optimizer.{config.optimizer.type}.weight_decay_schedule"
        found["weight_decay"] = _peak(name, decay)
    found["ema_momentum"] = config.ema.average_decay if config.ema is not None else None
    return {name: value for name, value in found.items() if value}


def _moved(config, recipe, moving: dict) -> dict:
    """The same settings as the recipe has them."""
    optimizer = config.optimizer.get()
    changed = [name for name in moving if name in _OF_OPTIMIZER]
    own = {_field(optimizer, name): getattr(recipe, name) for name in changed}
    decay = _decay_schedule(optimizer)
    if decay and "weight_decay" in own:
        factor = own.pop("weight_decay") / moving["weight_decay"]
        own["weight_decay_schedule"] = {decay.type: _multiplied(decay.get(), factor)}
    found = {"optimizer": {config.optimizer.type: own}} if own else {}
    if "ema_momentum" in moving:
        found["ema"] = {"average_decay": recipe.ema_momentum}
    return found


def _without_epochs(recipe, name) -> list[str]:
    """The arithmetic but for what counts in epochs, of which nothing is known here."""
    if name != TRANSFER:
        return list(recipe.arithmetic[:2])
    return [line for line in recipe.arithmetic if not line.startswith(("steps ", "warmup "))]


def _on_the_curve(rate, new, peak, scaled) -> list[str]:
    """The peak on a curve whose first rate is another one."""
    first, now = (each.get("initial_learning_rate") for each in (rate.get().as_dict(), new))
    if first in (None, peak) or now is None:
        return []
    begins = f"initial_learning_rate = {now:.4g} ({first:g} before)"
    return [f"peak, where warmup ends = {scaled:.4g}: {begins}"]
