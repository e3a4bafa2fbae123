"""Decays of the settings, ours and Model Garden's own, as numbers at a step.

Model Garden's own warmups lead to the rate that the decay has when they end, for both count from
step 0: of `polynomial` over 400 steps, 9/10 of its first rate after 40. Settings are dicts by the
names of a YAML. No rate is asked of TensorFlow: a multi-worker strategy must be the first to touch
a device.
"""

import math
import operator

_STEPWISE = {"stepwise": "values", "tf_lamb_multi_step": "learning_rates"}


def peak(kind: str, settings: dict, step: int) -> float | None:
    """The largest rate of a decay from a step on; None where it is not known, or rises again.

    Args:
        kind: the type of the learning rate.
        settings: of it.
        step: at which warmup ends, counted from the beginning of training.
    """
    if kind in _STEPWISE:
        return max(_pieces(kind, settings, step), default=None)
    first = settings.get("initial_learning_rate", settings.get("learning_rate"))
    if first is None or settings.get("cycle") or first < (end := _end(kind, settings)):
        return None
    return end + (first - end) * _left(kind, settings, step)


def with_peak(kind: str, settings: dict, step: int, rate: float) -> dict:
    """The changes in a decay's settings that give it this rate at a step; its end stays.

    Args:
        kind: the type of the learning rate.
        settings: of it.
        step: at which warmup ends.
        rate: the one that it leads to.

    Raises:
        ValueError: where the decay has come too far by then.
    """
    found = peak(kind, settings, step)
    if found is None or math.isclose(found, rate, rel_tol=1e-9):
        return {}
    end, left = _end(kind, settings), _left(kind, settings, step)
    if kind in _STEPWISE or left == 0:
        raise ValueError(
            f"warmup would end at step {step:,} with a learning rate of {found:.4g}, and not of "
            f"{rate:.4g}, because learning_rate.{kind} has fallen by then. Train for longer, or "
            "take a smaller batch"
        )
    first = end + (rate - end) / left
    alpha = {"alpha": end / first} if "alpha" in settings else {}
    return {"initial_learning_rate": first, **alpha}


def _end(kind, settings) -> float:
    """The rate to which a decay falls."""
    if kind == "cosine":  # which has a part of its first rate
        return (settings["alpha"] or 0.0) * settings["initial_learning_rate"]
    return settings.get("end_learning_rate") or 0.0


def _left(kind, settings, step) -> float:
    """The part of the fall, from the first rate to the last, that is left: 1 at its beginning."""
    length = settings.get("decay_steps", settings.get("steps"))
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        return 1.0  # of a constant; the checks refuse another
    step -= settings.get("offset") or 0
    if kind.endswith("exponential"):
        base = settings.get("decay_rate", settings.get("rate")) or 1.0
        periods = step // length if settings.get("staircase") else step / length
        return base**periods if 0 < base < 1 else 1.0
    part = min(step, length) / length
    if kind.endswith("cosine"):
        return (1 + math.cos(math.pi * part)) / 2
    return (1 - part) ** max(settings.get("power") or 0.0, 0.0)


def _pieces(kind, settings, step) -> list:
    """The rates of a stepwise decay from a step on."""
    rates = settings[_STEPWISE[kind]] or []
    step -= settings.get("offset") or 0
    is_begun = operator.gt if kind == "stepwise" else operator.ge  # Keras's: after its boundary
    begun = sum(is_begun(step, edge) for edge in settings["boundaries"] or ())
    return list(rates)[min(begun, max(len(rates) - 1, 0)) :]
