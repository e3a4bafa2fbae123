"""Defines Orbit actions that report divergence, noise scale, AdaScale's gain and trust ratios.

Orbit calls each action with the output of a loop of training steps. The action adds its values to
that output, and Orbit writes them to TensorBoard and to the log. `Runner` makes the actions that an
experiment asks for; with another runner, pass them as `train_actions`.
"""

import functools
import math

from absl import logging

from tf_lamb.api.callbacks.divergence import Diagnosis
from tf_lamb.api.callbacks.trust_ratios import History
from tf_lamb.api.optimizers.observation import optimizer_to_observe
from tf_lamb.api.variables import step_of
from tf_lamb.core import checks, noise
from tf_lamb.tensorflow.summaries import Writer


class Divergence:
    """Ends a run that has diverged, before its checkpoint is saved; see `StopOnDivergence`.

    Adds the number of skipped steps to the output of a loop. An optimizer with `on_spike` also adds
    the latest norm of the gradient and the number of spikes.

    Args:
        optimizer: the optimizer whose steps are watched.
        model: the model whose weights are checked; None checks those that the optimizer trains.
        patience: the run has diverged after this number of skipped steps in a row, or if most of
            the last `2 * patience` steps were skipped.
        recovery: Model Garden's action that goes back to the last checkpoint, as often as
            `trainer.recovery_max_trials` says. The run ends when the action gives up.
    """

    def __init__(self, optimizer, model=None, patience: int = 20, recovery=None):
        self._optimizer, self._model = optimizer, model
        self._advice, self._skipped = optimizer._guard.advice, optimizer.skipped_steps
        self._diagnosis = Diagnosis(patience, self._advice)
        self.recovery = recovery

    def __call__(self, output):
        """Adds the counts to `output`, a dict of the loop's results.

        Raises:
            FloatingPointError: with the report, if the run has diverged and `recovery` is None or
                has given up.
            RuntimeError: if `recovery` has given up and there is no report.
        """
        output["skipped_steps"] = skipped_steps = self._optimizer.skipped_steps
        if skipped_steps > self._skipped:
            logging.warning(
                "%d steps were skipped: their gradients were not finite.",
                skipped_steps - self._skipped,
            )
        if (norm := self._optimizer.gradient_norm) is not None:
            output.update(gradient_norm=norm, spiked_steps=self._optimizer.spiked_steps)
        loss, report = output.get("training_loss"), None
        try:
            loss = None if loss is None else float(loss)
            self._diagnosis.check(self._optimizer, loss, self._model)
        except FloatingPointError as error:
            report = error
        if self.recovery is not None:
            self._recover(output, report)
        elif report:
            raise report
        self._skipped = self._optimizer.skipped_steps  # fewer if recovery restored a checkpoint

    def _recover(self, output, report):
        """Calls `recovery`, and raises the report once it has given up."""
        # A divergence that the loss does not show counts as one trial of recovery, too.
        try:
            self.recovery({**output, "training_loss": math.nan} if report else output)
        except RuntimeError as error:
            message = str(error)
            if newly_skipped := output["skipped_steps"] - self._skipped:
                message += (
                    f" {newly_skipped} steps were skipped, so the weights are as they were before "
                    "them: trainer.recovery_max_trials=-1 lets the run go on."
                )
            raise report or RuntimeError(f"{message}\n{self._advice}") from error


class NoiseScale:
    """Adds the simple noise scale, in examples, to a loop's output.

    See `tf_lamb.tf_keras.NoiseScale`.

    Args:
        optimizer: the `MeasureNoise` or `AdaScale` optimizer.
        batch_size: the global batch size, in examples.
    """

    def __init__(self, optimizer, batch_size: int):
        self._optimizer, self._batch_size = optimizer, batch_size
        self._averages: list[noise.Averages] = []

    def __call__(self, output):
        """Adds `noise_scale` to `output`, a dict of the loop's results."""
        output["noise_scale"] = self._optimizer.noise_scale(self._batch_size)
        averages = self._optimizer.averages()
        # After a run went back to a checkpoint, the readings after that checkpoint are dropped.
        self._averages = [
            *(reading for reading in self._averages if reading.count < averages.count),
            averages,
        ]

    def advice(self) -> str:
        """Returns text on the critical batch size, the cost of this batch, and a better batch."""
        critical = self._optimizer.noise_scale(self._batch_size)
        precision = noise.precision_text(self._averages, self._optimizer.smoothing)
        return noise.advice_text(critical, self._batch_size, precision)


class AdaScaleProgress:
    """Adds AdaScale's gain, its learning rate, and the progress in steps of the base batch.

    Args:
        optimizer: the AdaScale optimizer.
        steps: the number of steps of the base batch at which the run ends; None for no end.
    """

    def __init__(self, optimizer, steps: int | None = None):
        self._optimizer, self._steps = optimizer, steps

    def __call__(self, output):
        """Adds `gain`, `base_step` and `scaled_learning_rate` to `output`."""
        output["gain"] = self._optimizer.gain
        output["base_step"] = self._optimizer.base_steps
        output["scaled_learning_rate"] = self._optimizer.scaled_learning_rate

    def advice(self) -> str:
        """Returns a line on the steps taken, and how many steps of the base batch those equal."""
        base_steps, steps = self._optimizer.base_steps, step_of(self._optimizer)
        target = f" of {self._steps:,}" if self._steps else ""
        return f"AdaScale: {steps:,} steps were worth {base_steps:,.0f}{target} of the base batch."

    def is_spent(self) -> bool:
        """Returns whether the run has taken all its steps of the base batch."""
        return self._steps is not None and self._optimizer.base_steps >= self._steps


class TrustRatios:
    """Reads the trust ratio of every layer, as `tf_lamb.tf_keras.TrustRatios` does.

    Each reading is taken at the last step of a loop, so `every` is rounded up to whole loops
    (`trainer.steps_per_loop`).

    Args:
        optimizer: the optimizer that computes the trust ratios.
        directory: the folder of the TensorBoard files; None writes none.
        every: the number of steps between two readings.

    Raises:
        ValueError: if `every` is less than 1, or if the optimizer has traced a step already.
        TypeError: if `every` is no whole number.
    """

    def __init__(self, optimizer, directory=None, every=100):
        self._every = checks.integer("every", every)
        optimizer = optimizer_to_observe(optimizer)
        if optimizer.observe_trust_ratios() and optimizer.has_traced_a_step():
            raise ValueError(
                "TrustRatios was made after the first step, which does not leave its trust ratios "
                "and is not traced again: make it before the training begins."
            )
        opener = None if directory is None else functools.partial(Writer, directory, optimizer)
        self.history = History(optimizer, opener)
        self._due = None

    def __call__(self, output):
        """Reads the trust ratios if a reading is due. Orbit calls this after each loop."""
        step = step_of(self.history.optimizer)
        if self._due is None or step >= self._due:
            self.history.read()
            self._due = step + self._every

    def close(self):
        """Reads the ratios of the last step, closes the files, and logs the table of variables."""
        self.history.read()
        self.history.close()
        logging.info("%s", self.history.table())
