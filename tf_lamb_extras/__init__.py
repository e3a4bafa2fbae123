"""Extras beside the large-batch optimizers of `tf_lamb`, one a folder, each whole in it.

They import `tf_lamb`, which imports none of them. This import loads no framework.
"""

import os


def keras_of_tensorflow() -> str:
    """The package that `tf.keras` is, as TensorFlow itself decides: "keras" or "tf_keras"."""
    legacy = os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")
    return "tf_keras" if legacy else "keras"
