"""Contains the callbacks, one file each, and their common base class."""

from tf_lamb.api.callbacks.callback import BackupAndRestore
from tf_lamb.api.callbacks.divergence import StopOnDivergence
from tf_lamb.api.callbacks.noise import NoiseScale, StopAtBaseSteps
from tf_lamb.api.callbacks.trust_ratios import TrustRatios

__all__ = [
    "BackupAndRestore", "StopOnDivergence", "NoiseScale", "StopAtBaseSteps",
    "TrustRatios",
]  # fmt: skip
