"""Norms in float32: right as far as squares reach, and no NaN beyond."""

import numpy as np
import pytest

from tf_lamb.core.rules import lamb, lars
from tf_lamb.core.rules.shared import norm

RULES = pytest.mark.parametrize("rule", [lamb, lars], ids=["LAMB", "LARS"])


def one_step(rule, dtype, w, g, **arguments):
    slots = [np.zeros_like(w, dtype)] * (2 if rule is lamb else 1)
    with np.errstate(over="ignore", under="ignore"):
        return rule(np, g.astype(dtype), w.astype(dtype), *slots, lr=dtype(0.1), t=dtype(1),
                    decay=0.0, adapt=True, **arguments)[0]  # fmt: skip


@pytest.mark.parametrize(("dtype", "scale"), [("float32", 1e-19), ("float64", 1e-100)])
def test_nothing_is_added_to_the_norm_of_what_is_small(dtype, scale):
    x = np.array([3, 4], dtype) * np.array(scale, dtype)
    assert norm(np, x) == pytest.approx(5 * scale, rel=1e-6, abs=0)
    assert norm(np, 0 * x) == 0


RANGE = [(1e15, 1e-15), (1.0, 1e15), (1e-15, 1.0), (1e12, 1e-12), (1.0, 1e-12)]


@pytest.mark.parametrize(("weight", "gradient"), RANGE)
@pytest.mark.parametrize("axes", [None, (0,)], ids=["whole", "slices"])
@RULES
def test_the_ratio_is_right_as_far_as_squares_reach(rule, axes, weight, gradient):
    rng = np.random.default_rng(0)
    w, g = rng.normal(size=(2, 50, 8)) * np.array([weight, gradient])[:, None, None]
    exact, ours = (one_step(rule, dtype, w, g, axes=axes) for dtype in (np.float64, np.float32))
    np.testing.assert_allclose(ours, exact, rtol=1e-5, atol=1e-6 * weight)
    assert np.abs(exact - w).max() > 1e-5 * weight  # a ratio of 1 would leave w, or leap


@RULES
def test_where_squares_are_lost_the_ratio_is_1_and_nothing_is_nan(rule):
    stepped = one_step(rule, np.float32, np.full(2, 1.0), np.array([1e-35, 0.0]))
    np.testing.assert_allclose(stepped, 1.0, rtol=1e-6)
