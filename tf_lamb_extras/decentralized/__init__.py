"""Trains with Keras 3 on JAX, on devices that average weights with their neighbours only."""

from typing import TYPE_CHECKING

from tf_lamb_extras import lazily

__all__ = ["Decentralized"]

if TYPE_CHECKING:
    from tf_lamb_extras.decentralized.training import Decentralized
else:
    __getattr__ = lazily(__name__, Decentralized="training")
