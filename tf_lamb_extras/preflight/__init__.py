"""A step's memory and time by the TPU's own compiler, before there is a TPU.

`preflight` asks about a model of Keras 3 on JAX; `tf_lamb_extras.preflight.model_garden` is the
command that asks about an experiment.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tf_lamb_extras.preflight.model import preflight

__all__ = ["preflight"]


if not TYPE_CHECKING:

    def __getattr__(name: str):
        if name != "preflight":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from tf_lamb_extras.preflight.model import preflight

        return preflight
