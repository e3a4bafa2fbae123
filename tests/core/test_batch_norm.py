"""Ghost batch normalization in NumPy, and running averages that training is too short for."""

import numpy as np
import pytest

from tf_lamb.api.callbacks.callback import lagging_averages_warning
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
        normalization.running_average(np, old, statistics, momentum),
        expected,
        rtol=1e-11,
        atol=1e-30,
    )


def test_the_sentence_has_its_numbers():
    why = normalization.why_averages_lag(0.99, 60)
    assert "after step 60, running averages of momentum 0.99 keep 55% of what they" in why
    assert "momentum=0.9 or less" in why


def test_the_sentence_has_a_momentum_that_would_do():
    lagging = []
    for steps in range(1, 400):
        why = normalization.why_averages_lag(0.999, steps)
        better = float(why.partition("momentum=")[2].split()[0])
        if steps >= 6 and normalization.why_averages_lag(better, steps) is not None:
            lagging.append((steps, better))
    assert lagging == []


class BatchNormalization:
    def __init__(self, name, momentum, mean=0.0, trainable=True, **more):
        self.name, self.momentum, self.trainable = name, momentum, trainable
        self.moving_mean = type("Variable", (), {"numpy": lambda self: np.full(3, mean)})()
        self.__dict__.update(more)


def test_layers_that_are_trained_already_frozen_or_in_groups_are_left_out():
    made = BatchNormalization
    layers = [
        made("new", 0.99), made("quick", 0.5), made("loaded", 0.99, mean=1.0),
        made("frozen", 0.99, trainable=False), made("groups", 0.99, group_size=8), object(),
    ]  # fmt: skip
    model = type("Model", (), {"_flatten_layers": lambda self: layers})()
    assert lagging_averages_warning(model, 60).startswith("'new': after step 60")
    assert lagging_averages_warning(model, 600) is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_a_batch_that_is_not_finite_leaves_the_averages(bad):
    x = np.ones((4, 3), "float32")
    x[1, 2] = bad
    weights = normalization.Weights(None, None, np.full(3, 0.5, "float32"), np.ones(3, "float32"))
    with np.errstate(all="ignore"):
        y, mean, variance = normalization.train(
            np, x, weights, axis=-1, momentum=0.9, epsilon=1e-3, group_size=2
        )
    np.testing.assert_array_equal(mean, weights.mean)
    np.testing.assert_array_equal(variance, weights.variance)
    assert y.shape == x.shape
