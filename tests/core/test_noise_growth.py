"""The noise scale of a whole run, by those of short runs: a power of the examples."""

import math

import numpy as np
import pytest

from tf_lamb.find.goodput import growth
from tf_lamb.find.goodput import steps as counts

BASE, LARGE = 16, 256
EARLY, LATE, WHOLE = 4e4, 16e4, 16e5  # examples
UNKNOWN = "they do not tell how it grows from there: examples^0.5 (+- 0.25) is expected"
READINGS = [(1e4, 90.0, 0.2), (4e4, 210.0, 0.3), (9e4, 190.0, 0.15)]


def test_readings_that_lie_on_a_power_give_its_exponent():
    power = growth.fit_power_law([(d, 3 * d**0.8, 1e-4) for d in (1e4, 4e4, 9e4)])
    assert power.measured_exponent == pytest.approx(0.8)
    assert power.exponent == pytest.approx(0.8, abs=1e-5)
    assert power.noise_at(1e6) == pytest.approx(3 * 1e6**0.8, rel=1e-4)
    assert power.spread(math.exp(power.center)) == pytest.approx(0)


def test_the_expected_exponent_is_one_more_observation():
    """Least squares of NumPy, with a row of its own for the exponent."""
    power = growth.fit_power_law(READINGS)
    d, noise, sd = np.array(READINGS).T
    rows = np.stack([np.ones(3), np.log(d) - power.center], 1) / sd[:, None]
    rows = np.vstack([rows, [0, 1 / growth.EXPONENT_DEVIATION]])
    targets = [*np.log(noise) / sd, growth.EXPECTED_EXPONENT / growth.EXPONENT_DEVIATION]
    level, exponent = np.linalg.lstsq(rows, targets)[0]
    assert (power.intercept, power.exponent) == pytest.approx((level, exponent))
    variances = np.linalg.inv(rows.T @ rows)
    assert power.exponent_deviation == pytest.approx(math.sqrt(variances[1, 1]))
    assert variances[0, 1] == pytest.approx(0)  # so the spread of the exponent is apart
    alone = np.polyfit(np.log(d), np.log(noise), 1, w=1 / sd)
    assert power.measured_exponent == pytest.approx(alone[0])


def test_of_one_reading_the_expected_exponent_stands_alone():
    power = growth.fit_power_law([(LATE, 500.0, 0.3)])
    assert (power.exponent, power.exponent_deviation) == (
        growth.EXPECTED_EXPONENT,
        growth.EXPONENT_DEVIATION,
    )
    assert power.measured_exponent is None and power.measured_deviation == math.inf
    assert power.noise_at(100 * LATE) == pytest.approx(5000)
    assert power.spread(100 * LATE) == pytest.approx(growth.EXPONENT_DEVIATION * math.log(100))


def test_of_one_reading_no_rounding_tells_a_slope():
    """Its weighted mean (w x)/w is not always x."""
    rng = np.random.default_rng(0)
    for examples, deviation in np.exp(rng.uniform([5, -5], [20, 2], (2000, 2))):
        power = growth.fit_power_law([(examples, 500.0, deviation)])
        assert power.measured_exponent is None and power.exponent == growth.EXPECTED_EXPONENT


def runs_of(noise, rng=None, examples=LATE, seeds=3):
    """Pairs (batch, steps) of runs whose steps are on a hyperbola, or scatter around it."""
    level = examples / BASE / (1 + noise / BASE)
    for batch in (BASE, LARGE):
        for _ in range(seeds):
            scatter = rng.normal() * counts.SEED_DEVIATION if rng else 0.0
            yield batch, level * (1 + noise / batch) * math.exp(scatter)


def of_two(early, late, rng=None):
    curves = (
        counts.curve_from_runs(runs_of(noise, rng, examples))
        for noise, examples in ((early, EARLY), (late, LATE))
    )
    return growth.extrapolate(BASE, WHOLE, *reversed([*zip((EARLY, LATE), curves, strict=True)]))


def test_the_curve_of_the_whole_run_has_the_noise_scale_of_the_power():
    late = counts.curve_from_runs(runs_of(400.0))
    whole = of_two(200.0, 400.0)
    assert whole.steps_at(BASE) == pytest.approx(late.steps_at(BASE))
    assert whole.noise == pytest.approx(400 * 10**0.5)  # measured and expected are both 0.5
    low, high = whole.interval
    assert low < late.interval[0] * 10**0.5 and high > late.interval[1] * 10**0.5
    assert whole.source == "an extrapolation to 1,600,000 examples"
    own, slope = whole.notes
    assert own.startswith("in the short runs it is 400 (")
    assert own.endswith(") after 160,000 examples, from a fit of 6 runs at 2 batches")
    assert slope.startswith("and 200 after 40,000: examples^0.50 (+- ")
    assert slope.endswith("); examples^0.5 (+- 0.25) is expected; both together: "
                          "examples^0.50 (+- 0.18)")  # fmt: skip
    assert whole.largest_batch == late.largest_batch


def test_a_measured_slope_moves_the_exponent_by_its_weight():
    steep, flat = of_two(100.0, 400.0), of_two(400.0, 400.0)
    assert flat.noise < 400 * 10**0.5 < steep.noise
    assert flat.noise > 400 and steep.noise < 4000


def test_the_interval_holds_the_truth_in_nine_of_ten():
    """Exponents and runs are drawn: three seeds at two batches, to two losses."""
    rng = np.random.default_rng(0)
    inside, slopes, cases = 0, 0, 150
    for _ in range(cases):
        exponent = rng.normal(growth.EXPECTED_EXPONENT, growth.EXPONENT_DEVIATION)
        late = math.exp(rng.uniform(math.log(50), math.log(800)))
        whole = of_two(late * (EARLY / LATE) ** exponent, late, rng)
        low, high = whole.interval
        inside += low <= late * (WHOLE / LATE) ** exponent <= high
        slopes += any("both together" in note for note in whole.notes)
    assert inside >= 0.9 * cases and slopes > cases / 3


def grown(curve, factor=4.0, spread=0.5):
    return curve.with_grown_noise(BASE, factor, spread)


def test_the_squares_of_the_deviations_add_up():
    curve = counts.curve_from_noise(1000, BASE, 4800)
    low, high = grown(curve).interval
    off = math.exp(math.hypot(math.log(2), 0.5))
    assert (low, high) == pytest.approx((4000 / off, 4000 * off))
    assert grown(curve).noise == pytest.approx(4000)
    assert grown(curve).steps_interval(BASE) == pytest.approx(curve.steps_interval(BASE))
    assert grown(curve, spread=0.0).interval == pytest.approx((2000, 8000))


@pytest.mark.parametrize("large_steps, noise", [(9.0, math.inf), (200.0, 0.0)])
def test_a_noise_scale_without_an_end_stays(large_steps, noise):
    short = counts.curve_from_runs([(BASE, 160.0)] * 3 + [(LARGE, large_steps)] * 3)
    assert short.noise == noise
    early = EARLY, counts.curve_from_runs(runs_of(200.0))
    whole = growth.extrapolate(BASE, WHOLE, (LATE, short), early)
    assert whole.noise == noise and whole.steps_at(BASE) == pytest.approx(short.steps_at(BASE))
    assert whole.notes[1] == UNKNOWN
    factor = 10**0.5 * math.exp(math.copysign(counts.Z_90, -noise) * 0.25 * math.log(10))
    if noise:
        assert whole.interval == pytest.approx((short.interval[0] * factor, math.inf))
    else:
        assert whole.interval[0] == 0 and whole.interval[1] > short.interval[1]


def test_without_an_early_reading_the_expected_exponent_extends_the_late_one():
    short = counts.curve_from_runs(runs_of(400.0))
    whole = growth.extrapolate(BASE, WHOLE, (LATE, short))
    assert whole.noise == pytest.approx(400 * 10**0.5)
    assert whole.notes[1] == UNKNOWN


def test_a_batch_keeps_a_result_with_a_twentieth_more_examples():
    curve = counts.curve_from_noise(1000, BASE, 4800)
    batch, least, most = curve.largest_keeping_batch(BASE)
    assert batch * curve.steps_at(batch) == pytest.approx(1.05 * BASE * curve.steps_at(BASE))
    assert least < batch < most
    assert (
        counts.curve_from_runs([(16, 1600), (256, 90)]).largest_keeping_batch(BASE)[0] == math.inf
    )
