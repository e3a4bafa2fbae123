"""Computes, with NumPy, the learning rate of a decay at a step from the settings of the decay.

TensorFlow is not used, because it would initialize the devices, and a multi-worker strategy has to
be made before that.
"""

import math
from typing import Any

from tf_lamb.core import schedules


def _decay(kind: str, settings: dict) -> Any:
    """Returns the schedule of `tf_lamb.core` that computes the same rates as a decay.

    The decay is one of this package or of Model Garden. Returns None for a constant rate, for a
    polynomial or cosine that rises or cycles, and if the settings are invalid. A decay by steps is
    returned even if its values rise. An exponential decay with a factor above 1 is treated as
    constant.

    Args:
        kind: The type of the decay in a config, such as "polynomial".
        settings: The settings of that type.
    """
    first: Any = settings.get("initial_learning_rate")
    try:
        if kind == "stepwise":  # Keras applies the new rate one step after the boundary
            boundaries = tuple(step + 1 for step in settings["boundaries"])
            return schedules._MultiStep(boundaries, settings["values"])
        if kind == "tf_lamb_multi_step":
            return schedules._MultiStep(**settings)
        length: Any = settings.get("decay_steps", settings.get("steps"))
        if kind.endswith("exponential"):
            factor: Any = settings.get("decay_rate", settings.get("rate"))
            staircase = bool(settings["staircase"])
            return schedules._Exponential(first, length, min(factor, 1.0), staircase)
        is_stock_cosine = kind == "cosine"
        end = (
            first * (settings["alpha"] or 0.0) if is_stock_cosine else settings["end_learning_rate"]
        )
        if first < end or settings.get("cycle"):  # the rate rises
            return None
        if kind.endswith("cosine"):
            return schedules._Cosine(first, length, end)
        return schedules._Polynomial(first, length, end, settings["power"])
    except (KeyError, TypeError, ValueError):  # a constant rate, or invalid settings
        return None


def peak(kind: str, settings: dict, step: int) -> float | None:
    """Returns the largest learning rate that a decay has at a step or later.

    Returns None for a constant rate, for a polynomial or cosine that rises or cycles, and if the
    settings are invalid.

    Args:
        kind: The type of the decay.
        settings: The settings of the decay.
        step: The step, counted from the beginning of training and not from the end of warmup.
    """
    import numpy as np

    if (decay := _decay(kind, settings)) is None:
        return None
    first_step = step - (settings.get("offset") or 0)
    # Before its offset a cosine decay rises to its first rate. Therefore the rate at step 0 of the
    # decay is compared, too.
    later_steps = [later for later in (0, *getattr(decay, "boundaries", ())) if later > first_step]
    return float(max(decay.value(np, at_step) for at_step in (first_step, *later_steps)))


def with_peak(kind: str, settings: dict, step: int, rate: float) -> dict:
    """Returns the settings of a decay to change so that its largest rate after warmup is `rate`.

    The rate at the end of the decay does not change. Returns {} if the largest rate is equal to
    `rate` already, or if `peak` cannot compute the largest rate.

    Args:
        kind: The type of the decay.
        settings: The settings of the decay.
        step: The step at which warmup ends, counted from the beginning of training.
        rate: The new largest rate of the decay at that step or later.

    Raises:
        ValueError: if the largest rate differs, and the decay is stepwise or has ended by `step`.
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
    """Returns a warning if a run ends before its learning rate has decayed, else None.

    It also returns None if AdaScale is on, which counts other steps, if the number of steps is no
    positive integer, or if `_decay` cannot compute one of the two rates.

    Args:
        tuned: The `ExperimentConfig` without `--params_override`, whose decay fits its number of
            steps.
        params: The `ExperimentConfig` with `--params_override`, which sets another number of steps.
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
    """Returns whether AdaScale is on, so that the schedule does not count the steps of the run."""
    adascale = getattr(params.trainer.optimizer_config.optimizer.get(), "adascale", None)
    return getattr(adascale, "scale", None) is not None


def _rate_at(params, step: int) -> float | None:
    """Returns the learning rate at a step after warmup; None if `_decay` returns None."""
    import numpy as np

    config = params.trainer.optimizer_config
    rate, warmup = config.learning_rate.get(), config.warmup.get()
    if rate is None or (decay := _decay(config.learning_rate.type, rate.as_dict())) is None:
        return None
    begin = getattr(rate, "offset", 0) or 0
    if config.warmup.type == "tf_lamb":
        begin += warmup.begin_step + (warmup.steps if warmup.handover == "continuous" else 0)
    return float(decay.value(np, step - begin))
