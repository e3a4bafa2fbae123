"""What a run that goes on with other settings makes of its learning rate."""

import math

from official.modeling.optimization import OptimizerFactory

from tf_lamb.model_garden.common import yamls
from tf_lamb.model_garden.experiments.steered import is_steered

_PARTS = "learning_rate", "warmup"


def told(before: dict, config, step: float) -> str | None:
    """The line on a rate that jumps, and on the settings that make it; None where none does.

    Args:
        before: the params.yaml that the run had so far.
        config: the optimization config that it goes on with.
        step: at which it goes on, as the schedule counts.
    """
    parts = {part: yamls.at(before, f"trainer.optimizer_config.{part}") for part in _PARTS}
    changed = [line for part in _PARTS for line in _changes(part, parts[part], config)]
    kinds = yamls.at(parts, "learning_rate.type"), config.learning_rate.type
    if not changed or not step or any(map(is_steered, kinds)):
        return None
    try:
        old, new = (_rate(each, step) for each in (config.replace(**parts), config))
    except (KeyError, TypeError, ValueError):  # of another version of Model Garden
        return None
    if math.isclose(old, new, rel_tol=1e-3):
        return None
    return (
        f"The learning rate jumps from {old:.3g} to {new:.3g} at step {step:,.0f}, because "
        f"{' and '.join(changed)}"
    )


def _changes(part, before, config) -> list[str]:
    """Says of each setting of a part what it was and is, where it changed."""
    now = getattr(config, part).as_dict()
    kept = {"type", now.get("type")}
    leaves = yamls.leaves({key: value for key, value in now.items() if key in kept})
    return [
        f"{part}.{path} was {yamls.at(before, path)} and is {value}"
        for path, value in leaves
        if yamls.at(before, path) != value
    ]


def _rate(config, step) -> float:
    rate = OptimizerFactory(config).build_learning_rate()
    return float(rate(step) if callable(rate) else rate)
