"""Door 1: the optimizers of Keras 3, on TensorFlow, JAX or torch."""

from tf_lamb.keras import schedules
from tf_lamb.keras.family import LAMB, LARS, SGDP, AdamP
from tf_lamb.keras.migrate import from_addons, migrate

__all__ = ["LAMB", "LARS", "SGDP", "AdamP", "from_addons", "migrate", "schedules"]
