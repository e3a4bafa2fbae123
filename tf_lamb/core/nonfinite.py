"""What becomes of a step whose gradients are not finite: one decision for all variables."""

from collections.abc import Callable
from typing import Any

from tf_lamb.core.observing import unwrapped

ADVICE = (
    "What usually helps: a longer warmup, a lower learning rate, global_clipnorm=1.0, "
    "ratio_bounds=(0.01, 10.0), and biases and normalization excluded from layer adaptation."
)


class Guarded:
    """Mixed into the optimizers of both doors; the door gives `_are_finite`."""

    name: str
    _settings: Any
    # Gives the variable that counts, once built. A function: as an attribute, the variable would
    # stand in a checkpoint under a second name.
    _skipped: Any = None
    _plan: Any
    _are_finite: Callable  # by weight, as the door knows

    def strange_weights(self) -> list[str]:
        """The paths of the weights that are not finite: waits for the device."""
        if self._plan is None:
            return []
        return [p for p, ok in zip(self._plan.paths, self._are_finite(), strict=True) if not ok]

    @property
    def skipped_steps(self) -> int:
        """How many steps were skipped since the first, for a gradient that was not finite."""
        return 0 if self._skipped is None else int(self._skipped().numpy())

    @property
    def _is_guarded(self):
        return self._settings.on_nonfinite != "propagate"

    def _refusal(self) -> str | None:
        """What a step raises before it names the variables; None if it raises nothing."""
        if self._settings.on_nonfinite != "raise":
            return None
        return (
            f"{self.name}: gradients are not finite, and on_nonfinite asks to raise. The step was "
            f"not taken: weights and slots are those of the step before. {ADVICE} Not finite are "
            "the gradients of "
        )


def watched(optimizer) -> Guarded:
    """The optimizer inside its wrappers; raises `TypeError` if it is not of this package."""
    inner = unwrapped(optimizer)
    if not isinstance(inner, Guarded):
        raise TypeError(
            "DivergenceReport reads the optimizers of tf_lamb, not "
            f"{type(inner).__module__}.{type(inner).__qualname__}: compile with one of them, or "
            "leave DivergenceReport out."
        )
    return inner
