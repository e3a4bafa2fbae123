"""Computes batch normalization and the n-bit activation after it, in integer arithmetic.

At inference the two layers compute `y = clip(floor(k x + b), 0, 2^n - 1)` from an integer x, the
accumulator. The function `integers` finds integers A, B and d that give the same y at every x of a
range:

    T_j = the first x with k x + b >= j                    j = 1 ... 2^n - 1, for k > 0
    A T_j + B >= j 2^d   and   A (T_j - 1) + B <= j 2^d - 1    at every T_j inside the range
    y = clip((A x + B) >> d, 0, 2^n - 1)

Lin et al., arXiv:2008.13128, claim that such integers exist, with the same scale 2^-d for A and B.
The construction in this module is not theirs. It is exact, because it computes with integers only,
once the thresholds T_j are found.
"""

import bisect
import math
import operator
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from tf_lamb.core.checks import to_float

_INT32 = 2**31  # the smallest integer above the range of int32
_MOST_BITS = 16  # the most bits of an activation, which then has 65,535 thresholds per channel


class Integers(NamedTuple):
    """Holds the integers of one channel: y = clip((a x + b) >> shift, 0, 2^bits - 1).

    Attributes:
        a: A, the factor of the accumulator x.
        b: B, the offset.
        shift: d, the number of bits by which a x + b is shifted to the right.
    """

    a: int
    b: int
    shift: int


class Affine(NamedTuple):
    """Holds the affine map k x + b of one channel.

    Attributes:
        k: The slope.
        b: The value at x = 0.
    """

    k: float
    b: float


def folded(gamma, beta, mean, variance, *, epsilon, step=1.0, scale=1.0, name="channel") -> Affine:
    """Returns the affine map of one channel, from the accumulator to levels of the activation.

        (gamma (step x - mean) / sqrt(variance + epsilon) + beta) / scale = k x + b

    It is computed in float64. A step or scale that is a power of two causes no rounding.

    Args:
        gamma: The scale of the batch normalization.
        beta: The offset of the batch normalization.
        mean: The moving mean of the batch normalization.
        variance: The moving variance of the batch normalization.
        epsilon: The number that the batch normalization adds to the variance.
        step: The size of one unit of the accumulator. Defaults to 1.
        scale: The size of one level of the activation. Defaults to 1.
        name: The name of the channel in errors.

    Raises:
        ValueError: If a number is not finite, or the variance with epsilon is not above 0.
    """
    for part, value in (("gamma", gamma), ("beta", beta), ("moving mean", mean)):
        if not math.isfinite(value):
            raise ValueError(f"{name}: {part} is {value}; integers need a model that is finite.")
    if not 0 < variance + epsilon < math.inf:
        raise ValueError(
            f"{name}: the moving variance {variance} with epsilon {epsilon} has no square root to "
            "divide by; integers need a model that is finite."
        )
    slope = gamma / math.sqrt(variance + epsilon)
    return Affine(slope * step / scale, (beta - slope * mean) / scale)


def integers(k, b, bits: int, low: int, high: int, name="channel") -> Integers:
    """Returns the integers A, B and d of a channel, with the least shift d for which they exist.

    At every x from `low` to `high`, the clipped (A x + B) >> d equals the clipped floor(k x + b). A
    is near k 2^d, and B is the least offset that is possible with A. If k and b are floats,
    k x + b is rounded. For k >= 0 the rounded values still never fall as x grows, so that bisection
    finds the thresholds. If k and b are `Fraction`s, k x + b is exact.

    Args:
        k: The slope, a float or a `Fraction`.
        b: The value at 0, a float or a `Fraction`.
        bits: n, the bits of the activation.
        low: The least x.
        high: The greatest x.
        name: The name of the channel in errors.

    Raises:
        TypeError: If bits, low or high is not a whole number.
        ValueError: If the range is empty or exceeds int32, if k or b is not finite, or if int32
            would overflow, because |A| max|x| + |B| >= 2^31. Also if rounding of floats makes a
            solution impossible: k x + b would be an integer at several x without rounding, and is
            rounded up at one of them and down at the next. An example is -0.02 x + 53.4 from 900 to
            2,100.
    """
    bits, (low, high) = check_bits(bits), check_range(low, high, name)
    if not (math.isfinite(k) and math.isfinite(b)):
        raise ValueError(f"{name}: k = {k} and b = {b} must be finite numbers.")
    result = _least_shift(k, b, bits, low, high)
    if result is None and _least_shift(Fraction(k), Fraction(b), bits, low, high):
        raise ValueError(
            f"{name}: {k!r} x + {b!r} is so near to several whole numbers that floats round it up "
            "at one and down at the next, as no line does. Give k and b as fractions.Fraction, or "
            "change b in its last places."
        )
    if result is None or width(result, low, high) > 32:
        begin, end = _changing_range(k, b, bits, low, high)
        raise ValueError(
            f"{name}: int32 would overflow: no A x + B of 32 bits is clip(floor({float(k):.9g} x + "
            f"{float(b):.9g}), 0, {2**bits - 1}) at every x from {low:,} to {high:,}. Take fewer "
            "bits for the activation, or for the kernel that the accumulator sums; or clip x to "
            f"a narrower range, such as that from {begin:,} to {end:,} in which this one changes."
        )
    return result


def _least_shift(k, b, bits, low, high) -> Integers | None:
    """Returns the integers (A, B, d) of a line k x + b with the least shift d; None if none exist.

    Args:
        k: The slope.
        b: The offset.
        bits: The bits of the activation.
        low: The least x.
        high: The greatest x.
    """
    if k >= 0:
        return _rising(k, b, bits, low, high)
    # (-k)(-x) equals k x, so a falling line is solved as a rising one over the mirrored range.
    mirrored = _rising(-k, b, bits, -high, -low)
    return mirrored and mirrored._replace(a=-mirrored.a)


def _changing_range(k, b, bits, low, high) -> tuple[int, int]:
    """Returns the range of x in which the output of the activation changes.

    The range begins at the last x with the first level, and ends at the first x with the last
    level. The arguments are those of `_least_shift`.
    """
    if k < 0:
        begin, end = _changing_range(-k, b, bits, -high, -low)
        return -end, -begin
    first_level, last_level, thresholds = _thresholds(k, b, bits, low, high)
    return thresholds[first_level + 1] - 1, thresholds[last_level]


def _thresholds(k, b, bits, low, high):
    """Finds the thresholds of a rising line: the x at which it reaches each level.

    A level is an integer output of the activation, from 0 to 2^bits - 1. The arguments are those of
    `_least_shift`, with k >= 0.

    Returns:
        A triple: the level at the least x, the level at the greatest x, and a dict from each level
        above the first one to the least x at which the line reaches it.
    """

    def line(x):
        return k * x + b

    # The value is clipped, because the line may be far below 0 or above the last level.
    first_level, last_level = (math.floor(min(max(line(x), 0), 2**bits - 1)) for x in (low, high))
    xs = range(low, high + 1)
    levels = range(first_level + 1, last_level + 1)
    return first_level, last_level, {j: low + bisect.bisect_left(xs, j, key=line) for j in levels}


def _rising(k, b, bits, low, high) -> Integers | None:
    """Returns the integers (A, B, d) of a rising line with the least shift d; None if none exist.

    The arguments are those of `_least_shift`, with k >= 0.
    """
    top = 2**bits - 1
    first_level, last_level, thresholds = _thresholds(k, b, bits, low, high)
    if first_level == last_level:
        return Integers(0, first_level, 0)
    # Pairs (x, level). For a pair of `reached`, the line must be at or above the level at x. For a
    # pair of `missed`, it must be below the level at x. At an end of the range, a pair is needed
    # unless the output there is 0 or `top`, which clipping ensures.
    reached = [(low, first_level)] * (first_level > 0) + [(x, j) for j, x in thresholds.items()]
    missed = [(x - 1, j) for j, x in thresholds.items()] + [(high, last_level + 1)] * (
        last_level < top
    )
    # A line of slope 2^bits passes all levels between one x and the next. No steeper one is needed.
    slope = min(k, 2**bits)

    def fit(d):
        return _fit(slope, d, reached, missed)

    # If A and B meet the conditions for a shift d, then 2 A and 2 B meet them for d + 1. Therefore
    # bisection finds the least shift.
    d = bisect.bisect_left(range(32), True, key=lambda d: fit(d) is not None)
    return fit(d) if d < 32 else None


def _fit(slope, d, reached, missed) -> Integers | None:
    """Returns integers A near slope 2^d and the least B that meet all conditions; None if none do.

    The conditions are A x + B >= j 2^d at every (x, j) in `reached`, and A x + B < j 2^d at every
    (x, j) in `missed`. Each point of `reached`, together with a point of `missed`, sets a bound on
    A. Each iteration moves A to the bound that it violates most. The loop ends when some B meets
    all conditions, or when no A is left between the bounds.

    Args:
        slope: The slope of the line.
        d: The shift.
        reached: Pairs (x, level j). At x the line must be at or above the level.
        missed: Pairs (x, level j). At x the line must be below the level.
    """
    scale = 2**d
    least_a, greatest_a = -math.inf, math.inf
    a = round(slope * scale)
    while True:
        from_below, x, i = max((j * scale - a * x, x, j) for x, j in reached)
        from_above, z, j = min((j * scale - 1 - a * x, x, j) for x, j in missed)
        if from_below <= from_above:
            return Integers(a, from_below, d)
        # The conditions at these two points require a (z - x) <= (j - i) 2^d - 1, which a violates.
        run, rise = z - x, (j - i) * scale - 1
        if run > 0:
            greatest_a = rise // run
            a = greatest_a
        elif run < 0:
            least_a = -(rise // -run)
            a = least_a
        if run == 0 or least_a > greatest_a:
            return None


def width(channel: Integers, low: int, high: int) -> int:
    """Returns the number of bits, sign included, that computing A x + B needs at most.

    It is the number of bits of |A| max|x| + |B|, a bound of all intermediate results.

    Args:
        channel: The integers of the channel.
        low: The least x.
        high: The greatest x.
    """
    return (abs(channel.a) * max(abs(low), abs(high)) + abs(channel.b)).bit_length() + 1


def evaluate(xp, x, a, b, shift, bits: int):
    """Returns clip((a x + b) >> shift, 0, 2^bits - 1); the shift keeps the sign and rounds down.

    Args:
        xp: A namespace of array functions.
        x: The accumulators, an int32 array.
        a: The factor of each channel, an int32 array that broadcasts to x.
        b: The offset of each channel, an int32 array that broadcasts to x.
        shift: The bits to shift by in each channel, an int32 array that broadcasts to x.
        bits: The bits of the activation.
    """
    return xp.clip(xp.right_shift(a * x + b, shift), 0, 2**bits - 1)


def check_bits(bits) -> int:
    """Checks the number of bits of an activation, and returns it as an int.

    Raises:
        TypeError: If the argument is not a whole number.
        ValueError: If the number is not between 1 and 16.
    """
    try:
        number = 0 if isinstance(bits, bool) else operator.index(bits)
    except TypeError as error:
        raise TypeError(f"bits must be a whole number, not {bits!r}. Try bits=4.") from error
    if not 1 <= number <= _MOST_BITS:
        raise ValueError(f"bits must be between 1 and {_MOST_BITS}, not {bits!r}. Try bits=4.")
    return number


def check_scale(name: str, scale) -> float:
    """Returns a scale as a float.

    Args:
        name: The name of the argument, for the error.
        scale: The scale.

    Raises:
        ValueError: If the scale is not a power of two. Multiplying a float by a power of two causes
            no rounding.
    """
    try:
        number = to_float(scale)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < math.inf or math.frexp(number)[0] != 0.5:
        raise ValueError(
            f"{name} must be a power of two, which rounds no float, not {scale!r}. Try {name}=0.25."
        )
    return number


def check_range(low, high, name: str) -> tuple[int, int]:
    """Checks the ends of a range of integers, and returns them as two ints.

    Args:
        low: The lowest value.
        high: The highest value.
        name: The name of the range, for the error.

    Raises:
        TypeError: If an end is not a whole number.
        ValueError: If the ends are not in order, or need more than 31 bits.
    """
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
    """Checks that the accumulators of each channel are in the range of the channel.

    Args:
        name: The name of the layer, for the error.
        low: The lowest accumulator that is allowed in each channel.
        high: The highest accumulator that is allowed in each channel.
        least: The least accumulator that occurs in each channel.
        greatest: The greatest accumulator that occurs in each channel.

    Raises:
        ValueError: If an accumulator is out of the range of its channel.
    """
    for channel, (bottom, top, x, z) in enumerate(zip(low, high, least, greatest, strict=True)):
        if x < bottom or z > top:
            raise ValueError(
                f"{name}, channel {channel}: an accumulator of {x if x < bottom else z:,} is out "
                f"of the range from {bottom:,} to {top:,} that its integers were made for."
            )
