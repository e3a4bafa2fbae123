"""Finds the peak of the learning rate while it warms up (AutoWU), with a callback.

`AutoWarmup` is the callback for the Keras that `tf.keras` is. Those for Keras 3 and for tf_keras
are also in `tf_lamb_extras.automatic_warmup.keras` and `tf_lamb_extras.automatic_warmup.tf_keras`.
`tf_lamb_extras.automatic_warmup.model_garden` registers a learning rate for Model Garden.
"""

from typing import TYPE_CHECKING

from tf_lamb_extras import OF_BOTH, lazily

__all__ = ["AutoWarmup"]

if TYPE_CHECKING:
    from tf_lamb_extras.automatic_warmup.keras import AutoWarmup
else:
    __getattr__ = lazily(__name__, AutoWarmup=OF_BOTH)
