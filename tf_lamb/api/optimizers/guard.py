"""What becomes of a step whose gradients are not finite: one decision for all variables."""

from collections.abc import Callable
from typing import Any

from tf_lamb.api.variables import as_int, path_of, step_of
from tf_lamb.api.wrappers import unwrapped
from tf_lamb.core.checks.warn import warn

ADVICE = (
    "What usually helps: a longer warmup, a lower learning rate, global_clipnorm=1.0, "
    "ratio_bounds=(0.01, 10.0), and biases and normalization excluded from layer adaptation."
)

MANY = 20  # skipped steps in a row that are told at once


class Guarded:
    """Mixed into the optimizers of both doors, which give `_are_finite` and `_which_are_finite`."""

    name: str
    _settings: Any
    # Gives the variable that counts, once built. A function: as an attribute, the variable would
    # stand in a checkpoint under a second name.
    _skipped: Any = None
    _plan: Any
    _are_finite: Callable  # by weight, as the door knows
    _which_are_finite: Callable  # of any variables
    _told = 0  # skipped steps that a warning has told of
    _is_reported = False  # whether something else tells of them
    _row = (-1, 0)  # the step that is tried again and again, and what was skipped before it

    def strange_weights(self, model=None) -> list[str]:
        """The paths of the weights that are not finite: waits for the device.

        Args:
            model: All weights of it are looked at. Defaults to None: those that this optimizer
                trains, which leaves out what layers keep by themselves, such as the moving averages
                of batch normalization.
        """
        if model is not None:
            weights = [v for v in model.weights if "float" in str(v.dtype)]
            finite = self._which_are_finite(weights) if weights else []
            return [path_of(v) for v, ok in zip(weights, finite, strict=True) if not ok]
        if self._plan is None:
            return []
        return [p for p, ok in zip(self._plan.paths, self._are_finite(), strict=True) if not ok]

    @property
    def skipped_steps(self) -> int:
        """How many steps were skipped since the first, for a gradient that was not finite."""
        return 0 if self._skipped is None else as_int(self._skipped())

    def _tell_skipped(self):
        """Warns of skipped steps, unless that was done: called at the end of `fit`."""
        skipped = self.skipped_steps
        if skipped != self._told and not self._is_reported:
            warn(
                f"{self.name}: of {skipped + step_of(self):,} steps, {skipped:,} have been skipped "
                "because their gradients were not finite. The loss that fit shows may hide it: "
                "tf_lamb.DivergenceReport() among the callbacks ends such a run and says what "
                f"led to it. {ADVICE}"
            )
        self._told, self._is_reported = skipped, False

    def _tell_row(self, step, skipped):
        """Called on the host by a step that is skipped; warns where there are many in a row.

        Args:
            step: optimizer steps taken, which a skipped one does not change.
            skipped: how many were skipped, with this one.
        """
        step, skipped = int(step), int(skipped)
        if step != self._row[0]:
            self._row = (step, skipped - 1)
        if skipped - self._row[1] == MANY:
            warn(
                f"{self.name}: the last {MANY} steps were all skipped, because their gradients "
                f"were not finite: since step {step:,} nothing is trained. {ADVICE}"
            )

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
