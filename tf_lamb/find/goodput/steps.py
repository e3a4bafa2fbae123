"""Fits the number of steps to a target loss as a function of the batch size.

    S(B) = S_min (1 + Bn/B) = S_min + E_min/B        E(B) = B S(B) = E_min + S_min B

The function is the hyperbola of McCandlish et al., arXiv:1812.06162. S(B) is the number of steps to
the target loss at batch size B, and E(B) is the number of examples. S_min is the fewest steps at
any batch size, and E_min the fewest examples. Learning rates are taken to be tuned at every batch
size. The noise scale Bn = E_min/S_min is the batch size that takes twice the minimum steps and
twice the minimum examples.
"""

import collections
import dataclasses
import math
import statistics
from collections.abc import Iterable

from tf_lamb.core import checks

RANGE_FACTOR = 8  # a curve gives steps up to this many times the largest batch of its runs
# A fitted noise scale is reliable if the largest batch of the runs is at least this many times the
# smallest.
RELIABLE_RATIO = 16
# SEED_DEVIATION: the standard deviation of the logarithm of a run's steps over its seeds, as
# measured in the logs of benchmarks/study/steps_to_target.py. PRIOR_RUNS: in an estimate of that
# deviation, SEED_DEVIATION weighs as much as this many of the user's runs.
SEED_DEVIATION, PRIOR_RUNS = 0.17, 4
# 90 % of a normal distribution is within this many standard deviations of its mean.
Z_90 = 1.645
# A fit tries noise scales on a grid with this factor between neighbors. Near the best one it then
# tries a finer grid, whose factor is the 100th root of this one.
GRID_FACTOR = 1.02
# A noise scale that one run measured is taken to be right within this factor.
READING_FACTOR = 2.0
# A larger batch keeps the baseline's result if it reaches the same loss with at most this share of
# additional examples (0.05 is 5% more); see docs/updates_left.md.
EXTRA_EXAMPLES = 0.05


@dataclasses.dataclass(frozen=True)
class StepCurve:
    """Holds the steps to a target loss as a function S(B) of the batch, with its uncertainty.

    Attributes:
        least_steps: S_min; 0 if steps fall in inverse proportion to the batch, up to the largest
            batch that was run.
        least_examples: E_min; 0 if a larger batch saves no steps.
        likely_constants: Pairs (S_min, E_min) of the curves that are within the 90 % interval.
        largest_batch: The largest batch for which the curve gives steps.
        source: What the curve comes from, as a part of a sentence.
        notes: Sentences on what makes the curve uncertain. Defaults to ().
    """

    least_steps: float
    least_examples: float
    likely_constants: tuple[tuple[float, float], ...] = dataclasses.field(repr=False)
    largest_batch: float
    source: str
    notes: tuple[str, ...] = ()

    @property
    def noise(self) -> float:
        """The noise scale Bn = E_min/S_min; infinite if S_min is 0."""
        return _noise_scale(self.least_steps, self.least_examples)

    @property
    def interval(self) -> tuple[float, float]:
        """The lower and the upper end of the 90 % interval of the noise scale Bn."""
        scales = [_noise_scale(*constants) for constants in self.likely_constants]
        return min(scales), max(scales)

    def steps_at(self, batch: float) -> float:
        """Returns S, the steps to the target at a batch.

        Raises:
            ValueError: for a batch above `largest_batch`.
        """
        return self._steps_at(batch, self.least_steps, self.least_examples)

    def steps_interval(self, batch: float) -> tuple[float, float]:
        """Returns the lower and the upper end of the 90 % interval of the steps at a batch.

        Raises:
            ValueError: for a batch above `largest_batch`.
        """
        steps = [self._steps_at(batch, *constants) for constants in self.likely_constants]
        return min(steps), max(steps)

    def rescaled_to(self, batch: float, steps: float) -> "StepCurve":
        """Returns the curve scaled to a run of another length; the noise scale stays the same.

        Args:
            batch: A batch of the other run.
            steps: The steps of the other run at that batch.
        """
        factor = steps / self.steps_at(batch)
        likely = tuple((factor * s, factor * e) for s, e in self.likely_constants)
        return dataclasses.replace(
            self, least_steps=factor * self.least_steps,
            least_examples=factor * self.least_examples, likely_constants=likely,
        )  # fmt: skip

    def with_grown_noise(self, batch: float, growth: float, spread: float) -> "StepCurve":
        """Returns the curve with another noise scale, and with the same steps at one batch.

        The interval of the new noise scale is wider than the old one: on a logarithmic scale, the
        distance d of each end from the noise scale becomes sqrt(d^2 + spread^2).

        Args:
            batch: The batch at which the steps stay the same.
            growth: The new noise scale, divided by the old one.
            spread: The logarithm of the factor by which `growth` may be too large or too small,
                within 90 %.
        """
        likely = []
        for constants in self.likely_constants:
            scale = _noise_scale(*constants)
            deviation = 0.0
            if {scale, self.noise}.isdisjoint({0.0, math.inf}):
                deviation = math.log(scale / self.noise)
            new_deviation = math.hypot(deviation, spread)
            exponents = (
                [math.copysign(new_deviation, deviation)] if deviation else [-spread, spread]
            )
            center_noise = self.noise if deviation else scale
            likely += [
                _constants_through(
                    center_noise * growth * math.exp(exponent),
                    batch,
                    self._steps_at(batch, *constants),
                )
                for exponent in exponents
            ]
        least_steps, least_examples = _constants_through(
            self.noise * growth, batch, self.steps_at(batch)
        )
        return dataclasses.replace(
            self,
            least_steps=least_steps,
            least_examples=least_examples,
            likely_constants=tuple(likely),
        )

    def largest_keeping_batch(
        self, batch: float, extra_share: float = EXTRA_EXAMPLES
    ) -> tuple[float, float, float]:
        """Returns the largest batch B that needs few more examples to the target than `batch`.

            E(B) <= (1 + x) E(batch):  B = batch + x (batch + Bn),  x = extra_share

        Args:
            batch: The batch to compare with.
            extra_share: The share of additional examples that B may take. Defaults to 0.05. With
                that share a batch counts as keeping the result of another one in the study of
                docs/updates_left.md.

        Returns:
            Three values of B: for the noise scale Bn, for the lower end of its interval, and for
            the upper end.

        Example:
            >>> curve = curve_from_noise(1000, batch=32, steps=4800)
            >>> [round(b, 1) for b in curve.largest_keeping_batch(32)]
            [83.6, 58.6, 133.6]
        """
        by_noise, by_least_noise, by_largest_noise = (
            batch + extra_share * (batch + noise) for noise in (self.noise, *self.interval)
        )
        return by_noise, by_least_noise, by_largest_noise

    def _steps_at(self, batch, least_steps, least_examples):
        """Returns the steps at a batch on the curve with the given S_min and E_min.

        Raises ValueError for a batch above `largest_batch`.
        """
        if batch > self.largest_batch:
            raise ValueError(
                f"Nothing is known of batch {batch:,.0f}: {self.source} reaches to "
                f"{self.largest_batch:,.0f}. Run a larger batch first."
            )
        return least_steps + least_examples / batch


def noise_of_two_runs(first: tuple[float, float], second: tuple[float, float]) -> float:
    """Returns the noise scale from two runs to one loss, in S1 steps at batch B1 and S2 at B2 > B1.

        Bn = (rho - 1)/(1/B1 - rho/B2),  rho = S1/S2

    The result is 0 if the larger batch saves no steps. It is infinite if the steps fall by at least
    the factor by which the batch grows.

    Args:
        first: The pair (B1, S1).
        second: The pair (B2, S2).

    Example:
        >>> round(noise_of_two_runs((16, 4825), (2048, 102)))
        1175
    """
    (small, small_steps), (large, large_steps) = first, second
    rho = small_steps / large_steps
    if rho <= 1:
        return 0.0
    return math.inf if rho >= large / small else (rho - 1) / (1 / small - rho / large)


def curve_from_runs(
    runs: Iterable[tuple[float, float]], given_up_batches: Iterable[float] = ()
) -> StepCurve:
    """Fits the hyperbola S(B) to runs at two batches or more.

    With two batches the hyperbola goes through the geometric mean of the steps at each batch,
    unless no hyperbola does: then the noise scale is 0 or infinite, and only the minimum is fitted,
    by least squares of the logarithms of the steps. With more batches the noise scale is fitted so,
    too. A curve is within the 90 % interval if its sum of squares exceeds the least one by
    (1.645 sd)^2 at most. Here sd is the standard deviation of the logarithm of one run's steps. It
    is estimated from the scatter of these runs, and from a prior of 0.17 that weighs as much as
    four runs.

    Args:
        runs: Pairs (batch, steps to the target).
        given_up_batches: The batches of further runs, a batch for each run that was stopped before
            it reached the target. Only a lower bound of the steps of these runs is known. So such a
            run at the smallest batch of `runs`, or at a smaller one, leaves the interval of the
            noise scale without an upper end, and one at a larger batch leaves it without a lower
            end. Defaults to ().

    Returns:
        The fitted `StepCurve`.

    Raises:
        TypeError: if `runs` are not pairs.
        ValueError: for runs at one batch only, or for a number that is out of range.
    """
    try:
        pairs = [(batch, steps) for batch, steps in runs]
    except (TypeError, ValueError):
        raise TypeError(
            f"runs must be pairs (batch, steps), such as [(32, 4800), (512, 400)], not {runs!r}."
        ) from None
    allowed_range = f"[1, {checks.MAX_STEPS}]"
    runs = sorted(
        (
            checks.number("A batch in runs", b, allowed_range),
            checks.number("Steps in runs", s, allowed_range),
        )
        for b, s in pairs
    )
    batches = sorted({batch for batch, _ in runs})
    if len(batches) < 2:
        raise ValueError(
            f"Runs at two batches are needed, {RELIABLE_RATIO} times apart, not at {batches} alone."
        )
    smallest, largest = batches[0], batches[-1]
    grid_size = math.ceil(math.log(1e6 * largest / smallest, GRID_FACTOR))
    grid = [0.0, *(smallest / 1e3 * GRID_FACTOR**i for i in range(grid_size)), math.inf]

    def sum_of_squares_at(noise):
        return _fit_minimum(noise, runs)[0]

    noise = min(grid, key=sum_of_squares_at)
    if len(batches) == 2:
        noise = noise_of_two_runs(
            *(
                (b, statistics.geometric_mean(s for run_batch, s in runs if run_batch == b))
                for b in batches
            )
        )
    elif 0 < noise < math.inf:
        noise = min(
            (noise * GRID_FACTOR ** (i / 100) for i in range(-100, 101)), key=sum_of_squares_at
        )
    least_squares, minimum = _fit_minimum(noise, runs)
    variance = (PRIOR_RUNS * SEED_DEVIATION**2 + least_squares) / (PRIOR_RUNS + len(runs) - 2)
    likely = []
    for candidate in (noise, *grid):
        sum_of_squares, candidate_minimum = _fit_minimum(candidate, runs)
        slack = (least_squares + Z_90**2 * variance - sum_of_squares) / len(runs)
        # The minimum, S_min or E_min, of this noise scale may change until the sum of squares
        # reaches its limit.
        if slack >= 0:
            likely += [
                _constants(candidate, candidate_minimum * math.exp(sign * math.sqrt(slack)))
                for sign in (-1, 1)
            ]
    low, high = (pick(_noise_scale(*candidate) for candidate in likely) for pick in (min, max))
    notes = []
    if largest < RELIABLE_RATIO * smallest:
        notes.append(
            f"weak: the batches are {largest / smallest:.3g} times apart; a sure answer needs "
            f"{RELIABLE_RATIO}"
        )
    if noise == math.inf:
        notes.append(f"no bend seen up to {largest:,.0f}: the noise scale is {low:,.0f} at least")
    elif noise == 0:
        notes.append(f"no steps are saved beyond batch {smallest:,.0f}")
    elif high == math.inf:
        notes.append("no upper end of the noise scale: run a larger batch, or more seeds")
    for batch, run_count in sorted(collections.Counter(given_up_batches).items()):
        open_end, scale, kept_batch = (
            ("upper", math.inf, largest) if batch <= smallest else ("lower", 0.0, smallest)
        )
        least_steps, least_examples = _constants(noise, minimum)
        likely.append(
            _constants_through(scale, kept_batch, least_steps + least_examples / kept_batch)
        )
        notes.append(
            f"given up before the loss at batch {batch:,.0f}: {run_count} "
            f"run{'s' * (run_count > 1)}; the noise scale has no {open_end} end"
        )
    return StepCurve(
        *_constants(noise, minimum), tuple(likely), RANGE_FACTOR * largest,
        f"a fit of {len(runs)} runs at {len(batches)} batches", tuple(notes),
    )  # fmt: skip


def curve_from_noise(noise: float, batch: float, steps: float) -> StepCurve:
    """Returns the hyperbola S(B) through one run, with the noise scale that this run measured.

    The noise scale is taken to be right within a factor of two, and the steps of the run within the
    90 % interval over seeds. In the logs of benchmarks/study/steps_to_target.py, the steps at 32 of
    33 batches are within the interval of the resulting curve.

    Args:
        noise: The noise scale Bn, in examples: the last one that was measured in the run.
        batch: The batch of the run.
        steps: The steps of the run to the target.

    Raises:
        ValueError: for a number that is not above 0.
    """
    noise = checks.number("noise", noise, "(0, inf)")
    batch = checks.number("batch", batch, "(0, inf)")
    steps = checks.number("steps", steps, "(0, inf)")
    constants = _constants(noise, steps / (1 + noise / batch))
    likely = [
        _constants(scale, steps / (1 + scale / batch) * math.exp(sign * Z_90 * SEED_DEVIATION))
        for scale in (noise / READING_FACTOR, noise * READING_FACTOR)
        for sign in (-1, 1)
    ]
    source = "one reading of the noise scale"
    return StepCurve(*constants, tuple(likely), RANGE_FACTOR * max(batch, noise), source)


def _noise_scale(least_steps, least_examples):
    """Returns the noise scale: the fewest examples to the target, divided by the fewest steps.

    It is infinite if the fewest steps are 0.
    """
    return least_examples / least_steps if least_steps else math.inf


def _constants(noise: float, minimum: float) -> tuple[float, float]:
    """Returns the pair (S_min, E_min) of the curve, from one of the two and the noise scale.

    Args:
        noise: The noise scale Bn.
        minimum: S_min, or E_min if Bn is infinite, as `_fit_minimum` returns it.
    """
    return (0.0, minimum) if noise == math.inf else (minimum, minimum * noise)


def _constants_through(noise: float, batch: float, steps: float) -> tuple[float, float]:
    """Returns the pair (S_min, E_min) of the curve that takes the given steps at a batch.

    Args:
        noise: The noise scale Bn of the curve.
        batch: The batch.
        steps: The steps to the target at that batch.
    """
    return _constants(noise, steps * batch if noise == math.inf else steps / (1 + noise / batch))


def _fit_minimum(noise, runs):
    """Fits the curve S(B) with a given noise scale to runs.

    Args:
        noise: The noise scale Bn.
        runs: Pairs (batch, steps to the target).

    Returns:
        The sum of the squared residuals of the logarithms of the steps, and the fitted S_min. If
        the noise scale is infinite, S_min is 0 and the second value is E_min instead.
    """
    if noise == math.inf:
        logs = [math.log(s * b) for b, s in runs]
    else:
        logs = [math.log(s / (1 + noise / b)) for b, s in runs]
    mean_log = sum(logs) / len(logs)
    return sum((log - mean_log) ** 2 for log in logs), math.exp(mean_log)
