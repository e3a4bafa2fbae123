"""Training on adversarial examples of older weights (ConAdv), of Keras 3 and Model Garden."""

from typing import TYPE_CHECKING

from tf_lamb_extras import lazily

__all__ = ["ConcurrentAdversarial"]

if TYPE_CHECKING:
    from tf_lamb_extras.adversarial.model import ConcurrentAdversarial
else:
    __getattr__ = lazily(__name__, ConcurrentAdversarial="model")
