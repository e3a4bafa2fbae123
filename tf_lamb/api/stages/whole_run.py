"""One training that is several calls of `fit`: what callbacks and the optimizer see of it."""

from typing import Any

from tf_lamb.api import seams


class WholeRun:
    """Stands before a host's `CallbackList`: the training begins and ends once.

    Attributes:
        epochs: Of the whole training.
        done: Epochs that are done when the running `fit` ends.
    """

    model: Any
    params: dict
    epochs: int
    done = 0
    _has_begun = False
    _batches: Any = 0

    def begin_epoch(self, epoch: int, steps: int) -> None:
        """Tells the callbacks of the epoch that the next `fit` trains."""
        self.done = epoch + 1
        if steps != self.params["steps"]:
            self.set_params({**self.params, "steps": steps})  # type: ignore[attr-defined]

    @property
    def is_over(self) -> bool:
        """Whether the training ends with the running `fit`."""
        return self.model.stop_training or self.done >= self.params["epochs"]

    def on_train_begin(self, logs=None):
        """At the first time begins, and finds the epoch that a backup was restored to."""
        # seam: tf_keras 2.20.1. It counts all batches of a training, for TensorBoard.
        counter = getattr(self.model, "_train_counter", None)
        if self._has_begun:
            if counter is not None:
                counter.assign(self._batches)
            return
        self._has_begun = True
        super().on_train_begin(logs)  # type: ignore[misc]
        self.done = self._restored()

    def on_train_end(self, logs=None):
        """Ends at the last time."""
        if (counter := getattr(self.model, "_train_counter", None)) is not None:
            self._batches = counter.numpy()
        if self.is_over:
            super().on_train_end(logs)  # type: ignore[misc]

    def _restored(self):
        """The epochs that a backup has; `fit` would go on there in each of its calls."""
        # seam: tf_keras 2.20.1, Keras 3.15.1.
        if load := getattr(self.model, "_maybe_load_initial_counters_from_ckpt", None):
            return load(self.params["steps"], 0)[0]
        restored = self.model._initial_epoch or 0
        seams.begin_at(self.model, None)
        return restored


def whole_run(host: Any) -> type:
    """The class of a host's list of callbacks that sees several calls of `fit` as one training."""
    return type("Callbacks", (WholeRun, host.callbacks.CallbackList), {})
