"""Ghost batch normalization in NumPy: its worked numbers and its closed form."""

import numpy as np
import pytest

from tf_lamb.core import batch_norm as normalization

X = np.array([[1.0], [3.0], [-2.0], [6.0]])
GHOST = [-0.9995003747, 0.9995003747, -0.9999687515, 0.9999687515]
FULL = [-0.3429769958, 0.3429769958, -1.371907983, 1.371907983]
FRESH = normalization.Weights(None, None, np.zeros(1), np.ones(1))


@pytest.mark.parametrize(("size", "expected"), [(2, GHOST), (None, FULL)])
def test_the_worked_numbers(size, expected):
    y, mean, variance = normalization.train(
        np, X, FRESH, axis=-1, momentum=0.9, epsilon=1e-3, group_size=size
    )
    np.testing.assert_allclose(y.ravel(), expected, rtol=1e-9)
    if size:
        np.testing.assert_allclose([mean[0], variance[0]], [0.38, 2.5], rtol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("groups", [0, 1, 3, 512])
def test_the_closed_form_is_the_loop(momentum, groups):
    random = np.random.default_rng(1)
    old, statistics = random.normal(size=4), random.normal(size=(groups, 4))
    expected = old
    for statistic in statistics:
        expected = momentum * expected + (1 - momentum) * statistic
    np.testing.assert_allclose(
        normalization.averaged(np, old, statistics, momentum), expected, rtol=1e-11, atol=1e-30
    )
