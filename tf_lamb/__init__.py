"""Large-batch training for TensorFlow and Keras.

`tf_lamb.LAMB` is an optimizer of the Keras that `tf.keras` names: Keras 3, or `tf_keras` where
`TF_USE_LEGACY_KERAS` is set. `tf_lamb.keras.LAMB` and `tf_lamb.tf_keras.LAMB` say it outright.
This import loads no framework: nothing is loaded until it is used.
"""

import importlib
import os
import sys

__version__ = "0.1.0"

_OF_A_DOOR = (
    "LAMB", "LARS", "SGDP", "AdaScale", "AdamP", "AutoWarmup", "BackupAndRestore",
    "DivergenceReport", "GhostBatchNormalization", "Measured", "NoiseScale",
    "SplitBatchNormalization", "StopAtScaleInvariantStep", "TrustRatios", "auxiliary_statistics",
    "from_addons", "migrate", "replace_batch_normalization", "schedules",
)  # fmt: skip
_ROOMS = ("core", "keras", "model_garden", "tensorflow", "tf_keras")

__all__ = [*_OF_A_DOOR, *_ROOMS, "recipes"]


def __getattr__(name):
    if name in _ROOMS:
        return importlib.import_module(f"tf_lamb.{name}")
    if name == "recipes":
        return importlib.import_module("tf_lamb.core.recipes")
    if name in _OF_A_DOOR:
        # As TensorFlow itself decides what `tf.keras` is.
        legacy = os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")
        room = "tf_lamb.tf_keras" if legacy else "tf_lamb.keras"
        return getattr(importlib.import_module(room), name)
    raise AttributeError(f"module 'tf_lamb' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *__all__])


# A saved model that was compiled with one of ours loads only where our classes are registered with
# its host. A script that has imported the host by now has paid for it: open that door.
for _room in ("keras", "tf_keras"):
    if _room in sys.modules:
        importlib.import_module(f"tf_lamb.{_room}")
