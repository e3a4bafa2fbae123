"""The face of the divergence report, whichever Keras it belongs to."""

from typing import Any

from tf_lamb.api.callbacks.callback import Reading
from tf_lamb.api.callbacks.diagnosis import Readings, diagnose
from tf_lamb.api.optimizers.guard import guarded
from tf_lamb.api.optimizers.observation import starts_to_observe
from tf_lamb.core import checks


class DivergenceReport(Reading):
    """DivergenceReport, a callback that ends a run which has diverged, and says where and how.

    Every `every` optimizer steps it looks at all weights of the model, the loss of the epoch and
    the steps that were skipped (`on_nonfinite="skip"`). Where weights are not finite, the moving
    averages of batch normalization among them, or `patience` steps in a row
    were skipped, or the loss is not finite although no step was skipped, it raises, and the
    message tells

        which variables, and at which step
        the weight norm, update norm and trust ratio of each in the last readings; if all weights
            are finite, of the variables whose norms have risen most
        what usually helps

    It raises before the epoch ends, so that no `ModelCheckpoint` and no `BackupAndRestore` writes
    the broken weights over good ones. At the end of a run that has not diverged it prints how many
    steps were skipped, if any.

    Args:
        every: Optimizer steps from one reading to the next; each waits for the device.
            Defaults to 10.
        keep: Readings that the report shows. Defaults to 5.
        patience: Steps skipped in a row that make a divergence. Defaults to 20.
        print_fn: What prints the number of skipped steps, or None for nothing. Defaults to `print`.

    Raises:
        FloatingPointError: when training has diverged; its message is the report.
        TypeError: when training begins, for an optimizer that is not of this package.
        ValueError, TypeError: for an argument that is no whole number >= 1.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
    >>> model.compile(optimizer=tf_lamb.LAMB(on_nonfinite="propagate"), loss="mse")
    >>> x = tf.constant([[1.0], [float("nan")]])
    >>> try:
    ...     _ = model.fit(x, x, verbose=0, callbacks=[tf_lamb.DivergenceReport(every=1)])
    ... except FloatingPointError as error:
    ...     print(str(error).partition(",")[0])
    Training has diverged: at step 1
    """

    _readings: Any = None

    def __init__(self, every=10, *, keep=5, patience=20, print_fn=print):
        super().__init__()
        self._every, self._keep, self._patience = (
            checks.whole(name, value)
            for name, value in (("every", every), ("keep", keep), ("patience", patience))
        )
        self._print_fn = print_fn

    def set_model(self, model):
        """Has the optimizer observe, and the step traced anew if it was traced without."""
        super().set_model(model)
        self._watched = guarded(model.optimizer)
        if starts_to_observe(self._watched):
            model.train_function = None
        self._readings = Readings(self._keep, self._patience)

    def _read_now(self):
        losses = [m for m in self.model.metrics if m.name == "loss"]
        loss = float(losses[0].result()) if losses else None
        diagnose(self._readings, self._watched, loss, self.model)

    def on_train_begin(self, logs=None):
        """Begins to count batches; tells of skipped steps in the optimizer's place."""
        super().on_train_begin(logs)
        self._watched._guard.is_reported = True

    def on_train_end(self, logs=None):
        """Reads the last step; says how many were skipped."""
        super().on_train_end(logs)
        skipped = self._watched.skipped_steps
        if skipped and self._print_fn:
            self._print_fn(f"{skipped:,} steps were skipped: their gradients were not finite.")
