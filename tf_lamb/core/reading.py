"""What callbacks share that read an optimizer while it trains."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tf_lamb.core import checks


def interval(every) -> int:
    """The value as it is if it is a whole number of steps, or an error."""
    if every is None:
        raise ValueError("every must be a whole number >= 1, not None. Try every=100.")
    checks.steps("every", every)
    return every


class Callback:
    """What a face knows of the host's callback that stands behind it."""

    model: Any

    if TYPE_CHECKING:  # the host's

        def set_model(self, model): ...


class Reading(Callback):
    """Reads every so many optimizer steps, between two batches, and after the last.

    A face gives `_every` and `_read_now`; the door, which is a callback, `_batches_a_call`.
    """

    _every: int
    _read_now: Callable
    _batches_a_call: Callable  # steps that `fit` runs between two callbacks
    _watched: Any  # the optimizer inside its wrappers, once the model is known

    def on_train_begin(self, logs=None):
        """Begins to count batches."""
        self._call = self._batches_a_call()
        accumulated = getattr(self._watched, "gradient_accumulation_steps", None) or 1
        self._interval = self._every * accumulated
        self._batches, self._due = 0, self._interval

    def on_train_batch_begin(self, batch, logs=None):
        """Reads what the batch before left, if it is time."""
        # Not at the end of a batch: Keras waits for each loss if a callback asks for that.
        if self._batches >= self._due:
            self._read()
            self._due += self._interval
        self._batches += self._call

    def on_train_end(self, logs=None):
        """Reads the last step."""
        self._read()

    def _read(self):
        self.model  # noqa: B018  # Keras on JAX hands the step's results over when it is asked
        if self._batches:
            self._read_now()


def step_of(optimizer) -> int:
    """The optimizer steps done; waits for the device."""
    iterations = optimizer.iterations
    return int(iterations.numpy() if hasattr(iterations, "numpy") else iterations)
