"""Spikes: the judgement of MaxText and OLMo, in NumPy."""

import numpy as np
import pytest
from oracle import Spikes

from tf_lamb.core import checks
from tf_lamb.core.spikes import detect_spike, global_norm


def judged(norms, window, deviations):
    """By norm, whether it is a spike."""
    kept, found = np.zeros(window), []
    for norm in norms:
        spike, kept = detect_spike(np, kept, np.float64(norm), deviations=deviations)
        found.append(bool(spike))
    return found


def walk(steps, seed):
    """Norms of a training: they fall and wander, and a twentieth of them leaps."""
    rng = np.random.default_rng(seed)
    norms = np.exp(np.cumsum(0.02 * rng.normal(size=steps)) + 0.3 * rng.normal(size=steps))
    return norms * np.where(rng.random(steps) < 0.05, 10.0 ** rng.uniform(0, 3, steps), 1.0)


@pytest.mark.parametrize("window", [2, 3, 4, 5, 16, 128])
@pytest.mark.parametrize("deviations", [0.5, 2.0, 6.0])
def test_it_is_maxtexts(window, deviations):
    reference, norms = Spikes(window, deviations), walk(600, window)
    expected = [reference.is_spike(norm) for norm in norms]
    expected[1] = False  # unlike MaxText's, where the window is 5 or less
    assert judged(norms, window, deviations) == expected
    assert 0 < sum(expected) < 400


def test_by_hand():
    """Of 4 and 2 deviations: at the third norm 1 and 2 are known, 3/2 + 2 sqrt(1/2) = 2.914."""
    assert judged([1, 2, 2.91], 4, 2.0) == [False, False, False]
    assert judged([1, 2, 2.92], 4, 2.0) == [False, False, True]
    assert judged([1, 1, 1, 9, 9, 9, 9, 9, 9], 4, 1.0)[3:6] == [True, True, False]  # a new level


@pytest.mark.parametrize("window", range(2, 9))
def test_two_norms_are_known_before_one_is_judged(window):
    assert judged([1.0, 1.01], window, 6.0) == [False, False]
    assert any(judged([1.0, 1.01, 1.005, 1.0, 50.0], window, 6.0))


def test_a_slow_rise_is_none_and_a_leap_is():
    noise = 1 + 0.05 * np.random.default_rng(0).normal(size=1000)
    rise = np.linspace(1, 50, 1000) * noise
    assert not any(judged(rise, 128, 6.0))
    rise[700] *= 10
    assert [i for i, spike in enumerate(judged(rise, 128, 6.0)) if spike] == [700]


@pytest.mark.parametrize("norm", [np.nan, np.inf])
def test_what_is_not_finite_does_not_enter(norm):
    window = np.array([0.0, 1.0, 2.0, 3.0])
    spike, kept = detect_spike(np, window, np.float64(norm), deviations=1.0)
    np.testing.assert_array_equal(kept, window)
    assert spike == np.isinf(norm)


def test_the_norm_is_of_all_gradients_in_float32():
    class Namespace:
        square, sum, sqrt, stack = np.square, np.sum, np.sqrt, np.stack

        @staticmethod
        def cast(x, dtype):
            return x.astype(dtype)

    gradients = [np.full((2, 2), 1.5, "float16"), np.full(3, 200.0, "float16")]
    assert global_norm(Namespace, gradients) == pytest.approx(np.sqrt(4 * 1.5**2 + 3 * 200.0**2))


def test_what_is_asked_for():
    assert checks.spikes("on_spike", None) is None
    assert checks.spikes("on_spike", "skip") == (128, 6.0)
    assert checks.spikes("on_spike", [2, 3]) == (2, 3.0)
