"""One face an optimizer: signature, words, rule, slots and settings; each door adds its host.

    class LAMB(faces.LAMB, LayerwiseOptimizer): ...

The constructor of a face hands its arguments on to the door's base class.
"""

from tf_lamb.core.faces.adamp import AdamP
from tf_lamb.core.faces.adascale import AdaScale
from tf_lamb.core.faces.autowarmup import AutoWarmup
from tf_lamb.core.faces.callbacks import NoiseScale, StopAtScaleInvariantStep
from tf_lamb.core.faces.divergence import DivergenceReport
from tf_lamb.core.faces.lamb import LAMB
from tf_lamb.core.faces.lars import LARS
from tf_lamb.core.faces.measured import Measured
from tf_lamb.core.faces.normalization import GhostBatchNormalization
from tf_lamb.core.faces.sgdp import SGDP
from tf_lamb.core.faces.split import SplitBatchNormalization

__all__ = [
    "LAMB", "LARS", "SGDP", "AdaScale", "AdamP", "AutoWarmup", "DivergenceReport",
    "GhostBatchNormalization", "Measured", "NoiseScale", "SplitBatchNormalization",
    "StopAtScaleInvariantStep",
]  # fmt: skip
