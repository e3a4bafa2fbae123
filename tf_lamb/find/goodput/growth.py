"""Extrapolates the noise scale of short runs to a long run, as a power of the examples.

    Bn(D) = c D^a

Bn is the noise scale, and D the number of examples with which the baseline reaches the loss to
which the steps are counted.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import NamedTuple

from tf_lamb.find.goodput.steps import Z_90, StepCurve

# The exponent a that is expected before anything is measured, and its standard deviation. The
# registered prediction of docs/updates_left.md is 0.4 to 0.6 for the critical batch, which is
# proportional to the noise scale; the result of that study is to replace it. The deviation is wider
# than the prediction, because the study has no result yet: within two deviations are a = 0, a noise
# scale that does not grow, and a = 1, one number of updates that is enough at every length.
EXPECTED_EXPONENT, EXPONENT_DEVIATION = 0.5, 0.25


class PowerLaw(NamedTuple):
    """Holds the noise scale as a power of the examples D of a run, and how well it is known.

        log Bn(D) = intercept + exponent (log D - center)

    Attributes:
        center: The mean of log D over the readings of the noise scale.
        intercept: log Bn at the center.
        exponent: a, from the readings and from the expected 0.5.
        exponent_deviation: The standard deviation of the exponent.
        measured_exponent: The exponent from the readings alone; None if all readings are at one D.
        measured_deviation: The standard deviation of `measured_exponent`; infinite if that is None.
    """

    center: float
    intercept: float
    exponent: float
    exponent_deviation: float
    measured_exponent: float | None
    measured_deviation: float

    def noise_at(self, examples: float) -> float:
        """Returns the noise scale of a run of so many examples."""
        return math.exp(self.intercept + self.exponent * (math.log(examples) - self.center))

    def spread(self, examples: float) -> float:
        """Returns the standard deviation of log Bn that comes from the exponent alone.

        Args:
            examples: D, the examples of a run.
        """
        return self.exponent_deviation * abs(math.log(examples) - self.center)


def fit_power_law(readings: Iterable[tuple[float, float, float]]) -> PowerLaw:
    """Fits a power to readings of the noise scale, weighted by one over their variance.

    The slope m of least squares has the variance v = 1/sum(w (log D - center)^2), where w = 1/sd^2
    and sd is the standard deviation of a reading's log Bn. The exponent is the mean of m and of the
    expected 0.5, each weighted by one over its variance:

        exponent = (m/v + 0.5/0.25^2) / (1/v + 1/0.25^2)

    Args:
        readings: Triples (D, Bn, sd), one at least.

    Example:
        >>> law = fit_power_law([(1e4, 100, 0.3), (4e4, 300, 0.3)])
        >>> [round(x, 2) for x in (law.measured_exponent, law.measured_deviation, law.exponent)]
        [0.79, 0.31, 0.62]
        >>> round(law.noise_at(4e5))
        1100
    """
    points = [(math.log(d), math.log(noise), sd**-2) for d, noise, sd in readings]
    total_weight = sum(weight for *_, weight in points)
    center, intercept = (
        sum(point[2] * point[i] for point in points) / total_weight for i in (0, 1)
    )
    measured_exponent, measured_deviation = None, math.inf
    information = weighted_covariance = 0.0
    if len({x for x, *_ in points}) > 1:  # at one D, rounding may make the mean differ from it
        information = sum(weight * (x - center) ** 2 for x, _, weight in points)
        weighted_covariance = sum(weight * (x - center) * y for x, y, weight in points)
        measured_exponent, measured_deviation = weighted_covariance / information, information**-0.5
    precision = information + EXPONENT_DEVIATION**-2
    exponent = (weighted_covariance + EXPECTED_EXPONENT * EXPONENT_DEVIATION**-2) / precision
    return PowerLaw(
        center, intercept, exponent, precision**-0.5, measured_exponent, measured_deviation
    )


def extrapolate(
    batch: int, whole_examples: float, late_reading: tuple[float, StepCurve],
    early_reading: tuple[float, StepCurve] | None = None,
) -> StepCurve:  # fmt: skip
    """Extrapolates the curve of short runs to the whole run.

    The noise scale follows the power law that `fit_power_law` fits to the readings at two losses.
    Both readings come from the same runs, so together they are taken to be no better known than the
    later one alone. In the 90 % interval of the result, the squares of two deviations add up: that
    of the later noise scale and that of the exponent.

    Args:
        batch: The batch of the baseline, at which the curve keeps its steps.
        whole_examples: D, the examples of the whole run.
        late_reading: The examples with which the baseline reaches the target of the short runs, and
            the curve of the steps to that target.
        early_reading: The same pair for a loss that is reached earlier. Defaults to None: not
            known.

    Returns:
        The curve of the whole run.
    """
    short_examples, curve = late_reading
    readings = [
        (reached, reading_curve.noise, deviation)
        for reached, reading_curve in (late_reading, *([early_reading] if early_reading else []))
        if (deviation := _log_noise_deviation(reading_curve)) < math.inf
    ]
    if _log_noise_deviation(curve) < math.inf:
        law = fit_power_law(readings)
        growth = law.noise_at(whole_examples) / curve.noise
    else:  # without a later reading, an earlier one gives no slope
        law = fit_power_law([(short_examples, 1.0, 1.0)])
        growth = law.noise_at(whole_examples)
    low, high = curve.interval
    measured_note = (
        f"in the short runs it is {curve.noise:,.0f} ({low:,.0f} to {high:,.0f}) after "
        f"{short_examples:,.0f} examples, from {curve.source}"
    )
    expected_text = f"examples^{EXPECTED_EXPONENT:g} (+- {EXPONENT_DEVIATION:g}) is expected"
    if law.measured_exponent is None:
        slope_note = f"they do not tell how it grows from there: {expected_text}"
    else:
        _, (reached, early_noise, _) = readings
        slope_note = (
            f"and {early_noise:,.0f} after {reached:,.0f}: "
            f"examples^{law.measured_exponent:.2f} (+- {law.measured_deviation:.2f}); "
            f"{expected_text}; both together: examples^{law.exponent:.2f} "
            f"(+- {law.exponent_deviation:.2f})"
        )
    return dataclasses.replace(
        curve.with_grown_noise(batch, growth, Z_90 * law.spread(whole_examples)),
        source=f"an extrapolation to {whole_examples:,.0f} examples",
        notes=(measured_note, slope_note, *curve.notes),
    )


def _log_noise_deviation(curve: StepCurve) -> float:
    """Returns the standard deviation of log Bn; infinite where the interval has an open end."""
    low, high = curve.interval
    if not (low > 0 and high < math.inf and 0 < curve.noise < math.inf):
        return math.inf
    return math.log(high / low) / (2 * Z_90)
