"""Trains on adversarial examples for older weights (ConAdv), in Keras 3 and in Model Garden."""

from typing import TYPE_CHECKING

from tf_lamb_extras import lazily

__all__ = ["ConcurrentAdversarial"]

if TYPE_CHECKING:
    from tf_lamb_extras.adversarial.model import ConcurrentAdversarial
else:
    __getattr__ = lazily(__name__, ConcurrentAdversarial="model")
