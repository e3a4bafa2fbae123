"""Door 2: the same optimizers for tf_keras, the Keras of the Model Garden."""

from tf_lamb.tf_keras.adamp import AdamP
from tf_lamb.tf_keras.lamb import LAMB
from tf_lamb.tf_keras.lars import LARS
from tf_lamb.tf_keras.migrate import from_addons, migrate
from tf_lamb.tf_keras.sgdp import SGDP

__all__ = ["LAMB", "LARS", "SGDP", "AdamP", "from_addons", "migrate"]
