"""The base class of the callbacks, which finds the optimizer and counts batches; the backup."""

import math
import weakref
from collections.abc import Callable
from typing import Any

from tf_lamb.api.variables import numpy_of, step_of
from tf_lamb.core import accumulation, checks
from tf_lamb.core.batch_norm import why_averages_lag
from tf_lamb.core.messages import warn

RISING: weakref.WeakSet = weakref.WeakSet()  # the models whose rate a callback raises to find it


class Callback:
    """Reads an optimizer every few of its steps, between two batches, and after the last one.

    A subclass defines `_read_now` and `_find`; the frontend's callback, `_batches_a_call`. For an
    optimizer that wraps another one, a step is a batch.
    """

    model: Any
    params: dict
    _batches_a_call: Callable  # steps that `fit` runs between two callbacks
    _read_now: Callable
    _optimizer: Any = None  # the one that is read, once the model is known
    _batches = 0

    def __init__(self, every: int = 1):
        super().__init__()
        self._every = checks.integer("every", every)

    def _find(self, model):
        """Returns the optimizer to read; raises an error if the model has no suitable one."""
        return model.optimizer

    def set_model(self, model):
        """Finds the optimizer, and prepares the model for reading."""
        super().set_model(model)  # type: ignore[misc]  # the host's
        self._optimizer = self._find(model)

    def on_train_begin(self, logs=None):
        """Starts to count batches; warns of batch normalization with too few of them."""
        params = self.params or {}
        steps = (params.get("epochs") or 0) * (params.get("steps") or 0)
        if steps and (lag := averages_that_lag(self.model, steps)):
            warn(lag)
        self._call = self._batches_a_call()
        self._batches, self._due = 0, None

    def on_train_batch_begin(self, batch, logs=None):
        """Reads the result of the previous batch, if it is time."""
        # Not at the end of a batch: Keras waits for each loss if a callback asks for that.
        if self._is_due():
            self._read()
        self._count(batch)

    def on_train_end(self, logs=None):
        """Reads the last step."""
        self._read()

    def _count(self, batch):
        """Counts the batches of the call that starts with this batch of the epoch."""
        left = ((self.params or {}).get("steps") or math.inf) - batch
        self._batches += min(self._call, left)

    def _is_due(self):
        if self._due is None:  # a backup is restored by now
            self._due = self._interval()
        if self._batches < self._due:
            return False
        self._due += self._interval()
        return True

    def _interval(self):
        """The batches of the next `every` steps."""
        if stages := getattr(self._optimizer, "_growing", None):
            self._sync()
            return accumulation.batches(stages, step_of(self._optimizer), self._every)
        return self._every * (getattr(self._optimizer, "gradient_accumulation_steps", None) or 1)

    def _sync(self):
        """Has the model's variables hold what the step left: Keras on JAX does so when asked."""
        return self.model

    def _read(self):
        self._sync()
        if self._batches:
            self._read_now()


def averages_that_lag(model, steps: int) -> str | None:
    """A sentence on batch normalization with too few batches to train on, or None."""
    lagging = {}
    for layer in model._flatten_layers():  # seam: Keras 3.15.1, tf_keras 2.20.1
        names = [cls.__name__ for cls in type(layer).__mro__]
        if "BatchNormalization" not in names or hasattr(layer, "group_size") or not layer.trainable:
            continue
        mean = getattr(layer, "moving_mean", None)  # None before it is built
        if (mean is None or not numpy_of(mean).any()) and why_averages_lag(layer.momentum, steps):
            lagging[layer.name] = layer.momentum
    if not lagging:
        return None
    shown = ", ".join(map(repr, list(lagging)[:3])) + ", ..." * (len(lagging) > 3)
    return f"{shown}: {why_averages_lag(max(lagging.values()), steps)}"


class BackupAndRestore:
    """Keras's `BackupAndRestore`, with a backup that a kill at any moment leaves complete.

    Pass it to `fit` again, with the same arguments: training resumes after the last finished epoch.
    With the same data in the same order it ends with the same weights, bit for bit; but Keras 3
    saves no seeds of layers such as `Dropout`, which begin anew.

    Keras 3's own callback overwrites the last weights, and then the number of the epoch. A kill
    during the first write loses both; a kill between the writes trains an epoch twice. Keras cannot
    resume within an epoch: for long epochs, give `fit` a smaller `steps_per_epoch`.

    With several processes on JAX, all pass it, with one shared folder. The first process writes.
    Differences between the processes are refused before the first step.

    A backup that cannot be read, or has another model or optimizer, is refused and not changed.

    Put Keras's `SwapEMAWeights(swap_on_epoch=True)` after it in the list: before it, the averages
    would be saved in the place of the weights. What callbacks count for themselves is not saved.

    Args:
        backup_dir: A separate folder, on a mounted disk.
        delete_checkpoint: Whether to delete the backup when training has ended.

    Example:
        >>> backup = tf_lamb.BackupAndRestore("backup")
        >>> model.fit(x, y, epochs=10, callbacks=[backup])
    """

    backup_dir: str

    def _refusal(self, reason) -> ValueError:
        why = " ".join(str(reason).split())
        return ValueError(
            f"The backup in backup_dir={self.backup_dir!r} cannot be restored: {why} Bring back a "
            "copy, or name another backup_dir to begin anew; nothing was changed."
        )
