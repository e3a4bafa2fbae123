"""Door 1: the optimizers of Keras 3, on TensorFlow, JAX or torch."""

from tf_lamb.keras.lamb import LAMB

__all__ = ["LAMB"]
