"""The Keras 3 frontend: optimizers, layers, callbacks and searches on TensorFlow, JAX or torch."""

from typing import TYPE_CHECKING

from tf_lamb.core.messages import optional_imports

with optional_imports(
    "tf_lamb.keras",
    advice="Keras 3 runs on the backend that KERAS_BACKEND names, on TensorFlow where it names "
    "none; set KERAS_BACKEND to tensorflow, jax or torch, whichever is installed, or ",
):
    import keras as _keras  # noqa: F401

from tf_lamb.api.batch_norm import replace_batch_normalization
from tf_lamb.api.describe import describe, layer_decay
from tf_lamb.api.migration.migrate import migrate
from tf_lamb.api.stages import fit_stages
from tf_lamb.find import lazy_getattr
from tf_lamb.keras import family, schedules
from tf_lamb.keras import frontend as frontend
from tf_lamb.keras.callbacks import (
    BackupAndRestore,
    NoiseScale,
    StopAtBaseSteps,
    StopOnDivergence,
    TrustRatios,
)
from tf_lamb.keras.family import *  # noqa: F403  # the optimizers
from tf_lamb.keras.layers import GhostBatchNormalization
from tf_lamb.keras.replicas import per_replica as per_replica

if TYPE_CHECKING:  # the names that `__getattr__` finds, for editors and type checkers
    from tf_lamb.find.batch import find_batch
    from tf_lamb.find.rate import find_rate
else:  # a type checker then reports a name that does not exist
    __getattr__ = lazy_getattr(__name__)

# `tf_lamb.tf_keras` exports the same names, so `per_replica`, which needs Keras 3, is not here.
__all__ = [
    "BackupAndRestore", "StopOnDivergence", "GhostBatchNormalization", "NoiseScale",
    "StopAtBaseSteps", "TrustRatios",
    "describe", "find_batch", "find_rate", "fit_stages",
    "layer_decay", "migrate", "replace_batch_normalization", "schedules",
]  # fmt: skip
__all__ += family.__all__


def __dir__():
    """Returns the names of the module, including those whose modules are not loaded yet."""
    return sorted({*globals(), *__all__})
