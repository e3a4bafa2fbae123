"""Large-batch training for TensorFlow and Keras.

`tf_lamb.LAMB` is an optimizer of the Keras that `tf.keras` names: Keras 3, or `tf_keras` where
`TF_USE_LEGACY_KERAS` is set. `tf_lamb.keras.LAMB` and `tf_lamb.tf_keras.LAMB` say it outright.
This import loads no framework: nothing is loaded until it is used. Where Keras or tf_keras is
loaded already, `load_model` knows our classes from now on; else write `import tf_lamb.keras`, or
`import tf_lamb.tf_keras`, before it.
"""

import contextlib
import difflib
import importlib
import sys
from typing import TYPE_CHECKING

from tf_lamb import core

if TYPE_CHECKING:  # what `__getattr__` gives, for editors and type checkers
    from tf_lamb import keras, model_garden, tensorflow, tf_keras
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
    "core", "describe", "find_batch", "find_rate", "fit_stages",
    "keras", "layer_decay", "migrate", "model_garden", "optimizer_of", "recipes",
    "replace_batch_normalization", "rules", "schedules", "tensorflow", "tf_keras",
]  # fmt: skip
_ROOMS = {"core", "keras", "model_garden", "tensorflow", "tf_keras"}
# Names that one Keras has and the other has not.
_OF_KERAS_3 = dict.fromkeys(("per_replica",), "keras")


if not TYPE_CHECKING:  # a type checker is to know a name that is not there

    def __getattr__(name: str):
        if name in _ROOMS:
            return importlib.import_module(f"tf_lamb.{name}")
        if name in ("recipes", "rules"):
            return importlib.import_module(f"tf_lamb.core.{name}")
        if name in __all__:
            room = importlib.import_module("tf_lamb.api.frontends").keras_of_tensorflow()
            return getattr(importlib.import_module(f"tf_lamb.{room}"), name)
        if name in _OF_KERAS_3:
            raise AttributeError(
                f"{name} is Keras 3's alone: write tf_lamb.{_OF_KERAS_3[name]}.{name}."
            )
        alike = [own for own in __all__ if own.lower() == name.lower()]
        near = alike or difflib.get_close_matches(name, __all__, 1)
        hint = f". Did you mean {near[0]!r}?" if near else ""
        raise AttributeError(f"module 'tf_lamb' has no attribute {name!r}{hint}")


# What a recipe of core needs of the rest of the package, loaded when it is used.
core.provide(
    schedules=lambda: sys.modules[__name__].schedules,  # of the Keras that `tf.keras` names
    plots=lambda: importlib.import_module("tf_lamb.api.plots"),
)


def __dir__():
    return sorted([*globals(), *__all__])


for _framework in ("keras", "tf_keras"):
    if _framework in sys.modules:
        with contextlib.suppress(ImportError):  # Keras without a backend says so, when it is used
            importlib.import_module(f"tf_lamb.{_framework}")
