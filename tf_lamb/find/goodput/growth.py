"""Extrapolates the gradient noise scale of short runs to a long run, by a power law.

    Bn(D) = c D^a

Bn is the noise scale, for runs to a certain target loss. D is the number of examples with which the
baseline, the run that the user has tuned, reaches this loss.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import NamedTuple

from tf_lamb.find.goodput.steps import Z_90, StepCurve

# The prior of the exponent a: its mean and its standard deviation. The study in
# docs/updates_left.md predicts 0.4 to 0.6 for the critical batch, which is proportional to the
# noise scale. When the study has a result, it will replace this prior. Until then the prior is
# wider than the prediction. Two deviations on either side include a = 0, where the noise scale does
# not grow, and a = 1, where the same number of updates is enough for a run of any length.
EXPECTED_EXPONENT, EXPONENT_DEVIATION = 0.5, 0.25


class PowerLaw(NamedTuple):
    """Holds the noise scale Bn as a power of the examples D of a run, as it was fitted to readings.

        log Bn(D) = intercept + exponent (log D - center)

    Attributes:
        center: The weighted mean of log D over the readings of the noise scale.
        intercept: log Bn at the center.
        exponent: a, computed from the readings and from its prior, 0.5.
        exponent_deviation: The standard deviation of `exponent`.
        measured_exponent: The exponent from the readings alone; None if all readings are at one D.
        measured_deviation: The standard deviation of `measured_exponent`; infinite if
            `measured_exponent` is None.
    """

    center: float
    intercept: float
    exponent: float
    exponent_deviation: float
    measured_exponent: float | None
    measured_deviation: float

    def noise_at(self, examples: float) -> float:
        """Returns the noise scale of a run of this many examples."""
        return math.exp(self.intercept + self.exponent * (math.log(examples) - self.center))

    def spread(self, examples: float) -> float:
        """Returns the standard deviation of log Bn that comes from the exponent alone.

        Args:
            examples: D, the examples of a run.
        """
        return self.exponent_deviation * abs(math.log(examples) - self.center)


def fit_power_law(readings: Iterable[tuple[float, float, float]]) -> PowerLaw:
    """Fits a power law to readings of the noise scale, by weighted least squares.

    The weight of a reading is w = 1/sd^2, where sd is the standard deviation of its log Bn. The
    slope m of the least squares has the variance v = 1/sum(w (log D - center)^2). The exponent is
    the mean of m and of the prior 0.5, each weighted by one over its variance:

        exponent = (m/v + 0.5/0.25^2) / (1/v + 1/0.25^2)

    Args:
        readings: Triples (D, Bn, sd), one at least: examples, noise scale, standard deviation.

    Returns:
        The `PowerLaw`.

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
    # If all readings are at one D, no slope can be measured. `information` may then still be above
    # 0, because of rounding in the mean, so the values of D are compared.
    if len({x for x, *_ in points}) > 1:
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
    """Extrapolates the steps to a loss, which short runs measured, to the whole run.

    The noise scale follows the power law that `fit_power_law` fits to its readings at two losses.
    Both readings come from the same runs, so their errors are not independent: together they are
    taken to be as uncertain as the later reading alone. The 90 % interval of the result combines
    the deviations of the later noise scale and of the exponent, by the sum of their squares.

    Args:
        batch: The batch of the baseline. At this batch the curve has the same steps as before.
        whole_examples: D, the examples of the whole run.
        late_reading: The examples with which the baseline reaches the target of the short runs, and
            the curve of the steps to that target.
        early_reading: The same pair for a loss that is reached earlier. Defaults to None: not
            known.

    Returns:
        The curve with the noise scale of the whole run. Its steps at `batch` are still those of the
        short runs.
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
    else:  # the later noise scale is unknown, so that no slope can be measured
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
    """Returns the standard deviation of log Bn, from the 90 % interval of Bn.

    The result is infinite if Bn, or an end of the interval, is 0 or infinite.
    """
    low, high = curve.interval
    if not (low > 0 and high < math.inf and 0 < curve.noise < math.inf):
        return math.inf
    return math.log(high / low) / (2 * Z_90)
