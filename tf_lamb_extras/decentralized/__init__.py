"""Training in which each worker averages with its neighbours alone, by Keras 3 on JAX."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tf_lamb_extras.decentralized.training import Decentralized

__all__ = ["Decentralized"]


if not TYPE_CHECKING:

    def __getattr__(name: str):
        if name != "Decentralized":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from tf_lamb_extras.decentralized.training import Decentralized

        return Decentralized
