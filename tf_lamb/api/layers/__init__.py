"""Batch normalization in parts and in integers, and what puts it into a model."""

from tf_lamb.api.layers.fixed_point import QuantizedReLU
from tf_lamb.api.layers.ghost import GhostBatchNormalization
from tf_lamb.api.layers.split import SplitBatchNormalization

__all__ = ["GhostBatchNormalization", "QuantizedReLU", "SplitBatchNormalization"]
