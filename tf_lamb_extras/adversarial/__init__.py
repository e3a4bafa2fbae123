"""Trains image models on adversarial examples, in Keras 3 and in TensorFlow's Model Garden.

The method is concurrent adversarial learning (ConAdv). It computes adversarial examples with
weights that are some steps old.
"""

from typing import TYPE_CHECKING

from tf_lamb_extras import lazily

__all__ = ["ConcurrentAdversarial"]

if TYPE_CHECKING:
    from tf_lamb_extras.adversarial.model import ConcurrentAdversarial
else:
    __getattr__ = lazily(__name__, ConcurrentAdversarial="model")
