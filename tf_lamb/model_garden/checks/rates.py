"""Checks the settings of a learning rate before training; each error is one sentence.

The checks do not compute the rate at any step. TensorFlow would initialize the devices for that,
and a multi-worker strategy has to be made before.
"""

import math

import tensorflow as tf
from official.modeling.optimization import OptimizerFactory, optimizer_factory

from tf_lamb.model_garden.common.errors import UserError, named
from tf_lamb.model_garden.experiments.curves import RATES
from tf_lamb.model_garden.experiments.schedule_configs import is_steered

_CONFIG = "trainer.optimizer_config"
# Type of a decay -> the setting for its length in steps, and the setting that keeps the rate above
# 0 at the end of the decay, if its value is above 0. None: the rate always ends at 0.
_DECAYS = {
    "polynomial": ("decay_steps", "end_learning_rate"),
    "cosine": ("decay_steps", "alpha"),
    "exponential": ("decay_steps", "decay_rate"),
    "power_linear": ("total_decay_steps", None),
    "tf_lamb_polynomial": ("steps", "end_learning_rate"),
    "tf_lamb_cosine": ("steps", "end_learning_rate"),
}
_FACTORS = "alpha", "decay_rate", "power"  # these must not be negative


def check_rate(params) -> None:
    """Checks the learning rate of an experiment.

    Args:
        params: the experiment's `ExperimentConfig`.

    Raises:
        UserError: if a setting is invalid, if warmup is longer than training, or if the rate is 0
            before training has ended.
    """
    config, steps = params.trainer.optimizer_config, params.trainer.train_steps
    for part in ("learning_rate", "warmup"):
        check_numbers(getattr(config, part), f"{_CONFIG}.{part}", steps, "a learning rate")
    name, warmup_steps = _warmup(config)
    if warmup_steps > steps:
        raise UserError(
            f"warmup is longer than training: {name}={warmup_steps:,} > "
            f"trainer.train_steps={steps:,}. Train for longer, or take a smaller batch"
        )
    if is_steered(kind := config.learning_rate.type):
        optimizer_factory.LR_CLS[kind].check(params)
        return
    _check_decay(params)
    with named(f"{_CONFIG}.learning_rate"), tf.Graph().as_default():
        OptimizerFactory(config).build_learning_rate()


def check_numbers(choice, path: str, train_steps: int, what: str) -> None:
    """Checks the numbers of a schedule.

    Args:
        choice: the config of the schedule; it may have no type.
        path: the path of the config in the experiment.
        train_steps: the number of steps of the run.
        what: the quantity that follows the schedule, such as "a learning rate".

    Raises:
        UserError: if a number is missing or out of range.
    """
    settings = choice.get().as_dict() if choice.get() else {}
    length_key, _ = _DECAYS.get(choice.type, (None, None))
    # Schedules of other types check these factors in their constructors.
    is_checked = choice.type in ("polynomial", "cosine", "exponential")
    for key, value in settings.items():
        setting = f"{path}.{choice.type}.{key}"
        # None is allowed for `staircase` only, where it means false. Other settings need a value.
        if value is None and key != "staircase":
            raise UserError(
                f"{setting} is not set and has no default. Set it, e.g. for trainer.train_steps="
                f"{train_steps}"
            )
        minimum = 1 if key == length_key else 0
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= minimum
        if key in (length_key, "warmup_steps") and not is_count:
            raise UserError(f"{setting} is {value}. Set a whole number of {minimum} or more")
        for number in value if isinstance(value, list | tuple) else [value]:
            if key in RATES and not is_at_least_0(number):
                raise UserError(f"{setting} is {value}, and {what} is a number of 0 or more")
        if is_checked and key in _FACTORS and not is_at_least_0(value):
            raise UserError(f"{setting} is {value}. Set a number of 0 or more")


def is_at_least_0(value) -> bool:
    """Returns whether a value is a finite number, and not negative."""
    return isinstance(value, int | float) and 0 <= value < math.inf


def _warmup(config) -> tuple[str, int]:
    """Returns the path of the setting for the steps of warmup, and its value (0 without warmup)."""
    kind, warmup = config.warmup.type, config.warmup.get()
    key = "steps" if kind == "tf_lamb" else "warmup_steps"
    return f"{_CONFIG}.warmup.{kind}.{key}", getattr(warmup, key, None) or 0


def _check_decay(params) -> None:
    """Raises `UserError` if a decay reaches a learning rate of 0 too early.

    It must not reach 0 before the end of training, nor before the end of a warmup of Model Garden's
    own. That warmup rises to the rate of the decay at the step where the warmup ends. The decay
    counts from step 0, so it may have reached 0 by then.
    """
    config = params.trainer.optimizer_config
    kind, settings = config.learning_rate.type, config.learning_rate.get().as_dict()
    length_key, end_key = _DECAYS.get(kind, ("", None))
    if not length_key or settings.get(end_key) or settings.get("cycle"):
        return
    # `power_linear` falls to 0 in the last `linear_decay_fraction` of its steps. A polynomial with
    # a power of 0 never falls.
    is_constant = settings.get("power", 1) == 0
    if not settings.get("linear_decay_fraction") if kind == "power_linear" else is_constant:
        return
    path, steps = f"{_CONFIG}.learning_rate.{kind}.{length_key}", settings[length_key]
    name, warmup_steps = _warmup(config)
    is_our_warmup = config.warmup.type == "tf_lamb"
    is_after_warmup = is_our_warmup and config.warmup.get().handover == "continuous"
    start = (settings.get("offset") or 0) + (warmup_steps if is_after_warmup else 0)
    end = start + steps
    limit, limit_name, setting = _length_of(params)
    if end < limit:
        raise UserError(
            f"the learning rate would be 0 from step {end:,} of {limit_name}={limit:,} on, "
            f"because {path} is {steps:,}{f' and begins at {start:,}' if start else ''}. Write "
            f"{path}={limit - start}, or {setting}={end}"
        )
    if not is_our_warmup and warmup_steps >= end:
        raise UserError(
            f"warmup would lead to a learning rate of 0: {name}={warmup_steps:,} ends where {path} "
            f"has brought the rate to 0, at step {end:,}. Write warmup_steps of less than {end:,}, "
            "or train and decay for longer"
        )


def _length_of(params) -> tuple[int, str, str]:
    """Returns the largest step of the learning-rate schedule that a run can reach.

    Returns:
        That step, the setting or product that determines it, and the setting that can lower it.
    """
    steps, config = params.trainer.train_steps, params.trainer.optimizer_config.optimizer
    adascale = getattr(config.get(), "adascale", None)
    if adascale is None or adascale.scale is None:
        return steps, "trainer.train_steps", "trainer.train_steps"
    # With AdaScale the schedule counts steps of the base batch, for which the rate was tuned. One
    # step of the run counts as up to `scale` of them.
    path = f"{_CONFIG}.optimizer.{config.type}.adascale.base_steps"
    if (limit := adascale.base_steps) is not None:
        return limit, path, path
    return math.ceil(steps * adascale.scale), "trainer.train_steps x adascale.scale", path
