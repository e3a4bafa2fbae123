"""Door 2: the same optimizers for tf_keras, the Keras of the Model Garden."""

from tf_lamb.tf_keras import schedules
from tf_lamb.tf_keras.family import LAMB, LARS, SGDP, AdamP
from tf_lamb.tf_keras.migrate import from_addons, migrate

__all__ = ["LAMB", "LARS", "SGDP", "AdamP", "from_addons", "migrate", "schedules"]
