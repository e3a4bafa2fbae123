"""The face of what ends training with AdaScale; each door adds its host."""

from tf_lamb.api.callbacks.callback import Callback
from tf_lamb.api.callbacks.noise_scale import find
from tf_lamb.api.noise.adascale import AdaScale
from tf_lamb.core import checks


class StopAtScaleInvariantStep(Callback):
    """Ends `fit` when AdaScale has spent the steps that the base batch took.

    `gain` and `scale_invariant_step` join the logs of each epoch. Give `fit` more epochs than are
    needed: at most as many as the base batch took, times the scale.

    Args:
        steps: The steps of the base batch.
        every: Batches between two looks, however many of them `fit` runs in one call; each look
            waits for the device. Defaults to 1.

    Raises:
        ValueError: when training begins, for an optimizer that is not `AdaScale`.

    Example:

    >>> import numpy as np, tensorflow as tf, tf_lamb
    >>> model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    >>> inner = tf_lamb.LARS(0.1, gradient_accumulation_steps=4)
    >>> model.compile(optimizer=tf_lamb.AdaScale(inner, scale=4), loss="mse")
    >>> x, y = np.random.normal(size=(64, 4)), np.random.normal(size=(64, 2))
    >>> stop = tf_lamb.StopAtScaleInvariantStep(8)
    >>> _ = model.fit(x, y, batch_size=8, epochs=4, callbacks=[stop], verbose=0)
    >>> model.optimizer.scale_invariant_steps >= 8
    True
    """

    def __init__(self, steps: int, *, every: int = 1):
        super().__init__(every)
        self.steps = checks.whole("steps", steps)

    def _find(self, model):
        return find(self, model, AdaScale, "needs optimizer=tf_lamb.AdaScale(...)")

    def on_train_begin(self, logs=None):
        """Ends a run that is over already after one batch; Keras asks no earlier."""
        super().on_train_begin(logs)
        self._read_now()

    def on_train_batch_begin(self, batch, logs=None):
        """Counts: whether training is over is asked after a batch, before there is another."""
        self._count(batch)

    def on_train_batch_end(self, batch, logs=None):
        """Reads the optimizer if it is time."""
        if self._is_due():
            self._read()

    def _read_now(self):
        if self._optimizer.scale_invariant_steps >= self.steps:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        """Adds where training is to the logs."""
        self._read()
        if logs is not None:
            logs["gain"] = self._optimizer.gain
            logs["scale_invariant_step"] = self._optimizer.scale_invariant_steps
