"""Finds the peak learning rate during the warmup (AutoWU), with a callback.

`AutoWarmup` is the callback for Keras 3 or for tf_keras, whichever `tf.keras` is. To choose one of
the two, import it from `tf_lamb_extras.automatic_warmup.keras` or from
`tf_lamb_extras.automatic_warmup.tf_keras`. The module
`tf_lamb_extras.automatic_warmup.model_garden` registers the method in TensorFlow's Model Garden.
"""

from typing import TYPE_CHECKING

from tf_lamb_extras import OF_BOTH, lazily

__all__ = ["AutoWarmup"]

if TYPE_CHECKING:
    from tf_lamb_extras.automatic_warmup.keras import AutoWarmup
else:
    __getattr__ = lazily(__name__, AutoWarmup=OF_BOTH)
