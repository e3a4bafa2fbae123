"""Door 1: the optimizers of Keras 3, on TensorFlow, JAX or torch."""

from tf_lamb.keras.adamp import AdamP
from tf_lamb.keras.lamb import LAMB
from tf_lamb.keras.lars import LARS
from tf_lamb.keras.migrate import from_addons, migrate
from tf_lamb.keras.sgdp import SGDP

__all__ = ["LAMB", "LARS", "SGDP", "AdamP", "from_addons", "migrate"]
