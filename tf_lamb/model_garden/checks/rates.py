"""Checks of a learning rate before training, one sentence each.

Everything is read from the settings: a multi-worker strategy must be the first to touch a device,
so no rate can be computed here.
"""

import math

import tensorflow as tf
from official.modeling.optimization import OptimizerFactory, optimizer_factory

from tf_lamb.model_garden.common.errors import UserError, named
from tf_lamb.model_garden.experiments.scaling import RATES
from tf_lamb.model_garden.experiments.schedules import is_steered

_CONFIG = "trainer.optimizer_config"
# Learning rate -> where its length stands, and the value that it keeps from then on.
_DECAYS = {
    "polynomial": ("decay_steps", "end_learning_rate"),
    "cosine": ("decay_steps", "alpha"),
    "exponential": ("decay_steps", "decay_rate"),
    "power_linear": ("total_decay_steps", None),
    "tf_lamb_polynomial": ("steps", "end_learning_rate"),
    "tf_lamb_cosine": ("steps", "end_learning_rate"),
}
_FACTORS = "alpha", "decay_rate", "power"  # of which a negative one makes no rate


def check_rate(params) -> None:
    """Raises where a learning rate is none, or is 0 before training has ended."""
    config, steps = params.trainer.optimizer_config, params.trainer.train_steps
    for part in ("learning_rate", "warmup"):
        check_numbers(getattr(config, part), f"{_CONFIG}.{part}", steps, "a learning rate")
    name, warm = _warmup(config)
    if warm > steps:
        raise UserError(
            f"warmup is longer than training: {name}={warm:,} > trainer.train_steps={steps:,}. "
            "Train for longer, or take a smaller batch"
        )
    if is_steered(kind := config.learning_rate.type):
        optimizer_factory.LR_CLS[kind].check(params)
        return
    _check_decay(params)
    with named(f"{_CONFIG}.learning_rate"), tf.Graph().as_default():
        OptimizerFactory(config).build_learning_rate()


def check_numbers(choice, path: str, train_steps: int, what: str) -> None:
    """Raises where a schedule lacks a number, or has one that makes it none.

    Args:
        choice: of a schedule; it may have no type.
        path: where it stands.
        train_steps: of the run.
        what: follows the schedule.
    """
    settings = choice.get().as_dict() if choice.get() else {}
    length, _ = _DECAYS.get(choice.type, (None, None))
    falls = choice.type in ("polynomial", "cosine", "exponential")  # others refuse it themselves
    for key, value in settings.items():
        place = f"{path}.{choice.type}.{key}"
        # `staircase` alone means something when it is None: false.
        if value is None and key != "staircase":
            raise UserError(
                f"{place} is not set and has no default. Set it, e.g. for trainer.train_steps="
                f"{train_steps}"
            )
        least = 1 if key == length else 0
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= least
        if key in (length, "warmup_steps") and not is_count:
            raise UserError(f"{place} is {value}. Set a whole number of {least} or more")
        for number in value if isinstance(value, list | tuple) else [value]:
            if key in RATES and not is_at_least_0(number):
                raise UserError(f"{place} is {value}, and {what} is a number of 0 or more")
        if falls and key in _FACTORS and not is_at_least_0(value):
            raise UserError(f"{place} is {value}. Set a number of 0 or more")


def is_at_least_0(value) -> bool:
    """Whether it is a finite number, and not negative."""
    return isinstance(value, int | float) and 0 <= value < math.inf


def _warmup(config) -> tuple[str, int]:
    """The setting of the steps of warmup, and the steps; 0 without one."""
    kind, warmup = config.warmup.type, config.warmup.get()
    length = "steps" if kind == "tf_lamb" else "warmup_steps"
    return f"{_CONFIG}.warmup.{kind}.{length}", getattr(warmup, length, None) or 0


def _check_decay(params) -> None:
    """Raises where a decay ends before training, or Model Garden's own warmup where it has ended.

    That one rises to what is left of the decay by then, which counts from step 0 on.
    """
    config = params.trainer.optimizer_config
    kind, settings = config.learning_rate.type, config.learning_rate.get().as_dict()
    length, end_value = _DECAYS.get(kind, ("", None))
    if not length or settings.get(end_value) or settings.get("cycle"):
        return
    if settings.get("power", 1) == 0:
        return
    path, steps = f"{_CONFIG}.learning_rate.{kind}.{length}", settings[length]
    name, warm = _warmup(config)
    ours = config.warmup.type == "tf_lamb"
    behind = ours and config.warmup.get().handover == "continuous"
    before = (settings.get("offset") or 0) + (warm if behind else 0)
    zero = before + steps
    total, counted, other = _length_of(params)
    if zero < total:
        raise UserError(
            f"the learning rate would be 0 from step {zero:,} of {counted}={total:,} on, "
            f"because {path} is {steps:,}{f' and begins at {before:,}' if before else ''}. Write "
            f"{path}={total - before}, or {other}={zero}"
        )
    if not ours and warm >= zero:
        raise UserError(
            f"warmup would lead to a learning rate of 0: {name}={warm:,} ends where {path} has "
            f"brought the rate to 0, at step {zero:,}. Write warmup_steps of less than {zero:,}, "
            "or train and decay for longer"
        )


def _length_of(params) -> tuple[int, str, str]:
    """The steps of its schedule that a run may take, of which setting, and which one limits it."""
    steps, config = params.trainer.train_steps, params.trainer.optimizer_config.optimizer
    adascale = getattr(config.get(), "adascale", None)
    if adascale is None or adascale.scale is None:
        return steps, "trainer.train_steps", "trainer.train_steps"
    # AdaScale's schedule counts steps of the base batch, of which a step is worth up to `scale`.
    path = f"{_CONFIG}.optimizer.{config.type}.adascale.base_steps"
    if (limit := adascale.base_steps) is not None:
        return limit, path, path
    return math.ceil(steps * adascale.scale), "trainer.train_steps x adascale.scale", path
