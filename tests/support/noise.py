"""AdaScale and the noise scale in float64 NumPy, written from the papers; imports nothing of ours.

What the frontends make of the same gradients is compared with it.
"""

import math

import numpy as np
import pytest


class AdaScale:
    """Algorithm 2 of Johnson et al."""

    def __init__(self, scale, power=1.0):
        self.scale, self.power = scale, power
        self.samples, self.r, self.tau = [], 1.0, 0.0

    def observe(self, parts):
        """Keeps clipped estimates of sigma^2 and mu^2."""
        parts = [flat(p) for p in parts]
        n, mean = len(parts), sum(parts) / len(parts)
        spread = sum(p @ p for p in parts) - n * (mean @ mean)
        variance = spread / (n - 1) * self.scale / n
        signal = mean @ mean - variance / self.scale
        self.samples.append((max(variance, 1e-6), max(signal, 0.0)))

    def averages(self):
        theta = max(1 - self.scale / 1000, 0.0)
        full = math.floor(1 / (1 - theta))
        x = np.mean(self.samples[:full], axis=0)
        for sample in self.samples[full:]:
            x = theta * x + (1 - theta) * np.array(sample)
        return x

    def step(self, parts, measured=True):
        """The learning rate over that of the base batch."""
        if measured:
            self.observe(parts)
        if len(self.samples) > 1:
            variance, signal = self.averages()
            self.r = (variance + signal) / (variance / self.scale + signal)
        self.tau += self.r
        return self.r**self.power


def flat(part):
    return np.concatenate([np.ravel(part[k]).astype(np.float64) for k in sorted(part)])


def noise_scale(steps, batch, theta=0.99):
    """McCandlish et al.: B_simple, both estimates averaged with their signs, then divided."""
    both = []
    for parts in steps:
        parts = [flat(p) for p in parts]
        n, small = len(parts), batch / len(parts)
        local = sum(p @ p for p in parts) / n
        mean = sum(parts) / n
        signal = (batch * (mean @ mean) - small * local) / (batch - small)
        both.append(((local - mean @ mean) / (1 / small - 1 / batch), signal))
    ages = np.arange(len(both))[::-1]
    variance, signal = np.average(both, axis=0, weights=theta**ages)
    return variance / signal


def assert_noise(seen, steps):
    """What was measured at a batch of 32 is NumPy's."""
    assert seen == pytest.approx(noise_scale(steps, 32, 0.9), rel=1e-5) and seen > 0
