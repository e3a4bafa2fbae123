"""Door 1: the optimizers of Keras 3, on TensorFlow, JAX or torch."""

from tf_lamb.keras import schedules
from tf_lamb.keras.backup import BackupAndRestore
from tf_lamb.keras.callbacks import (
    AutoWarmup,
    DivergenceReport,
    NoiseScale,
    StopAtScaleInvariantStep,
)
from tf_lamb.keras.decentralized import Decentralized as Decentralized
from tf_lamb.keras.family import LAMB, LARS, SGDP, AdamP, AdaScale, Measured
from tf_lamb.keras.migrate import from_addons, migrate
from tf_lamb.keras.preflighting import preflight as preflight
from tf_lamb.keras.trust_ratios import TrustRatios

# What both doors have; `Decentralized` and `preflight` are of this one alone.
__all__ = [
    "LAMB", "LARS", "SGDP", "AdaScale", "AdamP", "AutoWarmup", "BackupAndRestore",
    "DivergenceReport", "Measured", "NoiseScale", "StopAtScaleInvariantStep", "TrustRatios",
    "from_addons", "migrate", "schedules",
]  # fmt: skip
