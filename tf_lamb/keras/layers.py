"""The layers for Keras 3.

Each class joins the framework-independent class in `tf_lamb.api` with Keras's class.
"""

import keras
from keras import ops

from tf_lamb.api import batch_norm
from tf_lamb.api.docstrings import shows_docstring


class BatchNormalizationAdapter(keras.layers.BatchNormalization):
    """Adds to Keras 3's `BatchNormalization` the members that `tf_lamb.api.batch_norm` calls."""

    _xp = ops
    _op_scope = staticmethod(keras.name_scope)

    def _is_training(self, training):
        """Returns whether a call of the layer uses the mean and variance of its batch.

        A layer that is not trainable does not, even in training.
        """
        return bool(training) and self.trainable

    def _to_wide_float(self, inputs):
        """Returns the inputs in float32, or in their own dtype if it is wider."""
        return ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))

    def _assign(self, variable, value):
        """Gives a variable its new value."""
        variable.assign(value)


@keras.saving.register_keras_serializable(package="tf_lamb")
@shows_docstring
class GhostBatchNormalization(batch_norm.GhostBatchNormalization, BatchNormalizationAdapter): ...
