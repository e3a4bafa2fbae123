"""Training on adversarial examples of older weights (ConAdv), of Keras 3 and Model Garden."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tf_lamb_extras.adversarial.model import ConcurrentAdversarial

__all__ = ["ConcurrentAdversarial"]


if not TYPE_CHECKING:

    def __getattr__(name: str):
        if name != "ConcurrentAdversarial":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from tf_lamb_extras.adversarial.model import ConcurrentAdversarial

        return ConcurrentAdversarial
