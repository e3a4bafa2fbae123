"""Optimizers that stand around another, and measure the noise of its gradients."""

from tf_lamb.api.noise.adascale import AdaScale
from tf_lamb.api.noise.measured import Measured

__all__ = ["AdaScale", "Measured"]
