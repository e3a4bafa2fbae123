"""Batch normalization over parts of a batch and its replacement in a model."""

from tf_lamb.api.layers.batch_norm import GhostBatchNormalization, SplitBatchNormalization

__all__ = ["GhostBatchNormalization", "SplitBatchNormalization"]
