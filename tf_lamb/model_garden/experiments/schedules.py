"""Learning rates as Model Garden sees them: one class of settings a schedule of ours, and its key.

    learning_rate: {type: tf_lamb_polynomial, tf_lamb_polynomial: {...}}
    warmup:        {type: tf_lamb, tf_lamb: {steps: 3125, handover: drop}}

`warmup: tf_lamb` stands in front of any learning rate, ours or Model Garden's own. Settings are the
arguments of the schedule, which documents them. To leave a number that has no default out of a
YAML is an error before training.

The warmup has one setting more: `begin_step`, the optimizer's step at which the schedule begins:
0, unless the optimizer comes with the steps of an earlier stage (`task.init_optimizer`), where
there need be no warmup (`steps: 0`).
"""

import dataclasses
import inspect
import math
from typing import Any

import tf_keras
from official.modeling.hyperparams import base_config
from official.modeling.optimization import OptimizerFactory, optimizer_factory

from tf_lamb.api.variables import unwrapped
from tf_lamb.model_garden.common import seams, yamls
from tf_lamb.tf_keras import schedules


def settings_of(cls, *without: str, base=base_config.Config, **more) -> type[base_config.Config]:
    """The arguments of a class as settings, without some, with more; None if without a default."""
    arguments = {
        name: None if argument.default is argument.empty else argument.default
        for name, argument in inspect.signature(cls).parameters.items()
        if name not in without
    }
    fields = [(name, Any, default) for name, default in {**arguments, **more}.items()]
    return dataclasses.make_dataclass(f"{cls.__name__}Config", fields, bases=(base,))


def warmup(after, steps, begin_step=0, **arguments):
    """Our warmup in front of a schedule, or of the plain number that a constant rate is."""
    schedule = schedules.Warmup(steps, after, **arguments) if steps != 0 else after
    return schedules.Stages((begin_step, 1), (0.0, schedule)) if begin_step else schedule


# Key -> what is made of the settings.
_LEARNING_RATES = {
    "tf_lamb_constant": schedules._Constant,
    "tf_lamb_polynomial": schedules._Polynomial,
    "tf_lamb_cosine": schedules._Cosine,
    "tf_lamb_exponential": schedules._Exponential,
    "tf_lamb_multi_step": schedules._MultiStep,
}
_RATES = {key: settings_of(cls) for key, cls in _LEARNING_RATES.items()}
_WARMUPS = {"tf_lamb": settings_of(schedules.Warmup, "after", begin_step=0)}


def register_schedules() -> None:
    """Registers each of our schedules under its own key, in every experiment."""
    seams.add_learning_rates(_LEARNING_RATES, _RATES)
    seams.add_warmups({"tf_lamb": warmup}, _WARMUPS)


class Steered(tf_keras.optimizers.schedules.LearningRateSchedule):
    """Base of a rate that an action moves between loops; `seams.add_learning_rates` adds it.

    Attributes:
        is_watched: whether the action is there, which says so: without it the rate would rise on.
    """

    is_watched = False

    @classmethod
    def check(cls, params) -> None:
        """Raises `UserError`, before training, where an experiment cannot have this rate."""

    def action(self, optimizer, model_dir: str, writes: bool):
        """The action, which is called with the output of each loop.

        It keeps its state in a folder, which one process `writes`, and all of them read. The runner
        calls its `resume()` when a checkpoint is restored, and prints its `advice()` at the end.
        """
        raise NotImplementedError


def is_steered(kind) -> bool:
    """Whether a type of learning rate is one of these."""
    made_by = optimizer_factory.LR_CLS.get(kind)
    return isinstance(made_by, type) and issubclass(made_by, Steered)


def steered_rate(optimizer) -> Steered | None:
    """The steered rate inside an optimizer and what may wrap it; None where it has another."""
    # seam: tf-models-official 2.20.0 and tf_keras 2.20.1. Averaging, and either generation.
    optimizer = unwrapped(getattr(optimizer, "_optimizer", optimizer))
    rate = getattr(optimizer, "_learning_rate", None)
    rate = optimizer.learning_rate if rate is None else rate
    return rate if isinstance(rate, Steered) else None


def jump(before: dict, config, step: float) -> str | None:
    """The line on a rate that jumps where a run goes on from the params.yaml `before`, or None."""
    old_parts = {part: yamls.at(before, f"trainer.optimizer_config.{part}") for part in _PARTS}
    changes = [line for part in _PARTS for line in _changes(part, old_parts[part], config)]
    kinds = yamls.at(old_parts, "learning_rate.type"), config.learning_rate.type
    if not changes or not step or any(map(is_steered, kinds)):
        return None
    try:
        old, new = (_rate_at(version, step) for version in (config.replace(**old_parts), config))
    except (KeyError, TypeError, ValueError):  # of another version of Model Garden
        return None
    if math.isclose(old, new, rel_tol=1e-3):
        return None
    return (
        f"The learning rate jumps from {old:.3g} to {new:.3g} at step {step:,.0f}, because "
        f"{' and '.join(changes)}"
    )


_PARTS = "learning_rate", "warmup"


def _changes(part, before, config) -> list[str]:
    """Says of each setting of a part what it was and is, where it changed."""
    new_settings = getattr(config, part).as_dict()
    used = {
        key: value
        for key, value in new_settings.items()
        if key in ("type", new_settings.get("type"))
    }
    return [
        f"{part}.{path} was {old_value} and is {value}"
        for path, value in yamls.leaves(used)
        if (old_value := yamls.at(before, path)) != value
    ]


def _rate_at(config, step) -> float:
    rate = OptimizerFactory(config).build_learning_rate()
    return float(rate(step) if callable(rate) else rate)
