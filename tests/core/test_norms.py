"""Norms that float32 squares would lose."""

import numpy as np
import pytest

from tf_lamb.core.rules import lamb, lars


def one_step(rule, dtype, w, g, **arguments):
    slots = [np.zeros_like(w, dtype)] * (2 if rule is lamb else 1)
    with np.errstate(over="ignore", under="ignore"):
        return rule(np, g.astype(dtype), w.astype(dtype), *slots, lr=dtype(0.1), t=1, decay=0.0,
                    adapt=True, **arguments)[0]  # fmt: skip


RANGE = [(1e25, 1.0), (1.0, 1e-30), (1e-25, 1.0), (1e12, 1e-12), (1.0, 1e15), (1.0, 1e-19)]


@pytest.mark.parametrize(("weight", "gradient"), RANGE)
@pytest.mark.parametrize("axes", [None, (0,)], ids=["whole", "slices"])
@pytest.mark.parametrize("rule", [lamb, lars], ids=["LAMB", "LARS"])
def test_the_ratio_is_right_where_squares_are_lost(rule, axes, weight, gradient):
    rng = np.random.default_rng(0)
    w, g = rng.normal(size=(2, 50, 8)) * np.array([weight, gradient])[:, None, None]
    exact, ours = (one_step(rule, dtype, w, g, axes=axes) for dtype in (np.float64, np.float32))
    np.testing.assert_allclose(ours, exact, rtol=1e-5, atol=1e-6 * weight)
    assert np.abs(exact - w).max() > 1e-5 * weight  # a ratio of 1 would leave w, or leap


def test_a_ratio_beyond_float32_leaves_no_nan():
    """Times a learning rate it would be infinite, and infinity times an element of 0 is none."""
    w, g = np.full(2, 1e13), np.array([1e-28, 0.0])
    with np.errstate(under="ignore"):
        stepped = lars(np, *np.float32([g, w, [0, 0]]), lr=np.float32(10), t=1, decay=0.0,
                       adapt=True, momentum=0.0, trust_coefficient=1.0)[0]  # fmt: skip
    assert np.isfinite(stepped).all() and stepped[0] != w[0] and stepped[1] == np.float32(w[1])
