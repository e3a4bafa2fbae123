"""Large-batch training for TensorFlow and Keras.

`tf_lamb.LAMB` is an optimizer for the Keras that `tf.keras` refers to: Keras 3, or tf_keras if the
environment variable `TF_USE_LEGACY_KERAS` is set. `tf_lamb.keras.LAMB` is always for Keras 3, and
`tf_lamb.tf_keras.LAMB` is always for tf_keras.

`import tf_lamb` loads no framework: Keras is loaded at the first use of a name that needs it. If
you import Keras or tf_keras before `tf_lamb`, the `load_model` of that Keras knows the classes of
this package. Otherwise write `import tf_lamb.keras`, or `import tf_lamb.tf_keras`, before you call
`load_model`.
"""

import contextlib
import importlib
import sys
from typing import TYPE_CHECKING

from tf_lamb import core

if TYPE_CHECKING:  # the names that `__getattr__` finds, for editors and type checkers
    from tf_lamb import keras as keras
    from tf_lamb import model_garden as model_garden
    from tf_lamb import tensorflow as tensorflow
    from tf_lamb import tf_keras as tf_keras
    from tf_lamb.core import recipes, rules
    from tf_lamb.keras import (
        LAMB,
        LANS,
        LARS,
        SGDP,
        SOAP,
        AdamP,
        AdaScale,
        BackupAndRestore,
        GhostBatchNormalization,
        MeasureNoise,
        Muon,
        NoiseScale,
        StopAtBaseSteps,
        StopOnDivergence,
        TrustRatios,
        describe,
        find_batch,
        find_rate,
        fit_stages,
        layer_decay,
        migrate,
        optimizer_of,
        replace_batch_normalization,
        schedules,
    )

__version__ = "0.1.0"

__all__ = [
    "LAMB", "LANS", "LARS", "SGDP", "SOAP", "AdaScale", "AdamP",
    "BackupAndRestore", "StopOnDivergence", "GhostBatchNormalization", "MeasureNoise", "Muon",
    "NoiseScale", "StopAtBaseSteps", "TrustRatios",
    "describe", "find_batch", "find_rate", "fit_stages", "layer_decay", "migrate", "optimizer_of",
    "recipes", "replace_batch_normalization", "rules", "schedules",
]  # fmt: skip
# These are not in `__all__`, so that `from tf_lamb import *` neither replaces the user's own
# `keras` nor loads a framework that is not installed.
_SUBPACKAGES = {"core", "keras", "model_garden", "tensorflow", "tf_keras"}
# Name that only one of the subpackages `keras` and `tf_keras` has -> that subpackage.
_KERAS_3_NAMES = {"per_replica": "keras"}


if not TYPE_CHECKING:  # so that a type checker reports a name that does not exist

    def __getattr__(name: str):
        """Returns an attribute of the package, and imports the module that defines it.

        Raises:
            AttributeError: for a name that the package does not have.
        """
        if name in _SUBPACKAGES:
            return importlib.import_module(f"tf_lamb.{name}")
        if name in ("recipes", "rules"):
            return importlib.import_module(f"tf_lamb.core.{name}")
        if name in __all__:
            frontend = importlib.import_module("tf_lamb.api.frontends").keras_of_tensorflow()
            return getattr(importlib.import_module(f"tf_lamb.{frontend}"), name)
        if name in _KERAS_3_NAMES:
            raise AttributeError(
                f"{name} is Keras 3's alone: write tf_lamb.{_KERAS_3_NAMES[name]}.{name}."
            )
        elsewhere = importlib.import_module("tf_lamb.api.elsewhere")
        names = {*__all__, *_SUBPACKAGES}
        text = elsewhere.missing_name_text(__name__, name, names)
        # With a name Python adds no object, and so no second "Did you mean".
        raise AttributeError(text, name=name)


# The recipes in `core` use the modules `schedules` and `plots`, but `core` must not import modules
# outside of `core`. So it gets functions that load these modules at the first use.
core.provide(
    schedules=lambda: sys.modules[__name__].schedules,  # for the Keras that `tf.keras` is
    plots=lambda: importlib.import_module("tf_lamb.api.plots"),
)


def __dir__():
    """Returns the names of the package, including those whose modules are not loaded yet."""
    return sorted({*globals(), *__all__, *_SUBPACKAGES})


for _framework in ("keras", "tf_keras"):
    if _framework in sys.modules:
        # An ImportError, such as that of a Keras without a backend, is not raised here but at the
        # first use of a name that needs Keras.
        with contextlib.suppress(ImportError):
            importlib.import_module(f"tf_lamb.{_framework}")
