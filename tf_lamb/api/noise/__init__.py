"""Contains the wrappers of an optimizer that measure the noise of its gradients."""

from tf_lamb.api.noise.adascale import AdaScale
from tf_lamb.api.noise.measured import MeasureNoise

__all__ = ["AdaScale", "MeasureNoise"]
