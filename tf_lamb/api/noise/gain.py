"""Defines GainMeter, a `NoiseMeter` that also measures AdaScale's gain.

The gain r says how many steps of the base batch one step is worth. The base batch is the batch for
which the learning rate was tuned; see `AdaScale`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tf_lamb.api.noise.meter import NoiseMeter
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.api.variables import value_of
from tf_lamb.core import noise
from tf_lamb.core.rules.shared import bias_divisor

# If gradients are divided by the roots of second moments, nothing is measured in this number of
# steps at the beginning, because the moments are not reliable yet. The number is that of the
# library adaptdl.
UNMEASURED_STEPS = 5


class SecondMoments(NamedTuple):
    """Gives access to the second moments of an optimizer.

    Gradients are divided by the roots of these moments before their noise is measured.

    Attributes:
        optimizer: The optimizer, which has `iterations`, `beta_2` and `epsilon`.
        moment_of: A function that returns the second moment of a variable. It takes the position of
            the variable in the list that the optimizer was built for.
    """

    optimizer: Any
    moment_of: Callable[[int], Any]

    def denominators(self, xp: Any, positions: Sequence[int]) -> dict[int, Any]:
        """Returns the divisors of gradients, sqrt(v_hat) + epsilon, by position of the variable.

        v_hat is the bias-corrected second moment v. Where v is 0, the divisor is infinite.

        Args:
            xp: The array namespace.
            positions: The positions of the variables.
        """
        # The moments are those after `iterations` steps; before the first step all are zeros.
        step = xp.maximum(xp.cast(self.optimizer.iterations, "float32"), 1.0)
        correction = bias_divisor(xp, self.optimizer.beta_2, step)

        def denominator(moment):
            moment = xp.cast(moment, "float32")
            root = xp.sqrt(moment / correction) + self.optimizer.epsilon
            # A row of an embedding that is used for the first time has a moment of 0. The quotient
            # g/epsilon would be so large that the norm would depend on this row alone.
            return xp.where(moment > 0, root, math.inf)

        return {position: denominator(self.moment_of(position)) for position in positions}


def second_moments_of(optimizer: Any, is_adaptive: bool) -> SecondMoments | None:
    """Returns the second moments of an optimizer; None if it keeps none.

    Args:
        optimizer: The optimizer, which need not be built yet.
        is_adaptive: Whether it is one of Keras's own optimizers that keep second moments.
    """
    if is_adaptive:  # seam: the private `_velocities` of Keras 3.15.1 and tf_keras 2.20.1
        return SecondMoments(optimizer, lambda position: optimizer._velocities[position])
    if isinstance(optimizer, Layerwise) and _divides_by_roots(optimizer.rule):
        return SecondMoments(optimizer, lambda position: optimizer.state_of(position)["v"])
    return None


def _divides_by_roots(rule):
    """Returns whether a rule has Adam's slots m and v and hyper-parameters beta_2 and epsilon.

    This is taken as a sign that the rule divides by the roots of second moments, as Adam does: Adam
    divides the first moment m by sqrt(v_hat) + epsilon, where v_hat is the bias-corrected second
    moment v.
    """
    return {"m", "v"} <= {*rule.slots} and {"beta_2", "epsilon"} <= rule.hyper.keys()


class GainMeter(NoiseMeter):
    """Measures noise, AdaScale's gain r, and tau, the number of base batch steps so far.

    The docstring of `AdaScale` defines r and tau.

    Args:
        smoothing: theta, the decay factor per step of the exponential averages behind the noise
            scale. The averages behind the gain have another decay factor, which depends on `scale`.
        scale: S, the ratio of the batch to the base batch.
        second_moments: The second moments by which gradients are preconditioned. None measures the
            gradients themselves.

    Attributes:
        scale: S, the ratio of the batch to the base batch.
        second_moments: The second moments by which gradients are preconditioned, or None.
    """

    declarations = {
        **NoiseMeter.declarations,
        "base_variance": ((), "float32", "zeros"),
        "base_signal": ((), "float32", "zeros"),
        "base_count": ((), "float32", "zeros"),
        "fraction": ((), "float32", "zeros"),  # tau = step + fraction
        "gain": ((), "float32", "ones"),
        "step": ((), "int32", "zeros"),
    }

    def __init__(self, smoothing: float, scale: float, second_moments: SecondMoments | None):
        super().__init__(smoothing)
        self.scale = scale
        self.second_moments = second_moments

    @property
    def power(self) -> float:
        """The power of the gain by which the learning rate is multiplied.

        It is 0.5 for preconditioned gradients, else 1.
        """
        return 1.0 if self.second_moments is None else 0.5

    def gain(self) -> float:
        """Returns r, the gain of the last step; 1 before the optimizer is built."""
        return float(value_of(self.state["gain"])) if self.state else 1.0

    def base_steps(self) -> float:
        """Returns tau, the number of base batch steps that training so far is worth; at first 0."""
        names = ("step", "fraction") if self.state else ()
        return sum((float(value_of(self.state[name])) for name in names), 0.0)

    def finish(self, is_update: Any) -> None:
        """Adds the gain to tau, the number of base batch steps, if an update was made."""
        xp = self._backend.xp
        step, fraction, gain = (
            xp.convert_to_tensor(self.state[name]) for name in ("step", "fraction", "gain")
        )
        new_step, new_fraction = noise.add_gain(xp, step, fraction, gain, is_update)
        self._set({"step": new_step, "fraction": new_fraction})

    def _preconditioner(self, positions):
        """Returns a function that divides a gradient by the root of its second moment.

        If gradients are not preconditioned, the function returns them unchanged.
        """
        if self.second_moments is None:
            return super()._preconditioner(positions)
        xp = self._backend.xp
        denominators = self.second_moments.denominators(xp, positions)
        return lambda gradient, i: xp.cast(gradient, "float32") / denominators[i]

    def _is_measured(self):
        """Returns whether the averages are updated in this step.

        If gradients are divided by the roots of second moments, they are not in the first
        `UNMEASURED_STEPS` steps, when these moments are not reliable yet.
        """
        if self.second_moments is None:
            return True
        return self.second_moments.optimizer.iterations >= UNMEASURED_STEPS

    def _updated_averages(self, state, moments, is_counted):
        """Returns the new averages for the noise scale and for the gain, and the gain, by name.

        The names are those of `declarations`. `moments` are the variance and the signal of this
        step, and `is_counted` says whether the step enters the averages.
        """
        xp = self._backend.xp
        averages = noise.Averages(*(state[f"base_{name}"] for name in noise.Averages._fields))
        sums = (xp.sum(moment) for moment in moments)
        new_averages, gain = noise.next_averages_and_gain(
            xp, averages, *sums, scale=self.scale, count_step=is_counted
        )
        base_values = {f"base_{name}": value for name, value in new_averages._asdict().items()}
        return {
            **super()._updated_averages(state, moments, is_counted),
            **base_values,
            "gain": gain,
        }
