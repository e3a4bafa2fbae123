"""Computes an experiment's settings at another batch, for `--global_batch_size` and `--recipe`.

The value of `--recipe` is a published recipe or a rule. A published recipe contains all settings. A
rule, such as LEGW, rescales the settings of the tuned experiment. First it computes the target: the
number of steps, the warmup and the peak learning rate of the new run. Then it computes the settings
that have this target as their result, and a text that explains the computation.
"""

import dataclasses
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from tf_lamb.core import checks, recipes
from tf_lamb.core.recipes.published import STAGED_NAMES
from tf_lamb.core.recipes.scaling import round_half_up
from tf_lamb.model_garden.common.yamls import at, merged, nested
from tf_lamb.model_garden.experiments.curves import Curve, largest, multiplied, stretched
from tf_lamb.model_garden.experiments.recipes import decay_schedule, intervals, published

# The published recipes, each for one model. The batch size alone determines the settings. In a
# recipe with stages, it determines which stage is used.
PUBLISHED = (
    "untuned_lamb_bert", "untuned_lamb_resnet50", "legw_resnet50_lars", "mlperf_lars",
    "mlperf_lamb_bert", *STAGED_NAMES,
)  # fmt: skip
DEFAULT, TRANSFER = "legw", "transfer"  # rules: the default, and `recipes.transfer`
RECIPES = (DEFAULT, "sqrt", TRANSFER, *PUBLISHED)  # the values of --recipe


def settings_at_batch(
    name: str, batch_size: int, params, override: dict | None = None
) -> tuple[str, dict]:
    """Returns a text that explains the settings at another batch size, and these settings.

    Args:
        name: A published recipe or a rule, one of `RECIPES`.
        batch_size: The new batch size, in examples.
        params: The `ExperimentConfig` with the batch size for which it was tuned.
        override: The settings of `--params_override`, which win over the recipe. Defaults to None.

    Raises:
        TypeError: if a number is not an integer.
        ValueError: if the recipe does not fit this experiment or this batch.
    """
    if name in PUBLISHED:
        arithmetic, settings = _published(name, batch_size, params, override)
        stretch = Fraction(settings["trainer"]["train_steps"], params.trainer.train_steps)
    else:
        stretch = _stretch(batch_size, params, override)
        baseline = _baseline(name, params, override)
        target = _target(name, batch_size, baseline, stretch, override)
        settings = _settings(params.trainer.optimizer_config, baseline, target)
        arithmetic = _explanation(baseline, target, settings)
    trainer, loop = settings["trainer"], at(override, "trainer.steps_per_loop")
    trainer.update(intervals(params.trainer, trainer["train_steps"], loop))
    lines = [arithmetic]
    for path, steps in _other_steps(params.trainer.optimizer_config, stretch):
        settings = merged(settings, nested(f"trainer.optimizer_config.{path}", steps))
        lines.append(f"{path} = {steps if isinstance(steps, list) else f'{steps:,}'} steps")
    return "\n  ".join(lines), settings


def _published(name, batch_size, params, override) -> tuple[str, dict]:
    """Returns the text that describes a published recipe, and its settings.

    Raises `ValueError` if `--params_override` sets another number of steps than the recipe.
    """
    text, settings = published(name, batch_size, params, override)
    train_steps = settings["trainer"]["train_steps"]
    override_steps = at(override, "trainer.train_steps")
    if override_steps not in (None, train_steps):
        raise ValueError(
            f"{name} trains for {train_steps:,} steps, but --params_override says trainer."
            f"train_steps={override_steps}. Leave one of them out"
        )
    return text, settings


def _stretch(batch_size, params, override) -> Fraction:
    """Returns the new number of steps of a run, before it is rounded, divided by the old one."""
    if (override_steps := at(override, "trainer.train_steps")) is not None:
        train_steps = checks.integer("trainer.train_steps", override_steps)
        return Fraction(train_steps, params.trainer.train_steps)
    checks.integer("batch_size", batch_size)
    return Fraction(params.task.train_data.global_batch_size, batch_size)


def _other_steps(config, stretch: Fraction) -> Iterator[tuple[str, Any]]:
    """Yields the path and the new value of the settings that count steps.

    The settings of the learning rate and its warmup are left out.
    """
    optimizer, path = config.optimizer.get(), f"optimizer.{config.optimizer.type}"
    adascale = getattr(optimizer, "adascale", None)
    if adascale is not None and (base_steps := adascale.base_steps):
        yield f"{path}.adascale.base_steps", max(round_half_up(base_steps * stretch), 1)
    if decay := decay_schedule(optimizer):
        for key, steps in stretched(decay.get(), stretch).items():
            yield f"{path}.weight_decay_schedule.{decay.type}.{key}", steps
    if config.ema is not None and (start_step := config.ema.start_step) > 0:
        yield "ema.start_step", round_half_up(start_step * stretch)


# -- a rule: the baseline, the target, and the settings that give the target ----------------------


@dataclasses.dataclass(frozen=True)
class Baseline:
    """Holds what a rule of `--recipe` reads from the tuned experiment.

    Attributes:
        batch_size: The batch, in examples.
        train_steps: The number of steps.
        curve: The settings of the learning rate and its warmup.
        hyperparameters: Name -> value of the hyper-parameters that the rule `transfer` changes
            besides the learning rate. The names are those of the fields of `Recipe`. Empty for the
            other rules.
    """

    batch_size: int
    train_steps: int
    curve: Curve
    hyperparameters: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Target:
    """Holds what a rule computes for the run at another batch.

    Attributes:
        rule: The name of the rule, such as "legw".
        batch_size: The batch, in examples.
        stretch: The number of steps, before it is rounded, divided by that of the baseline.
        train_steps: The number of steps.
        has_own_steps: Whether `--params_override` has set `train_steps`.
        rule_warmup: The steps of warmup that the rule computes.
        warmup_steps: The steps of warmup in `--params_override`, or else `rule_warmup`.
        recipe: The `Recipe` that the rule makes. It has the new peak learning rate, and the new
            values of `Baseline.hyperparameters`.
    """

    rule: str
    batch_size: int
    stretch: Fraction
    train_steps: int
    has_own_steps: bool
    rule_warmup: int
    warmup_steps: int
    recipe: recipes.Recipe

    @property
    def peak(self) -> float:
        """The learning rate where warmup ends."""
        return self.recipe.learning_rate


def _baseline(rule, params, override) -> Baseline:
    """Returns the batch size, the steps and the learning rate of the tuned experiment."""
    config = params.trainer.optimizer_config
    warmup_kind, warmup = config.warmup.type, config.warmup.get()
    # The rule `transfer` adds a warmup at a larger batch. An experiment without warmup gets one of
    # 0 steps here, so that there are settings for the new number of steps.
    if warmup_kind is None and rule == TRANSFER:
        warmup_kind = "tf_lamb"
        warmup = config.warmup.tf_lamb.replace(steps=0, start=0.0, handover="continuous")
    rate = config.learning_rate
    rate_override = at(override, f"trainer.optimizer_config.learning_rate.{rate.type}") or {}
    return Baseline(
        batch_size=params.task.train_data.global_batch_size,
        train_steps=params.trainer.train_steps,
        curve=Curve(rate, warmup_kind, warmup, rate_override),
        hyperparameters=_hyperparameters(config) if rule == TRANSFER else {},
    )


def _target(rule, batch_size, baseline: Baseline, stretch: Fraction, override) -> Target:
    """Returns the number of steps, the warmup and the recipe that a rule computes for a batch.

    Raises `ValueError` if there would be no step, or if warmup is longer than training.
    """
    exact_steps = baseline.train_steps * stretch
    if not (train_steps := round_half_up(exact_steps)):
        raise ValueError(
            f"nothing would be trained: {_division(baseline, batch_size)} {float(exact_steps):.3g} "
            "steps. Take a smaller batch"
        )
    curve, recipe = baseline.curve, _recipe(rule, batch_size, baseline, train_steps)
    # A warmup that the rule rounds to 0 steps gets 1 step.
    rule_warmup = recipe.warmup_steps or min(curve.warmup_steps, 1)
    setting = f"warmup.{curve.warmup_kind}.{curve.warmup_setting}"
    override_warmup = at(override, f"trainer.optimizer_config.{setting}")
    if override_warmup is None and rule_warmup > train_steps:
        raise ValueError(
            f"{recipe.title}: warmup is longer than training, {rule_warmup:,} > {train_steps:,} "
            "steps. Train for longer, or take a smaller batch"
        )
    warmup_steps = rule_warmup if override_warmup is None else override_warmup
    return Target(
        rule=rule,
        batch_size=batch_size,
        stretch=stretch,
        train_steps=train_steps,
        has_own_steps=at(override, "trainer.train_steps") is not None,
        rule_warmup=rule_warmup,
        warmup_steps=checks.integer(setting, warmup_steps, 0),
        recipe=recipe,
    )


def _recipe(rule, batch_size, baseline: Baseline, train_steps: int) -> recipes.Recipe:
    """Returns the `Recipe` that a rule makes for another batch size and a number of steps."""
    base, curve = baseline.batch_size, baseline.curve
    examples = train_steps * batch_size
    if rule == TRANSFER:  # `transfer` itself limits warmup to a share of training
        share = curve.warmup_steps * base / examples
        return recipes.transfer(
            batch_size,
            base,
            curve.peak,
            examples=examples,
            epochs=1,
            warmup_epochs=share,
            **baseline.hyperparameters,
        )
    # `scale` refuses a warmup that is longer than training, so it is called for a longer run than
    # this one. Its learning rate and its steps of warmup are the same for a run of any length.
    long_enough = examples + curve.warmup_steps * max(base, batch_size)
    share = curve.warmup_steps * base / long_enough
    return recipes.scale(batch_size, base, curve.peak, share, long_enough, epochs=1, rule=rule)


def _hyperparameters(config) -> dict[str, Any]:
    """Returns the hyper-parameters, besides the learning rate, that the rule `transfer` changes.

    The result is a dict, name -> value, whose names are those of the fields of `Recipe`.
    Hyper-parameters that the optimizer lacks, and those that are 0, are left out.
    """
    optimizer = config.optimizer.get()
    settings = optimizer.as_dict()
    # In Model Garden's optimizers, weight decay is named `weight_decay_rate`.
    weight_decay = settings.get("weight_decay_rate", settings.get("weight_decay"))
    if decay := decay_schedule(optimizer):
        path = f"optimizer.{config.optimizer.type}.weight_decay_schedule"
        weight_decay = largest(path, decay)
    values = {
        "weight_decay": weight_decay,
        "beta_2": settings.get("beta_2"),
        "ema_momentum": config.ema.average_decay if config.ema is not None else None,
    }
    return {name: value for name, value in values.items() if value}


def _settings(config, baseline: Baseline, target: Target) -> dict:
    """Returns the nested settings that give an experiment the target's batch, steps and rates."""
    curve, peak = baseline.curve, target.peak
    rate = curve.rate_to(peak, target.stretch, target.warmup_steps)
    changes = {
        "learning_rate": {curve.rate.type: rate},
        **_moved(config, baseline.hyperparameters, target.recipe),
    }
    if target.rule_warmup:
        changes["warmup"] = curve.warmup_to(peak, target.rule_warmup)
    return {
        "task": {"train_data": {"global_batch_size": target.batch_size}},
        "trainer": {"train_steps": target.train_steps, "optimizer_config": changes},
    }


def _moved(config, old: dict[str, Any], recipe) -> dict:
    """Returns the nested settings that set the hyper-parameters in `old` to those of `recipe`."""
    new = {name: getattr(recipe, name) for name in old if name != "ema_momentum"}
    optimizer, kind = config.optimizer.get(), config.optimizer.type
    if "weight_decay" in new and hasattr(optimizer, "weight_decay_rate"):
        new["weight_decay_rate"] = new.pop("weight_decay")
    elif "weight_decay" in new and (decay := decay_schedule(optimizer)):
        factor = new.pop("weight_decay") / old["weight_decay"]
        new["weight_decay_schedule"] = {decay.type: multiplied(decay.get(), factor)}
    settings = {"optimizer": {kind: new}} if new else {}
    if "ema_momentum" in old:
        settings["ema"] = {"average_decay": recipe.ema_momentum}
    return settings


# -- the arithmetic of a rule ----------------------------------------------------------------------


def _explanation(baseline: Baseline, target: Target, settings: dict) -> str:
    """Returns a text that explains the settings at a new batch size, the target.

    It shows how they follow from those of the tuned experiment, the baseline.
    """
    # The recipe's lines that begin with these words count in epochs. They are left out, because the
    # number of epochs is unknown here.
    in_epochs = "steps ", "training ", "warmup "
    lines = [
        f"{target.recipe.title} from batch {baseline.batch_size:,}, at which this experiment was "
        f"tuned, to {target.batch_size:,}",
        *(line for line in target.recipe.arithmetic if not line.startswith(in_epochs)),
        *_text_of_start(baseline.curve, target, settings),
        f"training = {_text_of_steps(baseline, target)}",
        f"warmup = {_text_of_warmup(baseline, target)}",
        f"source: {target.recipe.source}",
    ]
    return "\n  ".join(lines)


def _text_of_start(curve: Curve, target: Target, settings: dict) -> Iterator[str]:
    """Yields a line on the setting `initial_learning_rate`, if that is not the peak rate."""
    name = "initial_learning_rate"
    path = f"trainer.optimizer_config.learning_rate.{curve.rate.type}.{name}"
    old_rate, new_rate = curve.rate.get().as_dict().get(name), at(settings, path)
    if new_rate is not None and old_rate not in (None, curve.peak):
        yield (
            f"peak, where warmup ends = {target.peak:.4g}: {name} = {new_rate:.4g} "
            f"({old_rate:g} before)"
        )


def _text_of_steps(baseline: Baseline, target: Target) -> str:
    """Returns a clause on how the number of steps is computed."""
    if target.has_own_steps:
        return f"{target.train_steps:,} steps, as --params_override has it"
    return f"{_division(baseline, target.batch_size)} {target.train_steps:,} steps"


def _division(baseline: Baseline, batch_size: int) -> str:
    """Returns the text of the formula for the number of steps at a batch, up to its equals sign."""
    return f"{baseline.train_steps:,} steps x {baseline.batch_size:,} / {batch_size:,} ="


def _text_of_warmup(baseline: Baseline, target: Target) -> str:
    """Returns a clause on the old number of steps of warmup, and on the one the rule computes."""
    before, after = baseline.curve.warmup_steps, target.rule_warmup
    as_many_examples = round_half_up(Fraction(before * baseline.batch_size, target.batch_size))
    if after == before:
        return f"{before:,} steps, as before"
    if target.rule == TRANSFER and after < as_many_examples:
        return f"{after:,} steps, cut to a quarter of training, {before:,} before"
    if target.rule == TRANSFER and after > as_many_examples:
        return f"{after:,} steps, raised to a tenth of training, {before:,} before"
    return f"{after:,} steps, {before:,} before"
