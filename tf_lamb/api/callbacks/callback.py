"""What callbacks share that read an optimizer while it trains."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tf_lamb.core.batch_norm import averages_that_lag
from tf_lamb.core.checks.warn import warn


class Callback:
    """What a face knows of the host's callback that stands behind it."""

    model: Any
    params: dict

    if TYPE_CHECKING:  # the host's

        def set_model(self, model): ...

    def _warn_of_lag(self):
        """Of batch normalization that has too few batches, where their number is known."""
        params = self.params or {}
        steps = (params.get("epochs") or 0) * (params.get("steps") or 0)
        if steps and (lag := averages_that_lag(self.model, steps)):
            warn(lag)


class Reading(Callback):
    """Reads every so many optimizer steps, between two batches, and after the last.

    A face gives `_every` and `_read_now`; the door, which is a callback, `_batches_a_call`. A face
    without a `_watched` counts batches.
    """

    _every: int
    _read_now: Callable
    _batches_a_call: Callable  # steps that `fit` runs between two callbacks
    _watched: Any = None  # the optimizer inside its wrappers, once the model is known

    def on_train_begin(self, logs=None):
        """Begins to count batches."""
        self._warn_of_lag()
        self._call = self._batches_a_call()
        accumulated = getattr(self._watched, "gradient_accumulation_steps", None) or 1
        self._interval = self._every * accumulated
        self._batches, self._due = 0, self._interval

    def on_train_batch_begin(self, batch, logs=None):
        """Reads what the batch before left, if it is time."""
        # Not at the end of a batch: Keras waits for each loss if a callback asks for that.
        if self._is_due():
            self._read()
        self._count(batch)

    def on_train_end(self, logs=None):
        """Reads the last step."""
        self._read()

    def _count(self, batch):
        """Counts the batches of the call that begins with this one of the epoch."""
        left = ((self.params or {}).get("steps") or math.inf) - batch
        self._batches += min(self._call, left)

    def _is_due(self):
        if self._batches < self._due:
            return False
        self._due += self._interval
        return True

    def _read(self):
        self.model  # noqa: B018  # Keras on JAX hands the step's results over when it is asked
        if self._batches:
            self._read_now()
