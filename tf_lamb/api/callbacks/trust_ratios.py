"""Keeps the trust ratios of a run, and defines the base class of the callback `TrustRatios`.

A trust ratio is the factor by which an optimizer such as LAMB scales the step of a layer. A reading
is the ratios of all layers after one step.
"""

import array
import functools
import itertools
import math
import os
import statistics
from collections.abc import Callable
from typing import Any

from tf_lamb.api import plots, seams
from tf_lamb.api.callbacks.callback import Callback
from tf_lamb.api.optimizers.observation import (
    NORMS_AND_RATIO,
    log_distance,
    optimizer_to_observe,
    three_digits,
)
from tf_lamb.api.variables import step_of
from tf_lamb.core import messages

_MAX_READINGS = 512  # readings kept for a plot; if there are more, every second one is dropped


class History:
    """Holds the trust ratios of one run.

    Args:
        optimizer: The optimizer to read. Defaults to None: readings are passed to `add`.
        open_writer: A function that makes a writer of TensorBoard's files. Defaults to None: no
            files are written.

    Attributes:
        optimizer: The optimizer to read.
        readings: The number of readings.
        step: The optimizer step of the latest reading.
        latest: The latest reading, a list of `Observation`s.
    """

    def __init__(self, optimizer=None, open_writer: Callable | None = None):
        self.optimizer = optimizer
        self.readings = 0
        self.step = 0
        self.latest: list = []
        self._open_writer = open_writer
        self._writer: Any = None
        self._ratio_ranges: dict = {}  # position -> smallest and largest ratio
        self._clip_counts: dict = {}  # position -> ratios clipped, ratios seen
        self._ratios_by_step: dict = {}  # step -> array of one ratio per layer
        self._reading_stride = 1

    def read(self):
        """Reads the latest step, unless it was read already; also writes TensorBoard's files."""
        step = step_of(self.optimizer)
        if self.readings and step == self.step:
            return
        self.add(step, self.optimizer.trust_ratios())
        if self._open_writer is not None:
            self._writer = self._writer or self._open_writer()
            self._writer.write(step, self.latest)

    def close(self):
        """Closes the files; the next reading opens new ones."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def add(self, step, observations):
        """Adds a reading.

        Args:
            step: The optimizer step.
            observations: The `Observation` of each variable.
        """
        self.readings += 1
        self.step, self.latest = step, list(observations)
        for i, observation in enumerate(self.latest):
            if (ratio := observation.trust_ratio) is None:
                continue
            smallest, largest = self._ratio_ranges.get(i, (ratio, ratio))
            self._ratio_ranges[i] = (min(smallest, ratio), max(largest, ratio))
            clipped, count = self._clip_counts.get(i, (0, 0))
            self._clip_counts[i] = (clipped + observation.clipped, count + observation.ratios)
        if (self.readings - 1) % self._reading_stride == 0:
            self._ratios_by_step[step] = _layer_ratios(self.latest)
        if len(self._ratios_by_step) > _MAX_READINGS:
            # Every second reading is dropped here, and every second one is not kept from now on.
            self._ratios_by_step = dict(
                itertools.islice(self._ratios_by_step.items(), None, None, 2)
            )
            self._reading_stride *= 2

    def curves(self) -> plots.Curves:
        """Returns name of a layer -> step -> ratio.

        After more than 512 readings, the curves have only some of them, at most 513: evenly spaced
        ones and the latest.
        """
        readings = {**self._ratios_by_step, self.step: _layer_ratios(self.latest)}
        names = {
            observation.layer: observation.joined or observation.path
            for observation in self.latest
            if observation.ratios
        }
        return {
            name: {step: readings[step][i] for step in sorted(readings)}
            for i, name in enumerate(names.values())
        }

    def table(self):
        """Returns the latest reading as text, one line per variable, outliers first."""
        if not self.readings:
            return "No trust ratios have been read: no step has been trained."
        median = _median_ratio(self.latest)
        order = sorted(enumerate(self.latest), key=lambda pair: _outlier_order(pair[1], median))
        header = ("variable", "weight norm", "update norm", "trust ratio", "of median",
                  "smallest", "largest", "clipped", "")  # fmt: skip
        rows = [header, *(self._table_row(i, observation, median) for i, observation in order)]
        width = max(len(row[0]) for row in rows)
        line = f"{{:{width}}}" + "  {:>11}" * 3 + "  {:>9}" * 4 + "  {}"
        title = (
            f"Trust ratios of step {self.step:,}, the farthest from their median "
            f"({three_digits(median)}) first; smallest, largest and clipped are of "
            f"{self.readings:,} reading{'s' if self.readings > 1 else ''}."
        )
        return "\n".join([title, "", *(line.format(*row).rstrip() for row in rows)])

    def _table_row(self, i, observation, median):
        """Returns the cells of a variable's row in the table of trust ratios, as texts.

        `i` is the position of the variable, and `median` the median of the ratios of all layers.
        """
        if observation.trust_ratio is None:
            reason = "no step yet" if observation.ratios else "excluded"
            return (observation.path, "-", "-", reason, *"----", "")
        relative_to_median = observation.trust_ratio / median if median else math.nan
        clipped, count = self._clip_counts[i]
        note = f"joined in {observation.joined}" if observation.joined else ""
        note = f"mean of {observation.ratios} slices" if observation.ratios > 1 else note
        numbers = (getattr(observation, name) for name in NORMS_AND_RATIO)
        return (
            observation.path, *map(three_digits, numbers), f"{relative_to_median:.2g}x",
            *map(three_digits, self._ratio_ranges[i]), f"{clipped} of {count}", note,
        )  # fmt: skip


def layers_with_ratio(observations):
    """Returns one observation for each layer that has a trust ratio."""
    layers = {
        observation.layer: observation
        for observation in observations
        if observation.trust_ratio is not None
    }
    return list(layers.values())


def _layer_ratios(observations):
    """Returns a float64 array with the trust ratio of each layer; nan before its first step.

    The variables of a layer may share one ratio. Variables without a ratio are left out.
    """
    layers = {
        observation.layer: observation.trust_ratio
        for observation in observations
        if observation.ratios
    }
    return array.array("d", (math.nan if ratio is None else ratio for ratio in layers.values()))


def _median_ratio(observations):
    """Returns the median of all layers' finite ratios; nan if there are none."""
    ratios = (observation.trust_ratio for observation in layers_with_ratio(observations))
    finite_ratios = [ratio for ratio in ratios if math.isfinite(ratio)]
    return statistics.median(finite_ratios) if finite_ratios else math.nan


def _outlier_order(observation, median):
    """Returns a sort key that puts the ratios that are farthest from the median first.

    The distance is that of the logarithms. Variables without a ratio come last.
    """
    if observation.trust_ratio is None:
        return (1, 0.0)
    return (0, -log_distance(observation.trust_ratio, median))


class TrustRatios(Callback):
    """A callback that shows the trust ratio of every layer during training.

    Every `every` optimizer steps it reads, for each variable with a trust ratio,

        weight_norm   |w|, the norm of the variable before the step
        update_norm   |u|, the norm that the ratio divides by: for LARS, its full denominator
        trust_ratio   the factor on the layer's step, within its bounds

    and the number of ratios that a bound has clipped. The step leaves these numbers on the device
    and does not wait for them. Training is the same with and without the callback. Checkpoints do
    not contain the readings.

    TensorBoard gets the scalars `weight_norm/PATH`, `update_norm/PATH` and `trust_ratio/PATH`, the
    histograms `weight_norms`, `update_norms` and `trust_ratios` over all layers, and the scalar
    `clipped_trust_ratios`. When training ends, the callback prints a table, with the ratio farthest
    from the median first. `plot()` draws the ratios over the steps.

    A variable that is excluded from layer adaptation has no ratio; the table marks it. The
    optimizer's argument `treatments` can join variables, which then share a ratio: each of them
    shows it. It can also slice a variable: the callback then reports the means over the slices.
    With gradient accumulation, a step is an update. The optimizer may be inside a wrapper such as
    `LossScaleOptimizer`.

    Args:
        directory: The folder for TensorBoard's files, for example "logs/trust_ratios". Defaults to
            None: no files, only the table.
        every: The optimizer steps between two readings; the last step is also read. Defaults to
            100.
        print_fn: The function that prints the table, or None. Defaults to `print`.

    Attributes:
        history: The latest reading (`latest`, a list of `Observation`s), its `step`, and the number
            of readings (`readings`).

    Raises:
        TypeError: when training begins, for an optimizer without trust ratios.
        ValueError, TypeError: for an `every` that is not a positive integer.
        ImportError: for a directory, if TensorFlow (which writes it) or TensorBoard is missing.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    >>> model.compile(optimizer=tf_lamb.LAMB(0.01), loss="mse")
    >>> watch = tf_lamb.TrustRatios(every=1, print_fn=None)
    >>> _ = model.fit(tf.ones((8, 4)), tf.ones((8, 2)), verbose=0, callbacks=[watch])
    >>> print(watch.table().splitlines()[0].partition(",")[0])
    Trust ratios of step 1
    """

    _make_writer: Callable  # of a subclass: directory, optimizer -> a writer of TensorBoard's files

    def __init__(
        self,
        directory: str | os.PathLike | None = None,
        every: int = 100,
        print_fn: Callable[[str], Any] | None = print,
    ):
        super().__init__(every)
        self._directory = directory
        self._print_fn = print_fn
        self.history = History()
        if directory is not None:
            self._check_directory()

    def _check_directory(self):
        """Raises ImportError, before training begins, if TensorBoard is missing."""
        messages.require_installed(
            f"TrustRatios({self._directory!r})", "tensorboard", install="tensorboard"
        )

    def _optimizer_to_read(self, model):
        """Returns the optimizer, and makes its steps record trust ratios.

        A training step that was compiled before, without the recording, is compiled again. If it is
        another optimizer than before, a new `History` begins, and the old readings are dropped.
        """
        optimizer = optimizer_to_observe(model.optimizer)
        if optimizer.observe_trust_ratios():
            seams.drop_traced_step(model)
        if self.history.optimizer is not optimizer:
            opener = functools.partial(self._make_writer, self._directory, optimizer)
            self.history = History(optimizer, None if self._directory is None else opener)
        return optimizer

    def on_train_end(self, logs=None):
        """Reads the optimizer after the last step, and prints the table."""
        super().on_train_end(logs)
        self.history.close()
        if self._print_fn:
            self._print_fn(self.table())

    def table(self) -> str:
        """Returns the latest reading as text, one line per variable, outliers first."""
        return self.history.table()

    def plot(self, axes: Any = None) -> Any:
        """Draws the median and the range of all layers' ratios, and the ratios of three layers.

        These three end farthest from the median.

        Args:
            axes: The matplotlib `Axes` to draw in. Defaults to None: that of a new figure.

        Returns:
            The `Axes`.

        Raises:
            ValueError: before the first trust ratio.
        """
        return plots.trust_ratios(self.history.curves(), axes)

    def _at_reading(self):
        """Adds the latest trust ratios to the history, and to TensorBoard's files, if any."""
        self.history.read()
