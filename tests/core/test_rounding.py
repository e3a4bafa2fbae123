"""Stochastic rounding to bfloat16, for every float32, and the noise that it draws."""

import types

import ml_dtypes
import numpy as np
import pytest

from tf_lamb.core import rounding

NUMPY = types.SimpleNamespace(**vars(np), cast=lambda x, dtype: np.asarray(x).astype(dtype))
NOISE = np.arange(2**16, dtype="int32")  # all that there is
LARGEST = float(ml_dtypes.finfo("bfloat16").max)


def bitcast(array, dtype):
    return np.asarray(array).view(dtype)


def rounded(x, noise=NOISE):
    """What x becomes by each noise, in float64, which holds a sum of all of them."""
    x = np.broadcast_to(np.asarray(x, "float32"), np.broadcast_shapes(np.shape(x), noise.shape))
    result = rounding.round_stochastically(NUMPY, np.ascontiguousarray(x), noise, bitcast)
    assert result.dtype == "bfloat16"
    return result.astype("float64")


def test_the_mean_over_the_noise_is_the_number_itself():
    """Exactly: for a number of each exponent, denormal and normal, of both signs."""
    random = np.random.default_rng(0)
    bits = np.arange(255) << 23 | random.integers(2**23, size=255)
    signs = np.where(random.integers(2, size=255), -1, 1).astype("float32")
    for x in signs * bits.astype("uint32").view("float32"):
        results = rounded(x)
        assert np.mean(results) == x
        neighbours = np.unique(results)
        assert len(neighbours) <= 2
        assert np.ptp(neighbours) <= max(abs(x) * 2.0**-7, 2.0**-133)


@pytest.mark.parametrize(
    "bits",
    [0x00000000, 0x80000000, 0x00010000, 0x80010000, 0x3F800000, 0x7F7F0000, 0xFF7F0000,
     0x7F800000, 0xFF800000],
    ids=["0", "-0", "smallest", "-smallest", "1", "largest", "-largest", "inf", "-inf"],
)  # fmt: skip
def test_what_bfloat16_holds_stays_as_it_is(bits):
    x = np.uint32(bits).view("float32")
    results = rounded(x)
    np.testing.assert_array_equal(results, x)
    np.testing.assert_array_equal(np.signbit(results), np.signbit(x))


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF])
def test_nan_stays_nan(bits):
    with np.errstate(invalid="ignore"):
        assert np.isnan(rounded(np.uint32(bits).view("float32"))).all()


@pytest.mark.parametrize("sign", [1, -1])
def test_what_is_finite_stays_finite(sign):
    x = sign * np.finfo("float32").max
    np.testing.assert_array_equal(rounded(x), sign * LARGEST)


def drawn(shape=(1000,), t=1, number=0, slot=0):
    return rounding.rounding_noise(NUMPY, shape, np.int32(t), number, slot)


def test_noise_is_uniform():
    seen = np.stack([drawn(t=t) for t in range(1, 1001)])
    assert seen.dtype == "int32"
    assert seen.min() >= 0
    assert seen.max() < 2**16
    for part in (seen >> 8, seen & 0xFF):  # chi squared of 255 degrees of freedom
        counts = np.bincount(part.ravel(), minlength=256)
        expected = seen.size / 256
        assert np.sum((counts - expected) ** 2) / expected < 350
    # And so it is for each element over the steps, whose standard error is 0.009.
    np.testing.assert_allclose(seen.mean(axis=0) / 2**16, 0.5, atol=0.045)


@pytest.mark.parametrize(
    "other",
    [{"t": 2}, {"t": 2**24}, {"number": 1}, {"number": 300}, {"slot": 1}, {"slot": 2}, {"slot": 3}],
    ids=str,
)
def test_noise_is_another_for_each_step_layer_and_slot(other):
    one, another = drawn((100, 1000)).ravel(), drawn((100, 1000), **other).ravel()
    assert abs(np.corrcoef(one, another)[0, 1]) < 5 / np.sqrt(one.size)
    assert abs(np.corrcoef(one[1:], another[:-1])[0, 1]) < 5 / np.sqrt(one.size)


def test_noise_of_a_shape_is_that_of_as_many_elements():
    np.testing.assert_array_equal(drawn((100, 1000)).ravel(), drawn((100_000,)))


@pytest.mark.parametrize("axis", [0, 1])
def test_noise_is_another_for_each_element(axis):
    along = np.moveaxis(drawn((100, 1000)), axis, 0)
    a, b = along[1:].ravel(), along[:-1].ravel()
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(a.size)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 4), (2, 0, 4), (1, 1, 5, 2)])
def test_noise_has_the_shape_of_its_slot(shape):
    assert drawn(shape).shape == shape
    assert len(np.unique(drawn(shape))) == np.prod(shape, dtype=int)
