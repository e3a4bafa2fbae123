"""The settings of an experiment at another batch, for `--global_batch_size` and `--recipe`.

The whole curve of the learning rate is multiplied by one factor and stretched over the new number
of steps; warmup has a length of its own.

Model Garden's own warmups lead to the rate that the decay has when they end, because both count
from step 0: with `polynomial` over 400 steps, to 9/10 of its first rate after 40. The factor then
applies to the rate at the end of warmup. The curve follows the number of steps and the length of
warmup in `--params_override`.

Learning rates are computed without TensorFlow, because a multi-worker strategy must be the first to
touch a device.
"""

import dataclasses
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from tf_lamb.core import checks, recipes, schedules
from tf_lamb.core.recipes.published import IN_STAGES
from tf_lamb.core.recipes.scaling import nearest
from tf_lamb.model_garden.common.yamls import at
from tf_lamb.model_garden.experiments.recipes import decay_schedule, intervals, published

# The published recipes, each for one model. The batch alone determines the settings; for a recipe
# in stages it is the batch of a stage.
PUBLISHED = (
    "untuned_lamb_bert", "untuned_lamb_resnet50", "legw_resnet50_lars", "mlperf_lars",
    "mlperf_lamb_bert", *IN_STAGES,
)  # fmt: skip
DEFAULT, TRANSFER = "legw", "transfer"  # the default of --recipe, and the name of `transfer`
RECIPES = (DEFAULT, "sqrt", TRANSFER, *PUBLISHED)  # the values of --recipe

# The settings of a schedule that are learning rates.
RATES = {
    "learning_rate", "initial_learning_rate", "end_learning_rate", "learning_rates", "values",
    "start", "warmup_learning_rate",
}  # fmt: skip
# The settings of a schedule that are steps. They count from the step `offset`, if there is one.
_STEPS = {"steps", "decay_steps", "boundaries"}
# The schedules of Model Garden whose rates can be scaled.
_SCALABLE = ("constant", "stepwise", "polynomial", "cosine", "exponential")


def fill_in(name: str, batch_size: int, params, own: dict | None = None) -> tuple[str, dict]:
    """Returns the arithmetic and the settings of a recipe for an experiment at a batch.

    Args:
        name: One of `RECIPES`.
        batch_size: The new batch size, in examples.
        params: The experiment at the batch at which it was tuned.
        own: The settings of `--params_override`, which win over the recipe. Defaults to None.

    Raises:
        TypeError: if a number is not an integer.
        ValueError: if the recipe does not fit this experiment or this batch.
    """
    tuned_steps, override_steps = params.trainer.train_steps, at(own, "trainer.train_steps")
    if name in PUBLISHED:
        text, settings = published(name, batch_size, params, own)
        train_steps = settings["trainer"]["train_steps"]
        if override_steps not in (None, train_steps):
            raise ValueError(
                f"{name} trains for {train_steps:,} steps, but --params_override says trainer."
                f"train_steps={override_steps}. Leave one of them out"
            )
        stretch = Fraction(train_steps, tuned_steps)
    else:
        if override_steps is not None:
            stretch = Fraction(checks.integer("trainer.train_steps", override_steps), tuned_steps)
        else:
            checks.integer("batch_size", batch_size)
            stretch = Fraction(params.task.train_data.global_batch_size, batch_size)
        text, settings = _scaled(name, batch_size, params, own, stretch)
    trainer, config = settings["trainer"], params.trainer.optimizer_config
    loop = at(own, "trainer.steps_per_loop")
    trainer.update(intervals(params.trainer, trainer["train_steps"], loop))
    for path, value in _other_steps(config, stretch):
        text += f"\n  {'.'.join(path)} = {value if isinstance(value, list) else f'{value:,}'} steps"
        section = trainer["optimizer_config"]
        for key in path[:-1]:
            section = section.setdefault(key, {})
        section[path[-1]] = value
    return text, settings


def _other_steps(config, stretch) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields path and new value of the other settings that count steps, besides the rate's."""
    kind, optimizer = config.optimizer.type, config.optimizer.get()
    adascale = getattr(optimizer, "adascale", None)
    if adascale is not None and (steps := adascale.base_steps):
        path = "optimizer", kind, "adascale", "base_steps"
        yield path, max(nearest(steps * stretch), 1)
    if decay := decay_schedule(optimizer):
        for key, steps in _stretched(decay.get(), stretch).items():
            yield ("optimizer", kind, "weight_decay_schedule", decay.type, key), steps
    if config.ema is not None and (steps := config.ema.start_step) > 0:
        yield ("ema", "start_step"), nearest(steps * stretch)


# -- a curve, piece by piece ----------------------------------------------------------------------


def _multiplied(schedule, factor) -> dict:
    """Returns the settings of a schedule that are rates, multiplied by a factor."""
    return _each(schedule, RATES, lambda rate: rate * factor)


def _stretched(schedule, stretch, before=0, after=0, has_end=True, offset=None) -> dict:
    """Returns the settings of a schedule that are steps, stretched to the same shares of the run.

    Args:
        schedule: The settings of the schedule.
        stretch: The new number of steps of the run, divided by the old one.
        before: The steps of the old warmup, if the schedule counts from its end. Defaults to 0.
        after: The steps of the new warmup, if the schedule counts from its end. Defaults to 0.
        has_end: Whether the steps are where a decay ends, rather than a period. Defaults to True.
        offset: The new offset. Defaults to None: the old one, stretched.
    """
    old_offset = getattr(schedule, "offset", 0) or 0
    if offset is None:
        # A decay that would begin within the new warmup begins where that warmup ends. A shorter
        # warmup does not lengthen the offset, because a rate before its offset is above the first.
        offset = min(
            max(nearest((before + old_offset) * stretch) - after, 0), nearest(old_offset * stretch)
        )
    begin, new_begin = (before + old_offset, after + offset) if has_end else (0, 0)
    changes = _each(
        schedule, _STEPS, lambda step: max(nearest((step + begin) * stretch) - new_begin, 1)
    )
    return {**changes, "offset": offset} if old_offset else changes


def _each(schedule, names, change) -> dict:
    """Applies a function to the settings with these names, and to each entry of a list."""
    selected = {key: value for key, value in schedule.as_dict().items() if value and key in names}
    return {
        name: [*map(change, setting)] if isinstance(setting, list) else change(setting)
        for name, setting in selected.items()
    }


def _largest(name: str, rate) -> float:
    """Returns the largest rate in the settings of a schedule; raises `ValueError` if none scales.

    `name` is the place of the schedule in `optimizer_config`, for the message.
    """
    if rate.type not in _SCALABLE and not str(rate.type).startswith("tf_lamb_"):
        raise ValueError(
            f"--global_batch_size cannot scale {name}.type={rate.type}, only "
            f"{', '.join(_SCALABLE)} and those of tf_lamb. Write what this batch needs into a YAML"
        )
    rates = [
        value for key, value in rate.get().as_dict().items() if key in RATES and value is not None
    ]
    if not rates:
        raise ValueError(
            f"trainer.optimizer_config.{name}.{rate.type} names no rate to scale. Write one "
            "into a YAML, because a rate of --params_override holds as it is"
        )
    return max(max(entry) if isinstance(entry, list) else entry for entry in rates)


def _decay(kind: str, settings: dict) -> Any:
    """Returns the core's schedule for the settings of a decay, ours or Model Garden's own.

    Returns None for a constant rate, a decay that rises again, and settings that are invalid.
    """
    first: Any = settings.get("initial_learning_rate")
    try:
        if kind == "stepwise":  # in that of Keras, the rate falls one step after the boundary
            boundaries = tuple(step + 1 for step in settings["boundaries"])
            return schedules._MultiStep(boundaries, settings["values"])
        if kind == "tf_lamb_multi_step":
            return schedules._MultiStep(**settings)
        length: Any = settings.get("decay_steps", settings.get("steps"))
        if kind.endswith("exponential"):
            rate: Any = settings.get("decay_rate", settings.get("rate"))
            staircase = bool(settings["staircase"])
            return schedules._Exponential(first, length, min(rate, 1.0), staircase)
        end = first * (settings["alpha"] or 0.0) if kind == "cosine" else None
        end = settings["end_learning_rate"] if end is None else end
        if first < end or settings.get("cycle"):  # the rate rises again
            return None
        if kind.endswith("cosine"):
            return schedules._Cosine(first, length, end)
        return schedules._Polynomial(first, length, end, settings["power"])
    except (KeyError, TypeError, ValueError):  # a constant rate, or settings that the checks refuse
        return None


def peak(kind: str, settings: dict, step: int) -> float | None:
    """Returns the largest rate of a decay from a step on; None if it is unknown, or rises again.

    Args:
        kind: The type of the decay.
        settings: Its settings.
        step: The step, counted from the beginning of training and not from the end of warmup.
    """
    import numpy as np

    decay, step = _decay(kind, settings), step - (settings.get("offset") or 0)
    # Before its offset a cosine rises to its first rate, so step 0 of the decay counts, too.
    later_steps = [at_step for at_step in (0, *getattr(decay, "boundaries", ())) if at_step > step]
    return decay and float(max(decay.value(np, at_step) for at_step in (step, *later_steps)))


def with_peak(kind: str, settings: dict, step: int, rate: float) -> dict:
    """Returns the changes in the settings of a decay that give it a rate at a step.

    The end rate of the decay stays.

    Args:
        kind: The type of the decay.
        settings: Its settings.
        step: The step at which warmup ends, counted from the beginning of training.
        rate: The largest rate from that step on.

    Raises:
        ValueError: if the decay has fallen too far by that step.
    """
    old_peak, decay = peak(kind, settings, step), _decay(kind, settings)
    if old_peak is None or math.isclose(old_peak, rate, rel_tol=1e-9):
        return {}
    end = getattr(decay, "end_learning_rate", 0.0)
    if kind in ("stepwise", "tf_lamb_multi_step") or old_peak == end:
        raise ValueError(
            f"warmup would end at step {step:,} with a learning rate of {old_peak:.4g}, and not of "
            f"{rate:.4g}, because learning_rate.{kind} has fallen by then. Train for longer, or "
            "take a smaller batch"
        )
    first = end + (rate - end) * (decay.initial_learning_rate - end) / (old_peak - end)
    alpha = {"alpha": end / first} if "alpha" in settings else {}
    return {"initial_learning_rate": first, **alpha}


def cut_short(tuned, params) -> str | None:
    """Says at which learning rate a run with fewer steps ends; None if its decay comes to its end.

    Args:
        tuned: The experiment whose decay ends with its own steps.
        params: The same experiment with other steps.
    """
    steps, old_steps = params.trainer.train_steps, tuned.trainer.train_steps
    if _counts_otherwise(params) or not isinstance(steps, int) or steps < 1:
        return None
    rate, end = _rate_at(params, steps), _rate_at(tuned, old_steps)
    if rate is None or end is None or rate <= end * 1.001:
        return None
    batch = params.task.train_data.global_batch_size
    return (
        f"the learning rate ends at {rate:.4g}, and not at {end:.4g}: trainer.train_steps={steps} "
        f"of --params_override ends training, and not the decay, which is for {old_steps:,} steps. "
        f"Add --global_batch_size={batch} to have the decay end there, too"
    )


def _counts_otherwise(params) -> bool:
    """Returns whether the schedule counts other steps than the run, as with AdaScale."""
    adascale = getattr(params.trainer.optimizer_config.optimizer.get(), "adascale", None)
    return getattr(adascale, "scale", None) is not None


def _rate_at(params, step: int) -> float | None:
    """Returns the learning rate at a step after warmup; None if it is unknown."""
    import numpy as np

    config = params.trainer.optimizer_config
    rate, warmup = config.learning_rate.get(), config.warmup.get()
    if rate is None or (decay := _decay(config.learning_rate.type, rate.as_dict())) is None:
        return None
    begin = getattr(rate, "offset", 0) or 0
    if config.warmup.type == "tf_lamb":
        begin += warmup.begin_step + (warmup.steps if warmup.handover == "continuous" else 0)
    return float(decay.value(np, step - begin))


@dataclasses.dataclass(frozen=True)
class Curve:
    """A learning rate over the steps, with the warmup that leads to it.

    Attributes:
        rate: The choice of a learning rate: its type and its settings.
        kind: The type of the warmup; None without one.
        warmup: The settings of the warmup.
        said: The settings of the learning rate in `--params_override`, which stay as they are.
    """

    rate: Any
    kind: str | None
    warmup: Any
    said: dict

    @property
    def length(self) -> str:
        """The name of the setting for the steps of warmup."""
        return "steps" if self.kind == "tf_lamb" else "warmup_steps"

    @property
    def warmup_steps(self) -> int:
        """The steps of warmup; 0 if there is none."""
        return getattr(self.warmup, self.length, None) or 0

    @property
    def ends_on_decay(self) -> bool:
        """Whether warmup rises to the rate of the decay at its end, as Model Garden's own does."""
        return self.warmup is not None and self.kind != "tf_lamb"

    @property
    def peak(self) -> float:
        """The learning rate where warmup ends."""
        largest, rate = _largest("learning_rate", self.rate), self.rate.get().as_dict()
        if not self.ends_on_decay:
            return largest
        settings = {
            key: self.said.get(key) if value is None else value for key, value in rate.items()
        }
        return peak(self.rate.type, settings, self.warmup_steps) or largest

    def scaled(self, peak: float, stretch, warmup_steps: int) -> dict:
        """Returns the settings of the learning rate that change.

        Args:
            peak: The new rate where warmup ends.
            stretch: The new number of steps of the run, divided by the old one.
            warmup_steps: The new steps of warmup.

        Raises:
            ValueError: if no settings of the decay give the peak at the end of warmup.
        """
        rate, kind = self.rate.get(), self.rate.type
        is_behind = self.kind == "tf_lamb" and self.warmup.handover == "continuous"
        old_warmup, new_warmup = (self.warmup_steps, warmup_steps) if is_behind else (0, 0)
        changes = _multiplied(rate, peak / self.peak) | _stretched(
            rate,
            stretch,
            old_warmup,
            new_warmup,
            "exponential" not in kind,
            self.said.get("offset"),
        )
        if self.ends_on_decay:
            all_settings = {**rate.as_dict(), **changes, **self.said}
            changes |= with_peak(kind, all_settings, warmup_steps, peak)
        return changes

    def warmed(self, peak: float, steps: int) -> dict:
        """Returns the settings of the warmup for a new peak.

        Args:
            peak: The new rate where warmup ends.
            steps: The new steps of warmup.
        """
        settings = {**self.warmup.as_dict(), **_multiplied(self.warmup, peak / self.peak)}
        return {"type": self.kind, self.kind: {**settings, self.length: steps}}


# -- a rule ---------------------------------------------------------------------------------------


def _scaled(name, batch_size, params, own, stretch) -> tuple[str, dict]:
    """Returns the arithmetic and the settings of a rule at another batch."""
    config, base = params.trainer.optimizer_config, params.task.train_data.global_batch_size
    rate_override = (
        at(own, f"trainer.optimizer_config.learning_rate.{config.learning_rate.type}") or {}
    )
    kind, warmup = config.warmup.type, config.warmup.get()
    if kind is None and name == TRANSFER:  # `transfer` adds a warmup at a larger batch
        kind = "tf_lamb"
        warmup = config.warmup.tf_lamb.replace(steps=0, start=0.0, handover="continuous")
    curve = Curve(config.learning_rate, kind, warmup, rate_override)
    transferred = _moving(config) if name == TRANSFER else {}
    exact = params.trainer.train_steps * stretch
    steps = nearest(exact)
    ratio = f"{params.trainer.train_steps:,} steps x {base:,} / {batch_size:,} ="
    if not steps:
        raise ValueError(
            f"nothing would be trained: {ratio} {float(exact):.3g} steps. Take a smaller batch"
        )
    recipe = _recipe(name, batch_size, base, steps, curve, transferred)
    # A warmup that would round to 0 steps keeps one.
    new_warmup = recipe.warmup_steps or min(curve.warmup_steps, 1)
    setting = f"warmup.{curve.kind}.{curve.length}"
    warmup_steps = at(own, f"trainer.optimizer_config.{setting}")
    if warmup_steps is None and (warmup_steps := new_warmup) > steps:
        raise ValueError(
            f"{recipe.title}: warmup is longer than training, {new_warmup:,} > {steps:,} "
            "steps. Train for longer, or take a smaller batch"
        )
    checks.integer(setting, warmup_steps, 0)

    rate_settings = curve.scaled(recipe.learning_rate, stretch, warmup_steps)
    changes = {
        "learning_rate": {curve.rate.type: rate_settings},
        **_moved(config, recipe, transferred),
    }
    if new_warmup:
        changes["warmup"] = curve.warmed(recipe.learning_rate, new_warmup)
    is_set = at(own, "trainer.train_steps") is not None
    training = (
        f"{steps:,} steps, as --params_override has it" if is_set else f"{ratio} {steps:,} steps"
    )
    arithmetic = recipe.arithmetic if name == TRANSFER else recipe.arithmetic[:2]
    setting, curve_lines = "initial_learning_rate", []
    old_first, new_first = curve.rate.get().as_dict().get(setting), rate_settings.get(setting)
    # The curve may begin above the peak.
    if new_first is not None and old_first not in (None, curve.peak):
        start_text = f"{setting} = {new_first:.4g} ({old_first:g} before)"
        curve_lines = [f"peak, where warmup ends = {recipe.learning_rate:.4g}: {start_text}"]
    lines = [
        f"{recipe.title} from batch {base:,}, at which this experiment was tuned, to "
        f"{batch_size:,}",
        # The recipe counts in epochs, which are unknown here: `_recipe` passes one epoch.
        *(line for line in arithmetic if not line.startswith(("steps ", "warmup "))),
        *curve_lines,
        f"training = {training}",
        f"warmup = {_warming(name, curve.warmup_steps, new_warmup, base, batch_size)}",
        f"source: {recipe.source}",
    ]
    return "\n  ".join(lines), {
        "task": {"train_data": {"global_batch_size": batch_size}},
        "trainer": {"train_steps": steps, "optimizer_config": changes},
    }


def _warming(name, before, after, tuned, batch_size) -> str:
    """Returns the text on the new and the old steps of warmup."""
    as_many_examples = nearest(Fraction(before * tuned, batch_size))
    if after == before:
        return f"{before:,} steps, as before"
    if name == TRANSFER and after < as_many_examples:
        return f"{after:,} steps, cut to a quarter of training, {before:,} before"
    if name == TRANSFER and after > as_many_examples:
        return f"{after:,} steps, raised to a tenth of training, {before:,} before"
    return f"{after:,} steps, {before:,} before"


def _recipe(name, batch_size, base, steps, curve: Curve, moving: dict) -> recipes.Recipe:
    """Returns the recipe of a rule for another batch than the base, over so many steps."""
    examples = steps * batch_size
    if name != TRANSFER:  # `transfer` itself cuts a warmup to a share of training
        # The run is made long enough for its warmup: the factors of a rule do not depend on length.
        examples += curve.warmup_steps * max(base, batch_size)
    share = curve.warmup_steps * base / examples
    length: dict = {"examples": examples, "epochs": 1}
    if name != TRANSFER:
        return recipes.scale(batch_size, base, curve.peak, share, rule=name, **length)
    return recipes.transfer(batch_size, base, curve.peak, warmup_epochs=share, **length | moving)


def _moving(config) -> dict:
    """Returns the settings of the optimizer that `transfer` moves, without those it lacks."""
    optimizer = config.optimizer.get().as_dict()
    # Model Garden's optimizers call it weight_decay_rate.
    decay = optimizer.get("weight_decay_rate", optimizer.get("weight_decay"))
    if schedule := decay_schedule(config.optimizer.get()):
        decay = _largest(f"optimizer.{config.optimizer.type}.weight_decay_schedule", schedule)
    settings = {
        "weight_decay": decay,
        "beta_2": optimizer.get("beta_2"),
        "ema_momentum": config.ema.average_decay if config.ema is not None else None,
    }
    return {name: value for name, value in settings.items() if value}


def _moved(config, recipe, moving: dict) -> dict:
    """Returns the settings of `moving` with the values of the recipe, as nested settings."""
    moved = {name: getattr(recipe, name) for name in moving if name != "ema_momentum"}
    if "weight_decay" in moved and hasattr(config.optimizer.get(), "weight_decay_rate"):
        moved["weight_decay_rate"] = moved.pop("weight_decay")
    elif "weight_decay" in moved and (decay := decay_schedule(config.optimizer.get())):
        factor = moved.pop("weight_decay") / moving["weight_decay"]
        moved["weight_decay_schedule"] = {decay.type: _multiplied(decay.get(), factor)}
    settings = {"optimizer": {config.optimizer.type: moved}} if moved else {}
    if "ema_momentum" in moving:
        settings["ema"] = {"average_decay": recipe.ema_momentum}
    return settings
