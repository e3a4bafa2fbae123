"""The optimizers, callbacks and functions for tf_keras, the Keras that Model Garden uses."""

from typing import TYPE_CHECKING

from tf_lamb.core.messages import optional_imports

with optional_imports("tf_lamb.tf_keras", "tensorflow tf-keras"):
    import tf_keras as _tf_keras  # noqa: F401

from tf_lamb.api.batch_norm import replace_batch_normalization
from tf_lamb.api.describe import describe, layer_decay
from tf_lamb.api.migration.migrate import migrate
from tf_lamb.api.stages import fit_stages
from tf_lamb.find import lazy_getattr
from tf_lamb.tf_keras import family, schedules
from tf_lamb.tf_keras import frontend as frontend
from tf_lamb.tf_keras.callbacks import (
    BackupAndRestore,
    NoiseScale,
    StopAtBaseSteps,
    StopOnDivergence,
    TrustRatios,
)
from tf_lamb.tf_keras.family import *  # noqa: F403  # the optimizers
from tf_lamb.tf_keras.layers import GhostBatchNormalization

if TYPE_CHECKING:  # the names that `__getattr__` finds, for editors and type checkers
    from tf_lamb.find.batch import find_batch
    from tf_lamb.find.rate import find_rate
else:  # a type checker then reports a name that does not exist
    __getattr__ = lazy_getattr(__name__)

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
