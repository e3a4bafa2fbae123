"""Defines the base class of the callbacks that read an optimizer, and of `BackupAndRestore`."""

import math
import weakref
from collections.abc import Callable
from typing import Any

from tf_lamb.api.variables import numpy_of, step_of
from tf_lamb.core import accumulation, checks
from tf_lamb.core.batch_norm import why_averages_lag
from tf_lamb.core.messages import warn

# The models whose learning rate another callback is raising just now, to find a good peak rate.
# Their training may diverge meanwhile, so `StopOnDivergence` does not check them.
MODELS_WITH_RISING_RATE: weakref.WeakSet = weakref.WeakSet()


class Callback:
    """Reads an optimizer every `every` optimizer steps, and once more when training ends.

    It reads between two batches. A subclass defines `_at_reading`, which reads and may act on what
    it reads, such as end training. It may override `_optimizer_to_read`, which picks the optimizer
    when Keras sets the model, and may also prepare the reading. The base classes `KerasCallback` in
    `tf_lamb.keras` and `tf_lamb.tf_keras` define `_count_batches_per_call`.

    With `gradient_accumulation_steps`, an optimizer step takes several batches. A wrapper, such as
    `LossScaleOptimizer`, does not have this setting: if `_optimizer_to_read` returns a wrapper,
    each batch counts as a step.

    Args:
        every: The optimizer steps between two readings. Defaults to 1.

    Attributes:
        model: The model that is trained; Keras sets it.
        params: The settings of this `fit`, such as `epochs` and `steps`; Keras sets them.
    """

    model: Any
    params: dict
    _count_batches_per_call: (
        Callable  # returns how many batches `fit` runs between two calls of a callback
    )
    _at_reading: Callable
    _optimizer: Any = None  # the optimizer that is read; set with the model
    _batch_count = 0

    def __init__(self, every: int = 1):
        super().__init__()
        self._every = checks.integer("every", every)

    def _optimizer_to_read(self, model):
        """Returns the optimizer to read; raises an error if the model has no suitable one."""
        return model.optimizer

    def set_model(self, model):
        """Sets the model, as Keras's `Callback` does, and finds the optimizer to read."""
        super().set_model(model)  # type: ignore[misc]  # of Keras's class
        self._optimizer = self._optimizer_to_read(model)

    def on_train_begin(self, logs=None):
        """Sets the count of batches to 0.

        Warns if training has too few batches for the moving averages of batch normalization to
        approach the statistics of the data.
        """
        params = self.params or {}
        steps = (params.get("epochs") or 0) * (params.get("steps") or 0)
        if steps and (warning := lagging_averages_warning(self.model, steps)):
            warn(warning)
        self._batches_per_call = self._count_batches_per_call()
        self._batch_count, self._next_reading = 0, None

    def on_train_batch_begin(self, batch, logs=None):
        """Reads the optimizer before a batch, if `every` steps have passed since the last time."""
        # A callback with `on_train_batch_end` would make Keras wait for the loss of each batch.
        if self._is_due():
            self._read()
        self._count_batches(batch)

    def on_train_end(self, logs=None):
        """Reads the optimizer after the last step."""
        self._read()

    def _count_batches(self, batch):
        """Adds the number of batches that `fit` trains before it next calls a callback.

        With `steps_per_execution`, these are several. `batch` is the number of the first of them in
        the epoch, counted from 0.
        """
        remaining = ((self.params or {}).get("steps") or math.inf) - batch
        self._batch_count += min(self._batches_per_call, remaining)

    def _is_due(self):
        """Returns whether the optimizer is to be read now.

        If so, it also sets after how many batches of this `fit` the optimizer is to be read again.
        """
        # This is not done in `on_train_begin`, because another callback may restore a backup after
        # it, and the number of batches can depend on the step of the optimizer.
        if self._next_reading is None:
            self._next_reading = self._batches_between_readings()
        if self._batch_count < self._next_reading:
            return False
        self._next_reading += self._batches_between_readings()
        return True

    def _batches_between_readings(self):
        """Returns how many batches the optimizer takes for its next `every` steps.

        An optimizer that accumulates gradients takes several batches for one step.
        """
        if stages := getattr(self._optimizer, "_accumulation_stages", None):
            self._sync()
            return accumulation.total_micro_batches(stages, step_of(self._optimizer), self._every)
        return self._every * (getattr(self._optimizer, "gradient_accumulation_steps", None) or 1)

    def _sync(self):
        """Copies the state of training into the variables of the model, on JAX.

        There, `fit` holds the state in arrays of its own, until `self.model` is accessed.
        """
        return self.model

    def _read(self):
        """Calls `_at_reading`, on the present state of the optimizer, if a batch was trained."""
        self._sync()
        if self._batch_count:
            self._at_reading()


def lagging_averages_warning(model, steps: int) -> str | None:
    """Returns a warning if training is too short for moving averages of batch normalization.

    It returns None if training is long enough.

    Args:
        model: The model. Those of its trainable `BatchNormalization` layers are checked whose
            moving mean is still 0, except `GhostBatchNormalization`.
        steps: The number of batches of the whole training.
    """
    momenta = {}
    for layer in model._flatten_layers():  # seam: private; Keras 3.15.1, tf_keras 2.20.1
        names = [cls.__name__ for cls in type(layer).__mro__]
        if "BatchNormalization" not in names or hasattr(layer, "group_size") or not layer.trainable:
            continue
        mean = getattr(layer, "moving_mean", None)  # None before the layer is built
        if (mean is None or not numpy_of(mean).any()) and why_averages_lag(layer.momentum, steps):
            momenta[layer.name] = layer.momentum
    if not momenta:
        return None
    layer_names = ", ".join(map(repr, list(momenta)[:3])) + ", ..." * (len(momenta) > 3)
    return f"{layer_names}: {why_averages_lag(max(momenta.values()), steps)}"


class BackupAndRestore:
    """Saves a backup after each epoch; unlike that of Keras's callback, it survives any kill.

    To resume, call `fit` again with the same arguments and this callback: training continues after
    the last finished epoch. With the same data in the same order it ends with the same weights, bit
    for bit. The seeds of layers such as `Dropout` are an exception: Keras 3 does not save them, so
    they start again.

    Keras 3's own callback first overwrites the weights, and then the number of the epoch. If the
    process is killed during the first write, the backup is lost; if it is killed between the two
    writes, one epoch is trained twice. Keras cannot resume within an epoch: for long epochs, give
    `fit` a smaller `steps_per_epoch`.

    If several processes train on JAX, pass this callback in all of them, with one shared folder.
    The first process writes. If the processes find different backups, or have different epochs or
    steps, an error is raised before the first step.

    A backup that cannot be read, or that belongs to another model or optimizer, raises an error and
    is not changed.

    Put Keras's `SwapEMAWeights(swap_on_epoch=True)` after this callback in the list: if it comes
    before, moving averages are saved instead of the weights. The state of other callbacks, such as
    the count of epochs in `EarlyStopping`, is not saved.

    Args:
        backup_dir: A separate folder, on a mounted disk.
        delete_checkpoint: Whether to delete the backup when training has ended. Defaults to True.

    Example:
        >>> backup = tf_lamb.BackupAndRestore("backup")
        >>> model.fit(x, y, epochs=10, callbacks=[backup])
    """

    backup_dir: str

    def _refusal(self, reason) -> ValueError:
        """Returns the error for a backup that cannot be restored; the message has the reason."""
        text = " ".join(str(reason).split())
        return ValueError(
            f"The backup in backup_dir={self.backup_dir!r} cannot be restored: {text} Bring back a "
            "copy, or name another backup_dir to begin anew; nothing was changed."
        )
