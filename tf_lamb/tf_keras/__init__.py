"""Door 2: the same optimizers for tf_keras, the Keras of the Model Garden."""

from tf_lamb.tf_keras.lamb import LAMB

__all__ = ["LAMB"]
