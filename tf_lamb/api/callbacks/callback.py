"""Defines the base class of the callbacks, which read an optimizer, and of the backup."""

import math
import weakref
from collections.abc import Callable
from typing import Any

from tf_lamb.api.variables import numpy_of, step_of
from tf_lamb.core import accumulation, checks
from tf_lamb.core.batch_norm import why_averages_lag
from tf_lamb.core.messages import warn

# The models whose learning rate a callback raises, in search of a rate.
RISING: weakref.WeakSet = weakref.WeakSet()


class Callback:
    """Reads an optimizer every `every` optimizer steps, and once more when training ends.

    It reads between two batches. A subclass defines `_read_now`, which reads, and may override
    `_find`, which picks the optimizer. The callback class of each Keras defines `_batches_a_call`.

    An optimizer step may take several batches, with `gradient_accumulation_steps`. A wrapper, such
    as `LossScaleOptimizer`, does not tell how many: if `_find` returns one, a batch counts as a
    step.

    Args:
        every: The optimizer steps between two readings. Defaults to 1.

    Attributes:
        model: The model that is trained; Keras sets it.
        params: The settings of this `fit`, such as `epochs` and `steps`; Keras sets them.
    """

    model: Any
    params: dict
    _batches_a_call: Callable  # returns the batches that `fit` runs between two callbacks
    _read_now: Callable
    _optimizer: Any = None  # the optimizer that is read; set with the model
    _batches = 0

    def __init__(self, every: int = 1):
        super().__init__()
        self._every = checks.integer("every", every)

    def _find(self, model):
        """Returns the optimizer to read; raises an error if the model has no suitable one."""
        return model.optimizer

    def set_model(self, model):
        """Takes the model, as Keras's callback does, and finds the optimizer to read."""
        super().set_model(model)  # type: ignore[misc]  # the host's
        self._optimizer = self._find(model)

    def on_train_begin(self, logs=None):
        """Starts to count batches; warns if batch normalization gets too few of them."""
        params = self.params or {}
        steps = (params.get("epochs") or 0) * (params.get("steps") or 0)
        if steps and (warning := averages_that_lag(self.model, steps)):
            warn(warning)
        self._call = self._batches_a_call()
        self._batches, self._due = 0, None

    def on_train_batch_begin(self, batch, logs=None):
        """Reads the result of the previous batch if a reading is due."""
        # A callback for the end of a batch would make Keras wait for each loss.
        if self._is_due():
            self._read()
        self._count(batch)

    def on_train_end(self, logs=None):
        """Reads the last step."""
        self._read()

    def _count(self, batch):
        """Counts the batches of the call that starts with this batch of the epoch."""
        remaining = ((self.params or {}).get("steps") or math.inf) - batch
        self._batches += min(self._call, remaining)

    def _is_due(self):
        """Returns whether a reading is due, and then sets when the next one is."""
        if self._due is None:  # set here, because a backup is restored only by now
            self._due = self._interval()
        if self._batches < self._due:
            return False
        self._due += self._interval()
        return True

    def _interval(self):
        """Returns the number of batches of the next `every` steps."""
        if stages := getattr(self._optimizer, "_growing", None):
            self._sync()
            return accumulation.batches(stages, step_of(self._optimizer), self._every)
        return self._every * (getattr(self._optimizer, "gradient_accumulation_steps", None) or 1)

    def _sync(self):
        """Brings the model's variables up to date; on JAX, reading a callback's `model` does so."""
        return self.model

    def _read(self):
        """Reads the optimizer, if a batch was trained."""
        self._sync()
        if self._batches:
            self._read_now()


def averages_that_lag(model, steps: int) -> str | None:
    """Returns a warning of batch normalization with too few batches to train on, or None.

    Args:
        model: The model, whose trainable `BatchNormalization` layers are looked at if their moving
            averages are still at the start. Those with groups (`group_size`) are left out.
        steps: The batches of the whole training.
    """
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
    layer_names = ", ".join(map(repr, list(lagging)[:3])) + ", ..." * (len(lagging) > 3)
    return f"{layer_names}: {why_averages_lag(max(lagging.values()), steps)}"


class BackupAndRestore:
    """Keras's `BackupAndRestore`, with a backup that a kill at any moment leaves complete.

    Pass it to `fit` again, with the same arguments: training resumes after the last finished epoch.
    With the same data in the same order it ends with the same weights, bit for bit. An exception
    are the seeds of layers such as `Dropout`, which Keras 3 does not save, so that they start anew.

    Keras 3's own callback overwrites the last weights, and then the number of the epoch. A kill
    during the first write loses both; a kill between the writes trains an epoch twice. Keras cannot
    resume within an epoch: for long epochs, give `fit` a smaller `steps_per_epoch`.

    If several processes train on JAX, all pass this callback, with one shared folder. The first
    process writes. Differences between the processes are refused before the first step.

    A backup that cannot be read, or that is of another model or optimizer, is refused and not
    changed.

    Put Keras's `SwapEMAWeights(swap_on_epoch=True)` after this callback in the list: before it, the
    averages would be saved in the place of the weights. The callbacks' own counts are not saved.

    Args:
        backup_dir: A separate folder, on a mounted disk.
        delete_checkpoint: Whether to delete the backup when training has ended.

    Example:
        >>> backup = tf_lamb.BackupAndRestore("backup")
        >>> model.fit(x, y, epochs=10, callbacks=[backup])
    """

    backup_dir: str

    def _refusal(self, reason) -> ValueError:
        """Returns the error for a backup that cannot be restored."""
        text = " ".join(str(reason).split())
        return ValueError(
            f"The backup in backup_dir={self.backup_dir!r} cannot be restored: {text} Bring back a "
            "copy, or name another backup_dir to begin anew; nothing was changed."
        )
