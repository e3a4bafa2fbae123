"""Defines the callbacks for the noise scale and for AdaScale.

AdaScale's base batch is the small batch for which the learning rate was tuned.
"""

import bisect
from typing import Any

from tf_lamb.api import plots
from tf_lamb.api.callbacks.callback import Callback
from tf_lamb.api.noise.adascale import AdaScale
from tf_lamb.api.noise.measured import MeasureNoise
from tf_lamb.api.variables import unwrapped
from tf_lamb.core import checks, noise
from tf_lamb.core.messages import warn


def measuring_optimizer(callback, model, kind, hint: str):
    """Returns a model's `MeasureNoise` or `AdaScale`; warns of synchronized batch normalization.

    Args:
        callback: The callback that needs it, for the error.
        model: A compiled model.
        kind: The class of the optimizer: `MeasureNoise`, or `AdaScale`.
        hint: What the callback needs, for the error.

    Raises:
        ValueError: if the model has no such optimizer.
    """
    optimizer = unwrapped(model.optimizer, kind)
    if not isinstance(optimizer, kind):
        optimizer_name = type(model.optimizer).__name__
        raise ValueError(f"{type(callback).__name__} {hint}, but it is {optimizer_name}.")
    layers = model._flatten_layers() if hasattr(model, "_flatten_layers") else model.layers
    if synchronized := [layer.name for layer in layers if getattr(layer, "synchronized", False)]:
        warn(synchronized_message(synchronized))
    return optimizer


def synchronized_message(layers) -> str:
    """Returns the warning that these layers, normalized over all replicas, bias the noise."""
    return (
        f"{', '.join(map(repr, layers))} normalizes with statistics of all replicas together "
        "(synchronized=True). The gradients of the replicas are then not independent, and their "
        "noise is measured too small. Leave synchronized out."
    )


class NoiseScale(Callback):
    """Estimates from the noise of the gradients how large a batch is useful.

        B_simple = tr(Sigma) / |G|^2

    Sigma and G are the covariance and the mean of the gradient of one example. B_simple, in
    examples, is about the critical batch size B_crit. At that batch, training takes twice the
    minimum number of steps and twice the minimum number of examples. A smaller batch takes more
    steps, a larger one more examples. For a batch B, these are the steps S and the examples E:

        S/S_min = 1 + B_crit/B        E/E_min = 1 + B/B_crit

    B_simple grows during training. The callback does not change training. It adds `noise_scale` to
    the logs of each epoch, for `History` and TensorBoard. The attribute `history` has every
    reading. It is emptied for another optimizer; if the optimizer is restored to an earlier state,
    the readings after that state are dropped. `plot()` draws the readings. The callback prints its
    advice when training ends.

    `standard_error()` returns the relative standard error of the last reading, which it computes
    from the scatter of the earlier readings. It is nan unless several of these lie within the last
    1/(1 - smoothing) updates, over which the measurement averages. In a run that was restored, only
    the readings since then count.

    Args:
        batch_size: The examples of one update, over all replicas and micro-batches.
        every: The batches between two readings, regardless of `steps_per_execution`; each reading
            waits for the device. Defaults to 100.
        verbose: Whether to print the advice at the end. Defaults to True.

    Attributes:
        batch_size: The examples of one update.
        history: A dict of two lists of equal length: "step", the updates done at each reading, and
            "noise_scale", in examples, nan where it is undefined.

    Raises:
        ValueError: when training begins, for an optimizer that is neither `MeasureNoise` nor
            `AdaScale`.

    Example:

    >>> import numpy as np, tensorflow as tf, tf_lamb
    >>> model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    >>> inner = tf_lamb.LAMB(gradient_accumulation_steps=4)
    >>> model.compile(optimizer=tf_lamb.MeasureNoise(inner), loss="mse")
    >>> x, y = np.random.normal(size=(64, 4)), np.random.normal(size=(64, 2))
    >>> watch = tf_lamb.NoiseScale(batch_size=4 * 8, verbose=False)
    >>> _ = model.fit(x, y, batch_size=8, callbacks=[watch], verbose=0)
    >>> sorted(watch.history)
    ['noise_scale', 'step']

    References:
        - McCandlish et al., An Empirical Model of Large-Batch Training,
          https://arxiv.org/abs/1812.06162
    """

    def __init__(self, batch_size: int, *, every: int = 100, verbose: bool = True):
        super().__init__(every)
        self.batch_size = checks.integer("batch_size", batch_size)
        self._verbose = checks.flag("verbose", verbose)
        self._forget()

    def _forget(self):
        """Drops all noise scales and moving averages that were read so far."""
        self.history: dict[str, list] = {"step": [], "noise_scale": []}
        self._averages: list[noise.Averages] = []

    def _forget_since(self, step, count):
        """Drops the noise scales that were read after step `step`.

        It also drops the moving averages over more than `count` steps.
        """
        end = bisect.bisect(self.history["step"], step)
        for values in self.history.values():
            del values[end:]
        counts = [averages.count for averages in self._averages]
        del self._averages[bisect.bisect(counts, count) :]

    def _optimizer_to_read(self, model):
        """Returns the model's `MeasureNoise` or `AdaScale`, and drops readings that are void.

        If it is another optimizer than before, all readings are dropped. If it was restored to an
        earlier state, the readings after that state are dropped. Raises ValueError if the model has
        no such optimizer.
        """
        advice = "compile with optimizer=tf_lamb.MeasureNoise(optimizer)"
        optimizer = measuring_optimizer(
            self, model, MeasureNoise, f"needs an optimizer that measures: {advice}"
        )
        if optimizer is not self._optimizer:
            self._forget()
        elif self.history["step"]:  # the optimizer may have been restored to an earlier state
            self._forget_since(optimizer.updates, optimizer.averages().count)
        return optimizer

    def _at_reading(self):
        """Adds the present noise scale and its moving averages to those that were read before.

        If the optimizer was restored to an earlier state during `fit`, the readings after that
        state are dropped first. Does nothing if this step was already read.
        """
        step, steps = self._optimizer.updates, self.history["step"]
        if steps[-1:] == [step]:  # an epoch has ended at this step, too
            return
        if steps and step < steps[-1]:
            # The optimizer was restored to an earlier state during `fit`. As it has made at most
            # `updates` updates since, readings up to `step - updates` are from before that state.
            updates = -(-self._every // self._optimizer.micro_batches)
            self._forget_since(step - updates, self._optimizer.averages().count - updates)
        self.history["step"].append(step)
        self.history["noise_scale"].append(self._optimizer.noise_scale(self.batch_size))
        averages = self._optimizer.averages()
        batches_measured = averages.count * self._optimizer.micro_batches
        # If all steps in the averages are of this `fit`, it began with averages over 0 steps. These
        # are added as the first reading.
        if not self._averages and batches_measured <= self._batch_count:
            self._averages.append(noise.Averages(0.0, 0.0, 0.0))
        self._averages.append(averages)

    def on_epoch_end(self, epoch, logs=None):
        """Reads the noise scale, and adds it to the logs of the epoch."""
        self._read()
        if logs is not None:
            logs["noise_scale"] = self.history["noise_scale"][-1]

    def on_train_end(self, logs=None):
        """Reads the optimizer after the last step; with `verbose`, prints the advice."""
        super().on_train_end(logs)
        if self._verbose:
            print(self.advice())

    def plot(self, axes: Any = None) -> Any:
        """Draws the noise scale over the steps, and the batch size.

        Args:
            axes: The matplotlib `Axes` to draw in. Defaults to None: that of a new figure.

        Returns:
            The `Axes`.

        Raises:
            ValueError: before the first noise scale.
        """
        curve = dict(zip(*self.history.values(), strict=True))
        return plots.noise_scale(curve, self.batch_size, axes)

    def standard_error(self) -> float:
        """Returns the relative standard error of the last reading; nan if it is unknown.

        It is unknown before `fit`, and as long as there are too few readings.
        """
        if self._optimizer is None:
            return float("nan")
        return noise.standard_error(self._averages, self._optimizer.smoothing)

    def advice(self) -> str:
        """Returns a text: the critical batch size, the cost of the present one, a better one.

        Before `fit` the text says that nothing was measured.
        """
        if self._optimizer is None:
            return "Nothing was measured so far: pass this callback to fit."
        readings = self.history["noise_scale"]
        precision = noise.precision_text(self._averages, self._optimizer.smoothing)
        return noise.advice_text(
            readings[-1] if readings else float("nan"), self.batch_size, precision
        )


class StopAtBaseSteps(Callback):
    """Ends `fit` when `AdaScale` has made the progress of `steps` steps of the base batch.

    The base batch is the small batch for which the learning rate was tuned. This callback adds
    `gain` and `base_step` to the logs of each epoch. Give `fit` enough epochs: the number of epochs
    of the run with the base batch, times the scale, is always enough. A warning is issued if
    training ends before.

    Args:
        steps: The number of optimizer steps of the run with the base batch.
        every: The batches between two checks, regardless of `steps_per_execution`; each check waits
            for the device. Defaults to 1.

    Raises:
        ValueError: when training begins, for an optimizer that is not `AdaScale`.

    Example:

    >>> import numpy as np, tensorflow as tf, tf_lamb
    >>> model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    >>> inner = tf_lamb.LARS(0.1, gradient_accumulation_steps=4)
    >>> model.compile(optimizer=tf_lamb.AdaScale(inner, scale=4), loss="mse")
    >>> x, y = np.random.normal(size=(64, 4)), np.random.normal(size=(64, 2))
    >>> stop = tf_lamb.StopAtBaseSteps(8)
    >>> _ = model.fit(x, y, batch_size=8, epochs=4, callbacks=[stop], verbose=0)
    >>> model.optimizer.base_steps >= 8
    True
    """

    def __init__(self, steps: int, *, every: int = 1):
        super().__init__(every)
        self.steps = checks.integer("steps", steps)

    def _optimizer_to_read(self, model):
        """Returns the model's `AdaScale`; raises ValueError if it has none."""
        return measuring_optimizer(self, model, AdaScale, "needs optimizer=tf_lamb.AdaScale(...)")

    def on_train_begin(self, logs=None):
        """Ends a resumed run that needs no more steps; Keras still trains one batch of it."""
        super().on_train_begin(logs)
        self._at_reading()

    def on_train_batch_begin(self, batch, logs=None):
        """Counts batches, but does not read; `on_train_batch_end` reads after the batch."""
        self._count_batches(batch)

    def on_train_batch_end(self, batch, logs=None):
        """Reads the optimizer if a reading is due."""
        if self._is_due():
            self._read()

    def on_train_end(self, logs=None):
        """Warns if training ends before it has made the progress of `steps` base batch steps."""
        super().on_train_end(logs)
        if (base_steps := self._optimizer.base_steps) < self.steps:
            warn(
                f"StopAtBaseSteps: training has ended after {base_steps:,.1f} of "
                f"{self.steps:,} base steps: give fit more epochs."
            )

    def _at_reading(self):
        """Makes `fit` end when its progress is worth `steps` steps of the base batch.

        AdaScale measures the progress: a step of the large batch is worth several of the base
        batch.
        """
        if self._optimizer.base_steps >= self.steps:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        """Adds AdaScale's gain and its number of base batch steps to the logs of the epoch."""
        self._read()
        if logs is not None:
            logs["gain"] = self._optimizer.gain
            logs["base_step"] = self._optimizer.base_steps
