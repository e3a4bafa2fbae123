"""Checks of a learning rate before training, one sentence each.

Everything is read from the settings: a multi-worker strategy must be the first to touch a device,
so no rate can be computed here.
"""

import math

import tensorflow as tf
from official.modeling.optimization import OptimizerFactory, optimizer_factory

from tf_lamb.model_garden.common.errors import UserError, named
from tf_lamb.model_garden.experiments.recipes import RATES
from tf_lamb.model_garden.experiments.steered import is_steered

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
    _check_warmup(params)
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
        if key in (length, "warmup_steps") and not _is_count(value, least):
            raise UserError(f"{place} is {value}. Set a whole number of {least} or more")
        for number in value if isinstance(value, list | tuple) else [value]:
            if key in RATES and not is_at_least_0(number):
                raise UserError(f"{place} is {value}, and {what} is a number of 0 or more")
        if falls and key in _FACTORS and not is_at_least_0(value):
            raise UserError(f"{place} is {value}. Set a number of 0 or more")


def is_at_least_0(value) -> bool:
    """Whether it is a finite number, and not negative."""
    return isinstance(value, int | float) and 0 <= value < math.inf


def _is_count(value, least) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _check_warmup(params) -> None:
    warmup, steps = params.trainer.optimizer_config.warmup, params.trainer.train_steps
    length = "steps" if warmup.type == "tf_lamb" else "warmup_steps"
    warm = getattr(warmup.get(), length, 0) if warmup.get() else 0
    if warm > steps:
        raise UserError(
            f"warmup is longer than training: trainer.optimizer_config.warmup.{warmup.type}."
            f"{length}={warm:,} > trainer.train_steps={steps:,}. Train for longer, or take a "
            "smaller batch"
        )


def _check_decay(params) -> None:
    config = params.trainer.optimizer_config
    kind, settings = config.learning_rate.type, config.learning_rate.get().as_dict()
    if kind not in _DECAYS:
        return
    length, end_value = _DECAYS[kind]
    path, steps = f"{_CONFIG}.learning_rate.{kind}.{length}", settings[length]
    if settings.get(end_value) or settings.get("cycle") or settings.get("power", 1) == 0:
        return
    warmup = config.warmup.get()
    ours = config.warmup.type == "tf_lamb" and warmup.handover == "continuous"
    before = (settings.get("offset") or 0) + (warmup.steps if ours else 0)
    total, counted, other = _length_of(params)
    if before + steps >= total:
        _check_handover(config.warmup, before + steps, path)
        return
    raise UserError(
        f"the learning rate would be 0 from step {before + steps:,} of {counted}={total:,} on, "
        f"because {path} is {steps:,}{f' and begins at {before:,}' if before else ''}. Write "
        f"{path}={total - before}, or {other}={before + steps}"
    )


def _check_handover(warmup, zero: int, path: str) -> None:
    """Raises where Model Garden's own warmup, which rises to what is left of a decay, ends at 0."""
    warm = getattr(warmup.get(), "warmup_steps", None) if warmup.get() else None
    if not warm or warm < zero:
        return
    raise UserError(
        f"warmup would lead to a learning rate of 0: {_CONFIG}.warmup.{warmup.type}.warmup_steps="
        f"{warm:,} ends where {path} has brought the rate to 0, at step {zero:,}. Write "
        f"warmup_steps of less than {zero:,}, or train and decay for longer"
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
