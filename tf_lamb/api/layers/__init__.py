"""Batch normalization in parts and in integers, and what puts it into a model."""

from tf_lamb.api.layers.batch_norm import GhostBatchNormalization, SplitBatchNormalization
from tf_lamb.api.layers.fixed_point import QuantizedReLU

__all__ = ["GhostBatchNormalization", "QuantizedReLU", "SplitBatchNormalization"]
