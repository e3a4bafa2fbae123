"""Registers this package's schedules in Model Garden, with their arguments as settings.

    learning_rate: {type: tf_lamb_polynomial, tf_lamb_polynomial: {...}}
    warmup:        {type: tf_lamb, tf_lamb: {steps: 3125, handover: drop}}

The warmup `tf_lamb` can be combined with any learning rate of this package or of Model Garden. The
settings are the arguments of the schedule's class, whose docstring explains them. A YAML that lacks
a number without a default is refused before training.

The warmup has one more setting: `begin_step`, the optimizer's step at which the schedule begins. It
is 0, unless the optimizer is restored with the step count of an earlier stage of training
(`task.init_optimizer`). `steps` may then be 0, so that the schedule has no warmup.
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
    """Makes a config class whose fields are the arguments of another class.

    Args:
        cls: The class whose arguments become settings. The default of a setting is that of the
            argument, or None if the argument has no default.
        *without: Arguments to leave out.
        base: The base class of the settings.
        **more: More settings, with their defaults.

    Returns:
        A dataclass, a subclass of `base`.
    """
    arguments = {
        name: None if argument.default is argument.empty else argument.default
        for name, argument in inspect.signature(cls).parameters.items()
        if name not in without
    }
    fields = [(name, Any, default) for name, default in {**arguments, **more}.items()]
    return dataclasses.make_dataclass(f"{cls.__name__}Config", fields, bases=(base,))


def warmup(after, steps, begin_step=0, **arguments):
    """Returns a schedule that begins with a warmup; before `begin_step` its rate is 0.

    Args:
        after: The schedule that follows, or a number, which is a constant rate.
        steps: The number of steps of warmup; 0 for none.
        begin_step: The optimizer's step at which the schedule begins. Defaults to 0.
        **arguments: More arguments of `tf_lamb.tf_keras.schedules.Warmup`.
    """
    schedule = schedules.Warmup(steps, after, **arguments) if steps != 0 else after
    return schedules.Stages((begin_step, 1), (0.0, schedule)) if begin_step else schedule


# Key of a learning rate in a YAML -> the class of the schedule, whose arguments are the settings.
_LEARNING_RATES = {
    "tf_lamb_constant": schedules._Constant,
    "tf_lamb_polynomial": schedules._Polynomial,
    "tf_lamb_cosine": schedules._Cosine,
    "tf_lamb_exponential": schedules._Exponential,
    "tf_lamb_multi_step": schedules._MultiStep,
}
# Key of a learning rate, or of a warmup, in a YAML -> the config class with its settings.
_RATES = {key: settings_of(cls) for key, cls in _LEARNING_RATES.items()}
_WARMUPS = {"tf_lamb": settings_of(schedules.Warmup, "after", begin_step=0)}


def register_schedules() -> None:
    """Registers each schedule of this package under its key, for every experiment."""
    seams.add_learning_rates(_LEARNING_RATES, _RATES)
    seams.add_warmups({"tf_lamb": warmup}, _WARMUPS)


class Steered(tf_keras.optimizers.schedules.LearningRateSchedule):
    """Base class of a learning rate that an Orbit action changes during training.

    The action is called after each loop of `trainer.steps_per_loop` steps. To register a subclass,
    call `seams.add_learning_rates`.

    Attributes:
        is_watched: Whether an Orbit action for this learning rate exists. The constructor of the
            action sets this attribute to True. If it is still False, training is refused: the rate
            rises until the action stops it. Defaults to False.
    """

    is_watched = False

    @classmethod
    def check(cls, params) -> None:
        """Checks, before training, that an experiment can have this learning rate.

        Args:
            params: The experiment's `ExperimentConfig`.

        Raises:
            UserError: if the experiment cannot have it. In this base class, never.
        """

    def action(self, optimizer, model_dir: str, writes: bool):
        """Returns the Orbit action that changes this rate, called with the output of each loop.

        The action has two more methods. The runner calls `resume()` after a checkpoint has been
        restored, and prints the text that `advice()` returns at the end.

        Args:
            optimizer: The optimizer that has this rate.
            model_dir: The folder in which the action keeps its state. All processes read it.
            writes: Whether this process is the one that writes the state.

        Raises:
            NotImplementedError: in this base class.
        """
        raise NotImplementedError


def is_steered(kind) -> bool:
    """Returns whether a type of learning rate is a `Steered` one."""
    made_by = optimizer_factory.LR_CLS.get(kind)
    return isinstance(made_by, type) and issubclass(made_by, Steered)


def steered_rate(optimizer) -> Steered | None:
    """Returns the learning rate of an optimizer, perhaps wrapped, if it is `Steered`; else None."""
    # seam: relies on tf-models-official 2.20.0 and tf_keras 2.20.1. The wrapper that averages the
    # weights has its optimizer in `_optimizer`. Legacy and new-style optimizers keep the rate in
    # different attributes.
    optimizer = unwrapped(getattr(optimizer, "_optimizer", optimizer))
    rate = getattr(optimizer, "_learning_rate", None)
    rate = optimizer.learning_rate if rate is None else rate
    return rate if isinstance(rate, Steered) else None


def jump(before: dict, config, step: float) -> str | None:
    """Returns a message if changed settings make the learning rate jump where a run resumes.

    Returns None if the rate does not jump, or if its value cannot be computed.

    Args:
        before: The settings in params.yaml, as a dict, which the run had before it stopped.
        config: The `optimizer_config` with which the run resumes.
        step: The step of the schedule at which the run resumes: the optimizer's step, or with
            AdaScale the step of the base batch.
    """
    old_parts = {part: yamls.at(before, f"trainer.optimizer_config.{part}") for part in _PARTS}
    changes = [line for part in _PARTS for line in _changes(part, old_parts[part], config)]
    kinds = yamls.at(old_parts, "learning_rate.type"), config.learning_rate.type
    if not changes or not step or any(map(is_steered, kinds)):
        return None
    try:
        old, new = (_rate_at(version, step) for version in (config.replace(**old_parts), config))
    except (KeyError, TypeError, ValueError):  # another version of Model Garden wrote the settings
        return None
    if math.isclose(old, new, rel_tol=1e-3):
        return None
    return (
        f"The learning rate jumps from {old:.3g} to {new:.3g} at step {step:,.0f}, because "
        f"{' and '.join(changes)}"
    )


# The parts of `optimizer_config` that make the learning rate.
_PARTS = "learning_rate", "warmup"


def _changes(part, before, config) -> list[str]:
    """Returns a clause for each changed setting of a part of the config, with both values.

    `part` is "learning_rate" or "warmup", and `before` are the old settings of this part.
    """
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
    """Returns the learning rate of an `optimizer_config` at a step."""
    rate = OptimizerFactory(config).build_learning_rate()
    return float(rate(step) if callable(rate) else rate)
