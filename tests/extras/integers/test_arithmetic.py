"""Batch normalization in integers: worked lines, random ones at every x, and what is refused."""

import fractions

import numpy as np
import pytest
from oracle import line_levels, shifted_lines

from tf_lamb_extras.integers import arithmetic
from tf_lamb_extras.integers.arithmetic import Integers, integers

pytestmark = pytest.mark.once

WORKED = [
    ((0.37, 1.9, 2), Integers(3, 15, 3)),
    ((0.0731, 0.5, 2), Integers(9, 69, 7)),
    ((0.37, 1.9, 4), Integers(95, 483, 8)),
    ((0.0731, 3.3, 4), Integers(75, 3372, 10)),
    ((1.6, 0.25, 3), Integers(7, -1, 2)),
]


@pytest.mark.parametrize(("line", "expected"), WORKED, ids=str)
def test_the_worked_lines(line, expected):
    assert integers(*line, -64, 64) == expected


def drawn(count, seed, widest=3.5):
    """k, b, bits, low, high: lines that reach the levels somewhere near the range, or miss them."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        bits = int(random.integers(1, 9))
        low = int(random.integers(-5000, 4000))
        high = low + int(10 ** random.uniform(0, widest))
        k = float(random.choice([-1, 1]) * 10 ** random.uniform(-4, 3))
        b = float(random.uniform(-1, 2) * 2**bits - k * random.uniform(low, high))
        yield k, b, bits, low, high


def check_at_every_x(k, b, bits, low, high):
    found = integers(k, b, bits, low, high)
    assert abs(found.a) * max(abs(low), abs(high)) + abs(found.b) < 2**31
    x = np.arange(low, high + 1, dtype=np.int32)
    a, c, shift = (np.int32(number) for number in found)
    got = arithmetic.evaluate(np, x, a, c, shift, bits)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, line_levels(x, k, b, bits), str((k, b, bits, low, high)))


def test_random_lines_at_every_x():
    for case in drawn(600, seed=1):
        check_at_every_x(*case)


def test_lines_through_whole_numbers():
    """Decimal ones: as floats have them, if their rounding is a line's; as fractions, always."""
    refusals = 0
    for k, b, bits, low, high in drawn(100, seed=2):
        k, b = round(k, 2), round(b, 1)
        try:
            check_at_every_x(k, b, bits, low, high)
        except ValueError as error:
            assert "as no line does" in str(error)
            refusals += 1
        k, b = fractions.Fraction(k), fractions.Fraction(b)
        a, c, shift = integers(k, b, bits, low, high)
        for x in range(low, high + 1):
            level = max(min((k.numerator * b.denominator * x + b.numerator * k.denominator)
                            // (k.denominator * b.denominator), 2**bits - 1), 0)  # fmt: skip
            assert max(min((a * x + c) >> shift, 2**bits - 1), 0) == level
    assert refusals < 2


def test_the_shift_is_the_least_a_the_nearest_and_b_the_least():
    """By brute force: every slope, at every x."""
    shifts, random = set(), np.random.default_rng(3)
    for _, b, bits, low, high in drawn(60, seed=1, widest=1.5):
        k, bits = float(random.normal()), min(bits, 3)
        x = np.arange(low, high + 1)
        b = (2**bits) / 2 - k * (low + high) / 2 + b % 1
        levels = line_levels(x, k, b, bits)
        found = integers(k, b, bits, low, high)
        if levels[0] == levels[-1]:
            assert found == Integers(0, levels[0], 0)
            continue
        steep = 2 ** (bits + found.shift + 1)
        lines = shifted_lines(x, levels, bits, found.shift, range(-steep, steep + 1))
        assert found.b == lines[found.a][0]
        nearest = min(abs(a - k * 2**found.shift) for a in lines)
        assert abs(found.a - k * 2**found.shift) == nearest
        if found.shift:
            half = range(-steep // 2, steep // 2 + 1)
            assert not shifted_lines(x, levels, bits, found.shift - 1, half)
        shifts.add(found.shift)
    assert len(shifts) > 4


@pytest.mark.parametrize(
    ("k", "b", "expected"),
    [
        (0.0, 2.5, Integers(0, 2, 0)), (0.0, -3.0, Integers(0, 0, 0)),
        (0.0, 99.0, Integers(0, 7, 0)), (1e-3, 4.5, Integers(0, 4, 0)),
        (1e300, 0.5, Integers(8, -1, 0)), (-1e300, 0.5, Integers(-8, -1, 0)),
        (5e-324, 0.0, Integers(0, 0, 0)), (-0.0, 1e300, Integers(0, 7, 0)),
    ],
)  # fmt: skip
def test_lines_that_are_flat_or_a_step(k, b, expected):
    """A slope beyond all levels is none that int32 must hold."""
    assert integers(k, b, 3, -64, 64) == expected
    check_at_every_x(k, b, 3, -64, 64)


def test_one_x_and_the_ends_of_int32():
    assert integers(0.3, 1.0, 4, 7, 7) == Integers(0, 3, 0)
    top = 2**31 - 1
    assert integers(1e-12, 0.5, 4, -top, top) == Integers(0, 0, 0)
    # The bound, to the bit: 2^31 - 1 is within it, and 2^31 is not.
    assert arithmetic.width(Integers(1, 0, 0), -top, 0) == 32
    assert arithmetic.width(Integers(-1, -1, 0), 0, top) == 33


def test_the_line_that_a_layer_is():
    # (2 (x/2 - 3)/4 + 1) * 4
    line = arithmetic.folded(2.0, 1.0, 3.0, 15.75, epsilon=0.25, step=0.5, scale=0.25)
    assert line == (1.0, -2.0)


def refused(error, text, function, *arguments, **named):
    with pytest.raises(error) as raised:
        function(*arguments, **named)
    assert text in str(raised.value), raised.value


@pytest.mark.parametrize(
    ("error", "text", "arguments"),
    [
        (TypeError, "bits must be a whole number, not '4'", (1.0, 0.0, "4", 0, 9)),
        (ValueError, "bits must be between 1 and 16, not 17", (1.0, 0.0, 17, 0, 9)),
        (ValueError, "begins at 9 and ends below, at 0", (1.0, 0.0, 4, 9, 0)),
        (TypeError, "two whole numbers such as (0, 255), not (0.5, 9)", (1.0, 0.0, 4, 0.5, 9)),
        (ValueError, "needs more than 31 bits", (1.0, 0.0, 4, -(2**31), 0)),
        (ValueError, "k = 1.0 and b = inf must be finite", (1.0, float("inf"), 4, 0, 9)),
        (ValueError, "int32 would overflow", (1.23e-5, 3.3, 8, -(10**8), 10**8)),
        (ValueError, "as no line does. Give k and b as fractions.Fraction",
         (-0.02, 53.4, 7, 902, 2105)),
    ],
)  # fmt: skip
def test_what_is_refused(error, text, arguments):
    refused(error, text, integers, *arguments)


@pytest.mark.parametrize("k", [0.0386, -0.0386])
def test_an_overflow_names_the_range_that_would_do(k):
    low, high = -(10**6), 2 * 10**6
    text = "such as that from -3,368 to 3,213" if k > 0 else "such as that from -3,213 to 3,368"
    refused(ValueError, text, integers, k, 131.0, 8, low, high)
    begin, end = (-3368, 3213) if k > 0 else (-3213, 3368)
    x = np.arange(begin - 1, end + 2)
    levels = line_levels(x, k, 131.0, 8)
    assert {*levels[:2], *levels[-2:]} == {0, 255}  # and no narrower one
    assert levels[2] != levels[1] and levels[-3] != levels[-2]
    check_at_every_x(k, 131.0, 8, begin, end)


@pytest.mark.parametrize("scale", [0.3, 0, float("inf"), "1", True])
def test_a_scale_rounds_nothing(scale):
    refused(ValueError, f"power of two, which rounds no float, not {scale!r}",
            arithmetic.check_scale, "scale", scale)  # fmt: skip


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int64, fractions.Fraction])
def test_a_scale_may_be_any_kind_of_number(kind):
    assert arithmetic.check_scale("scale", kind(2)) == 2.0
