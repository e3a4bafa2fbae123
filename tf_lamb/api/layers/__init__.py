"""Batch normalization over parts of a batch and in integers, and its replacement in a model."""

from tf_lamb.api.layers.batch_norm import GhostBatchNormalization, SplitBatchNormalization
from tf_lamb.api.layers.fixed_point import QuantizedReLU

__all__ = ["GhostBatchNormalization", "QuantizedReLU", "SplitBatchNormalization"]
