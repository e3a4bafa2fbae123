"""Trains with Keras 3 on JAX, on devices each of which averages weights with few other devices."""

from typing import TYPE_CHECKING

from tf_lamb_extras import lazily

__all__ = ["Decentralized"]

if TYPE_CHECKING:
    from tf_lamb_extras.decentralized.training import Decentralized
else:
    __getattr__ = lazily(__name__, Decentralized="training")
