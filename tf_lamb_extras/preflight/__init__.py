"""Tells a step's memory and time from the TPU's own compiler, before there is a TPU.

`preflight` asks about a model of Keras 3 on JAX. `tf_lamb_extras.preflight.model_garden` is a
command that asks about an experiment.
"""

from typing import TYPE_CHECKING

from tf_lamb_extras import lazily

__all__ = ["preflight"]

if TYPE_CHECKING:
    from tf_lamb_extras.preflight.model import preflight
else:
    __getattr__ = lazily(__name__, preflight="model")
