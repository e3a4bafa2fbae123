"""Batch normalization in parts, in float64, and what its tests share."""

import numpy as np
from keras import ops


def ghost_oracle(x, gamma, beta, mean, variance, *, size, axis=-1, momentum, epsilon=1e-3):
    """Hoffer et al., algorithm 1, group after group, in float64."""
    x = np.moveaxis(np.asarray(x, np.float64), axis, -1)
    parts = []
    for begin in range(0, len(x), size):
        group = x[begin : begin + size].reshape(-1, x.shape[-1])
        m, v = group.mean(0), group.var(0)
        mean, variance = (momentum * a + (1 - momentum) * b for a, b in ((mean, m), (variance, v)))
        parts.append((x[begin : begin + size] - m) / np.sqrt(v + epsilon) * gamma + beta)
    return np.moveaxis(np.concatenate(parts), -1, axis), mean, variance


def evaluated(x, gamma, beta, mean, variance, axis=-1, epsilon=1e-3):
    x = np.moveaxis(np.asarray(x, np.float64), axis, -1)
    return np.moveaxis((x - mean) / np.sqrt(variance + epsilon) * gamma + beta, -1, axis)


def close(actual, expected, **tolerance):
    actual = [np.asarray(ops.convert_to_numpy(a)) for a in actual]
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, **{"rtol": 2e-6, "atol": 2e-6, **tolerance})


def weights_of(channels, seed=3):
    random = np.random.default_rng(seed)
    return [random.uniform(0.5, 2, channels).astype("float32") for _ in range(4)]
