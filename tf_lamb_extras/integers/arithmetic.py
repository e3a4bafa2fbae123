"""Batch normalization and the n-bit activation after it, as integer arithmetic.

At inference the two are `y = clip(floor(k x + b), 0, 2^n - 1)` of a whole number x, the
accumulator. Integers A, B and d with the same y at every x of a range:

    T_j = the first x with k x + b >= j                    j = 1 ... 2^n - 1, for k > 0
    A T_j + B >= j 2^d   and   A (T_j - 1) + B <= j 2^d - 1    at every T_j inside the range
    y = clip((A x + B) >> d, 0, 2^n - 1)

What is claimed is that of Lin et al., arXiv:2008.13128: one scale, 2^-d, for A and B. The
construction is ours, and exact by design: once the thresholds are found, all numbers are whole.
"""

import bisect
import math
import operator
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

_INT32 = 2**31
_MOST_BITS = 16  # 65,535 thresholds a channel


class Integers(NamedTuple):
    """y = clip((a x + b) >> shift, 0, 2^bits - 1)"""

    a: int
    b: int
    shift: int


class Affine(NamedTuple):
    """k x + b"""

    k: float
    b: float


def folded(gamma, beta, mean, variance, *, epsilon, step=1.0, scale=1.0, name="channel") -> Affine:
    """The affine map of one channel: from accumulators of a step to activations of a scale.

        (gamma (step x - mean) / sqrt(variance + epsilon) + beta) / scale = k x + b

    in float64; steps and scales that are powers of two round nothing.
    """
    for what, value in (("gamma", gamma), ("beta", beta), ("moving mean", mean)):
        if not math.isfinite(value):
            raise ValueError(f"{name}: {what} is {value}; integers need a model that is finite.")
    if not 0 < variance + epsilon < math.inf:
        raise ValueError(
            f"{name}: the moving variance {variance} with epsilon {epsilon} has no square root to "
            "divide by; integers need a model that is finite."
        )
    slope = gamma / math.sqrt(variance + epsilon)
    return Affine(slope * step / scale, (beta - slope * mean) / scale)


def integers(k, b, bits: int, low: int, high: int, name="channel") -> Integers:
    """The least shift for which there are integers, and those of it: A next to k 2^d, B the least.

    They give the same y as `floor(k * x + b)`, computed as k and b compute: floats round, and the
    line that they round to never falls either, so that bisection finds the thresholds; a
    `Fraction` is exact.

    Args:
        k: Slope.
        b: Value at 0.
        bits: n, of the activation.
        low: The least x.
        high: The greatest x.
        name: What errors call it.

    Raises:
        ValueError, TypeError: for what is no range of int32 or no number, and where int32 would
            overflow, |A| max|x| + |B| >= 2^31; and for floats that are whole numbers but for their
            rounding at several x, if they round to no line: -0.02 x + 53.4 from 900 to 2,100.
    """
    bits, (low, high) = check_bits(bits), check_range(low, high, name)
    if not (math.isfinite(k) and math.isfinite(b)):
        raise ValueError(f"{name}: k = {k} and b = {b} must be finite numbers.")
    found = _found(k, b, bits, low, high)
    if found is None and _found(Fraction(k), Fraction(b), bits, low, high):
        raise ValueError(
            f"{name}: {k!r} x + {b!r} is so near to several whole numbers that floats round it up "
            "at one and down at the next, as no line does. Give k and b as fractions.Fraction, or "
            "change b in its last places."
        )
    if found is None or width(found, low, high) > 32:
        begin, end = _changing(k, b, bits, low, high)
        raise ValueError(
            f"{name}: int32 would overflow: no A x + B of 32 bits is clip(floor({float(k):.9g} x + "
            f"{float(b):.9g}), 0, {2**bits - 1}) at every x from {low:,} to {high:,}. Take fewer "
            "bits for the activation, or for the kernel that the accumulator sums; or clip x to "
            f"a narrower range, such as that from {begin:,} to {end:,} in which this one changes."
        )
    return found


def _found(k, b, bits, low, high) -> Integers | None:
    if k >= 0:
        return _rising(k, b, bits, low, high)
    mirrored = _rising(-k, b, bits, -high, -low)  # x and k with the other sign
    return mirrored and mirrored._replace(a=-mirrored.a)


def _changing(k, b, bits, low, high) -> tuple[int, int]:
    """The last x of the first level and the first x of the last: between them lie the others."""
    if k < 0:
        begin, end = _changing(-k, b, bits, -high, -low)
        return -end, -begin
    first, last, begins = _thresholds(k, b, bits, low, high)
    return begins[first + 1] - 1, begins[last]


def _thresholds(k, b, bits, low, high):
    """The levels at the ends of the range, and of each level after the first its first x."""

    def line(x):
        return k * x + b

    # A line may be far out of the levels.
    first, last = (math.floor(min(max(line(x), 0), 2**bits - 1)) for x in (low, high))
    xs = range(low, high + 1)
    levels = range(first + 1, last + 1)
    return first, last, {j: low + bisect.bisect_left(xs, j, key=line) for j in levels}


def _rising(k, b, bits, low, high) -> Integers | None:
    top = 2**bits - 1
    first, last, begins = _thresholds(k, b, bits, low, high)
    if first == last:
        return Integers(0, first, 0)
    # (x, level): at x the line is at least at `reached`, and below `missed`. At the ends of the
    # range only 0 and `top` hold by clipping.
    reached = [(low, first)] * (first > 0) + [(x, j) for j, x in begins.items()]
    missed = [(x - 1, j) for j, x in begins.items()] + [(high, last + 1)] * (last < top)
    slope = min(k, 2**bits)  # steeper than through all levels in one step never helps

    def fit(d):
        return _fit(slope, d, reached, missed)

    # What does with d does with d + 1, doubled.
    d = bisect.bisect_left(range(32), True, key=lambda d: fit(d) is not None)
    return fit(d) if d < 32 else None


def _fit(slope, d, reached, missed) -> Integers | None:
    """A next to slope 2^d and the least B with A x + B >= j 2^d where reached, < where missed.

    Between a point that is reached and one that is missed, A has a bound; each turn takes the
    bound of the two that are furthest from holding, until some B is between all, or no A is left.
    """
    one = 2**d
    least, most = -math.inf, math.inf
    a = round(slope * one)
    while True:
        from_below, x, i = max((j * one - a * x, x, j) for x, j in reached)
        from_above, z, j = min((j * one - 1 - a * x, x, j) for x, j in missed)
        if from_below <= from_above:
            return Integers(a, from_below, d)
        # a (z - x) <= (j - i) 2^d - 1 fails
        run, rise = z - x, (j - i) * one - 1
        if run > 0:
            most = rise // run
            a = most
        elif run < 0:
            least = -(rise // -run)
            a = least
        if run == 0 or least > most:
            return None


def width(channel: Integers, low: int, high: int) -> int:
    """The bits, sign included, of |A| max|x| + |B|, which no intermediate result exceeds."""
    return (abs(channel.a) * max(abs(low), abs(high)) + abs(channel.b)).bit_length() + 1


def evaluate(xp, x, a, b, shift, bits: int):
    """y, of int32 arrays; a right shift keeps the sign, so that it rounds down."""
    return xp.clip(xp.right_shift(a * x + b, shift), 0, 2**bits - 1)


def check_bits(bits) -> int:
    """The bits of an activation, or an error."""
    try:
        number = 0 if isinstance(bits, bool) else operator.index(bits)
    except TypeError as error:
        raise TypeError(f"bits must be a whole number, not {bits!r}. Try bits=4.") from error
    if not 1 <= number <= _MOST_BITS:
        raise ValueError(f"bits must be between 1 and {_MOST_BITS}, not {bits!r}. Try bits=4.")
    return number


def check_scale(name: str, scale) -> float:
    """A power of two, by which floats are multiplied without rounding, or an error."""
    number = isinstance(scale, (int, float)) and not isinstance(scale, bool)
    if not number or not 0 < scale < math.inf or math.frexp(scale)[0] != 0.5:
        raise ValueError(
            f"{name} must be a power of two, which rounds no float, not {scale!r}. Try {name}=0.25."
        )
    return float(scale)


def check_range(low, high, name: str) -> tuple[int, int]:
    """Whole numbers of int32 in order, or an error."""
    try:
        ends = operator.index(low), operator.index(high)
    except TypeError as error:
        raise TypeError(
            f"{name}: a range is two whole numbers such as (0, 255), not ({low!r}, {high!r})."
        ) from error
    if ends[0] > ends[1]:
        raise ValueError(f"{name}: the range begins at {low:,} and ends below, at {high:,}.")
    if max(map(abs, ends)) >= _INT32:
        raise ValueError(
            f"{name}: the range from {low:,} to {high:,} needs more than 31 bits. Take fewer bits "
            "for activations or kernels, or split the sum."
        )
    return ends


def check_inside(name: str, low: Sequence[int], high: Sequence[int], least, greatest) -> None:
    """The least and the greatest x of each channel are in its range, or an error."""
    for channel, (bottom, top, x, z) in enumerate(zip(low, high, least, greatest, strict=True)):
        if x < bottom or z > top:
            raise ValueError(
                f"{name}, channel {channel}: an accumulator of {x if x < bottom else z:,} is out "
                f"of the range from {bottom:,} to {top:,} that its integers were made for."
            )
