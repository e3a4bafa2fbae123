"""Training in which each worker averages with its neighbours alone, by Keras 3 on JAX."""

from typing import TYPE_CHECKING

from tf_lamb_extras import lazily

__all__ = ["Decentralized"]

if TYPE_CHECKING:
    from tf_lamb_extras.decentralized.training import Decentralized
else:
    __getattr__ = lazily(__name__, Decentralized="training")
