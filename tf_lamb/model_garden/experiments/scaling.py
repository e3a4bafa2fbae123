"""What `--global_batch_size` does: the settings of an experiment at another batch, by a recipe.

The whole curve of the learning rate is multiplied by one factor and stretched over the new number
of steps; warmup has a length of its own. Model Garden's own warmups lead to the rate that the decay
has when they end, for both count from step 0: of `polynomial` over 400 steps, 9/10 of its first
rate after 40. There the factor is that of the rate where they end. What `--params_override` says of
the number of steps or the length of warmup, the curve follows.

No rate is asked of TensorFlow: a multi-worker strategy must be the first to touch a device.
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

# Those that were published for one model, and are given by the batch alone; one in stages by the
# batch of a stage.
PUBLISHED = (
    "untuned_lamb_bert", "untuned_lamb_resnet50", "legw_resnet50_lars", "mlperf_lars",
    "mlperf_lamb_bert", *IN_STAGES,
)  # fmt: skip
DEFAULT, TRANSFER = "legw", "transfer"
RECIPES = (DEFAULT, "sqrt", TRANSFER, *PUBLISHED)

RATES = {
    "learning_rate", "initial_learning_rate", "end_learning_rate", "learning_rates", "values",
    "start", "warmup_learning_rate",
}  # fmt: skip
_STEPS = {"steps", "decay_steps", "boundaries"}  # and `offset`, from which on these count
_SCALABLE = ("constant", "stepwise", "polynomial", "cosine", "exponential")


def fill_in(name: str, batch_size: int, params, own: dict | None = None) -> tuple[str, dict]:
    """The arithmetic and the settings of a recipe for an experiment at this batch.

    `params` are the experiment at the batch at which it was tuned. What `--params_override` says,
    `own`, holds, whatever the recipe says. Raises where there is no such recipe for this run.
    """
    tuned, steps = params.trainer.train_steps, at(own, "trainer.train_steps")
    if name in PUBLISHED:
        text, settings = published(name, batch_size, params, own)
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
    trainer, config = settings["trainer"], params.trainer.optimizer_config
    loop = at(own, "trainer.steps_per_loop")
    trainer.update(intervals(params.trainer, trainer["train_steps"], loop))
    for path, value in _other_steps(config, stretch):
        text += f"\n  {'.'.join(path)} = {value if isinstance(value, list) else f'{value:,}'} steps"
        place = trainer["optimizer_config"]
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = value
    return text, settings


def _other_steps(config, stretch) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Paths and values of what is counted in steps, too, besides the learning rate."""
    kind, optimizer = config.optimizer.type, config.optimizer.get()
    adascale = getattr(optimizer, "adascale", None)
    if adascale is not None and (steps := adascale.base_steps):
        place = "optimizer", kind, "adascale", "base_steps"
        yield place, max(nearest(steps * stretch), 1)
    if decay := decay_schedule(optimizer):
        for key, steps in _stretched(decay.get(), stretch).items():
            yield ("optimizer", kind, "weight_decay_schedule", decay.type, key), steps
    if config.ema is not None and (steps := config.ema.start_step) > 0:
        yield ("ema", "start_step"), nearest(steps * stretch)


# -- a curve, piece by piece ----------------------------------------------------------------------


def _multiplied(schedule, factor) -> dict:
    """The settings of a schedule that are rates, multiplied."""
    return _each(schedule, RATES, lambda rate: rate * factor)


def _stretched(schedule, stretch, before=0, after=0, has_end=True, offset=None) -> dict:
    """The settings that are steps, stretched to the same shares of the run.

    Args:
        schedule: its settings.
        stretch: the new number of steps over the old one.
        before: the steps of a warmup that this schedule counts from.
        after: those of the new warmup.
        has_end: whether its steps end a decay; False for those of a period.
        offset: the new one, where it is given.
    """
    old = getattr(schedule, "offset", 0) or 0
    if offset is None:
        # A decay that would begin within the new warmup begins where that ends, and what warmup
        # gives up does not lengthen the offset, before which a rate is above the first one.
        offset = min(max(nearest((before + old) * stretch) - after, 0), nearest(old * stretch))
    begin, new_begin = (before + old, after + offset) if has_end else (0, 0)
    found = _each(schedule, _STEPS, lambda n: max(nearest((n + begin) * stretch) - new_begin, 1))
    return {**found, "offset": offset} if old else found


def _each(schedule, names, change) -> dict:
    found = {key: value for key, value in schedule.as_dict().items() if value and key in names}
    return {k: [*map(change, v)] if isinstance(v, list) else change(v) for k, v in found.items()}


def _largest(name: str, rate) -> float:
    """The largest rate that the settings of a schedule name; it stands under this name."""
    if rate.type not in _SCALABLE and not str(rate.type).startswith("tf_lamb_"):
        raise ValueError(
            f"--global_batch_size cannot scale {name}.type={rate.type}, only "
            f"{', '.join(_SCALABLE)} and those of tf_lamb. Write what this batch needs into a YAML"
        )
    rates = [v for k, v in rate.get().as_dict().items() if k in RATES and v is not None]
    if not rates:
        raise ValueError(
            f"trainer.optimizer_config.{name}.{rate.type} names no rate to scale. Write one "
            "into a YAML, because a rate of --params_override holds as it is"
        )
    return max(max(r) if isinstance(r, list) else r for r in rates)


def _decay(kind: str, settings: dict) -> Any:
    """A decay of the settings, ours or Model Garden's own, as the core has it; None without one."""
    first: Any = settings.get("initial_learning_rate")
    try:
        if kind == "stepwise":  # Keras's falls after its boundary
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
        if first < end or settings.get("cycle"):  # it rises again
            return None
        if kind.endswith("cosine"):
            return schedules._Cosine(first, length, end)
        return schedules._Polynomial(first, length, end, settings["power"])
    except (KeyError, TypeError, ValueError):  # a constant, or what the checks refuse
        return None


def peak(kind: str, settings: dict, step: int) -> float | None:
    """The largest rate of a decay from a step on; None where it is not known, or rises again.

    The step counts from the beginning of training, and not from the end of warmup.
    """
    import numpy as np

    decay, step = _decay(kind, settings), step - (settings.get("offset") or 0)
    # Before its offset a cosine rises to its first rate.
    later = [each for each in (0, *getattr(decay, "boundaries", ())) if each > step]
    return decay and float(max(decay.value(np, each) for each in (step, *later)))


def with_peak(kind: str, settings: dict, step: int, rate: float) -> dict:
    """The changes in a decay's settings that give it this rate at a step; its end stays."""
    found, decay = peak(kind, settings, step), _decay(kind, settings)
    if found is None or math.isclose(found, rate, rel_tol=1e-9):
        return {}
    end = getattr(decay, "end_learning_rate", 0.0)
    if kind in ("stepwise", "tf_lamb_multi_step") or found == end:
        raise ValueError(
            f"warmup would end at step {step:,} with a learning rate of {found:.4g}, and not of "
            f"{rate:.4g}, because learning_rate.{kind} has fallen by then. Train for longer, or "
            "take a smaller batch"
        )
    first = end + (rate - end) * (decay.initial_learning_rate - end) / (found - end)
    alpha = {"alpha": end / first} if "alpha" in settings else {}
    return {"initial_learning_rate": first, **alpha}


def cut_short(tuned, params) -> str | None:
    """Says where a run of fewer steps leaves the learning rate; None where it comes to its end.

    Args:
        tuned: the experiment whose decay ends with its own steps.
        params: the same with other steps.
    """
    steps, before = params.trainer.train_steps, tuned.trainer.train_steps
    if _counts_otherwise(params) or not isinstance(steps, int) or steps < 1:
        return None
    found, end = _rate_at(params, steps), _rate_at(tuned, before)
    if found is None or end is None or found <= end * 1.001:
        return None
    batch = params.task.train_data.global_batch_size
    return (
        f"the learning rate ends at {found:.4g}, and not at {end:.4g}: trainer.train_steps={steps} "
        f"of --params_override ends training, and not the decay, which is for {before:,} steps. "
        f"Add --global_batch_size={batch} to have the decay end there, too"
    )


def _counts_otherwise(params) -> bool:
    """Whether a step of the run is no step of its schedule."""
    adascale = getattr(params.trainer.optimizer_config.optimizer.get(), "adascale", None)
    return getattr(adascale, "scale", None) is not None


def _rate_at(params, step: int) -> float | None:
    """The learning rate behind warmup; None where it is not known."""
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
    """A learning rate over the steps, with the warmup that leads to it."""

    rate: Any  # the choice of a learning rate
    kind: str | None  # the type of the warmup; None without one
    warmup: Any  # its settings
    said: dict  # what `--params_override` says of the rate: it holds as it is

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
        largest, rate = _largest("learning_rate", self.rate), self.rate.get().as_dict()
        if not self.ends_on_decay:
            return largest
        known = {key: self.said.get(key) if value is None else value for key, value in rate.items()}
        return peak(self.rate.type, known, self.warmup_steps) or largest

    def scaled(self, peak: float, stretch, warmup_steps: int) -> dict:
        """The rate's settings that change: the peak, and the length behind such a warmup."""
        rate, kind = self.rate.get(), self.rate.type
        is_behind = self.kind == "tf_lamb" and self.warmup.handover == "continuous"
        before, after = (self.warmup_steps, warmup_steps) if is_behind else (0, 0)
        found = _multiplied(rate, peak / self.peak) | _stretched(
            rate, stretch, before, after, "exponential" not in kind, self.said.get("offset")
        )
        if self.ends_on_decay:
            all_of_it = {**rate.as_dict(), **found, **self.said}
            found |= with_peak(kind, all_of_it, warmup_steps, peak)
        return found

    def warmed(self, peak: float, steps: int) -> dict:
        """The warmup's settings for another peak and so many steps."""
        own = {**self.warmup.as_dict(), **_multiplied(self.warmup, peak / self.peak)}
        return {"type": self.kind, self.kind: {**own, self.length: steps}}


# -- a rule ---------------------------------------------------------------------------------------


def _scaled(name, batch_size, params, own, stretch) -> tuple[str, dict]:
    """The arithmetic and the settings of a rule: the recipe of the experiment, the curve by it."""
    config, base = params.trainer.optimizer_config, params.task.train_data.global_batch_size
    said = at(own, f"trainer.optimizer_config.learning_rate.{config.learning_rate.type}") or {}
    kind, warmup = config.warmup.type, config.warmup.get()
    if kind is None and name == TRANSFER:  # which has one at a larger batch in any case
        kind = "tf_lamb"
        warmup = config.warmup.tf_lamb.replace(steps=0, start=0.0, handover="continuous")
    curve = Curve(config.learning_rate, kind, warmup, said)
    moving = _moving(config) if name == TRANSFER else {}
    exact = params.trainer.train_steps * stretch
    steps = nearest(exact)
    ratio = f"{params.trainer.train_steps:,} steps x {base:,} / {batch_size:,} ="
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

    rate = curve.scaled(recipe.learning_rate, stretch, warmup_steps)
    found = {"learning_rate": {curve.rate.type: rate}, **_moved(config, recipe, moving)}
    if own_warmup:
        found["warmup"] = curve.warmed(recipe.learning_rate, own_warmup)
    is_given = at(own, "trainer.train_steps") is not None
    training = (
        f"{steps:,} steps, as --params_override has it" if is_given else f"{ratio} {steps:,} steps"
    )
    arithmetic = recipe.arithmetic if name == TRANSFER else recipe.arithmetic[:2]
    place, on_the_curve = "initial_learning_rate", []
    first, now = curve.rate.get().as_dict().get(place), rate.get(place)
    if now is not None and first not in (None, curve.peak):  # the curve begins above the peak
        begins = f"{place} = {now:.4g} ({first:g} before)"
        on_the_curve = [f"peak, where warmup ends = {recipe.learning_rate:.4g}: {begins}"]
    lines = [
        f"{recipe.title} from batch {base:,}, at which this experiment was tuned, to "
        f"{batch_size:,}",
        # Nothing is known here of what counts in epochs.
        *(line for line in arithmetic if not line.startswith(("steps ", "warmup "))),
        *on_the_curve,
        f"training = {training}",
        f"warmup = {_warming(name, curve.warmup_steps, own_warmup, base, batch_size)}",
        f"source: {recipe.source}",
    ]
    return "\n  ".join(lines), {
        "task": {"train_data": {"global_batch_size": batch_size}},
        "trainer": {"train_steps": steps, "optimizer_config": found},
    }


def _warming(name, before, after, tuned, batch_size) -> str:
    """Says what became of the steps of a warmup."""
    as_many_examples = nearest(Fraction(before * tuned, batch_size))
    if after == before:
        return f"{before:,} steps, as before"
    if name == TRANSFER and after < as_many_examples:
        return f"{after:,} steps, cut to a quarter of training, {before:,} before"
    if name == TRANSFER and after > as_many_examples:
        return f"{after:,} steps, raised to a tenth of training, {before:,} before"
    return f"{after:,} steps, {before:,} before"


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


def _moving(config) -> dict:
    """The settings that `transfer` moves, of an optimizer that has them."""
    own = config.optimizer.get().as_dict()
    decay = own.get("weight_decay_rate", own.get("weight_decay"))  # theirs, or ours
    if schedule := decay_schedule(config.optimizer.get()):
        decay = _largest(f"optimizer.{config.optimizer.type}.weight_decay_schedule", schedule)
    found = {
        "weight_decay": decay,
        "beta_2": own.get("beta_2"),
        "ema_momentum": config.ema.average_decay if config.ema is not None else None,
    }
    return {name: value for name, value in found.items() if value}


def _moved(config, recipe, moving: dict) -> dict:
    """The same settings as the recipe has them."""
    own = {name: getattr(recipe, name) for name in moving if name != "ema_momentum"}
    if "weight_decay" in own and hasattr(config.optimizer.get(), "weight_decay_rate"):
        own["weight_decay_rate"] = own.pop("weight_decay")
    elif "weight_decay" in own and (decay := decay_schedule(config.optimizer.get())):
        factor = own.pop("weight_decay") / moving["weight_decay"]
        own["weight_decay_schedule"] = {decay.type: _multiplied(decay.get(), factor)}
    found = {"optimizer": {config.optimizer.type: own}} if own else {}
    if "ema_momentum" in moving:
        found["ema"] = {"average_decay": recipe.ema_momentum}
    return found
