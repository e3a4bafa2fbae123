"""Orbit actions: what measuring optimizers and trust ratios tell, after each loop of training.

Each is called with the output of a loop, and adds to it: Orbit writes it to TensorBoard and to the
log. `Runner` makes those that an experiment asks for; pass them as `train_actions` to another one.
"""

import functools
import math

from absl import logging

from tf_lamb.api.callbacks.divergence import Diagnosis
from tf_lamb.api.callbacks.trust_ratios import History
from tf_lamb.api.optimizers.guard import ADVICE
from tf_lamb.api.optimizers.observation import observed
from tf_lamb.api.variables import step_of
from tf_lamb.core import checks, noise
from tf_lamb.tensorflow.summaries import Writer


class Divergence:
    """Ends a run that has diverged, before its checkpoint is saved; see `StopOnDivergence`.

    Adds the number of skipped steps; with `on_spike` the latest norm of the gradient and the number
    of spikes, too. `recovery` is Model Garden's action that goes back to the last checkpoint, as
    often as `trainer.recovery_max_trials` says: the run ends when it gives up.
    """

    def __init__(self, optimizer, model=None, patience: int = 20, recovery=None):
        self._optimizer, self._model = optimizer, model
        self._diagnosis, self._skipped = Diagnosis(patience), optimizer.skipped_steps
        self.recovery = recovery

    def __call__(self, output):
        """Adds to the output of a loop; raises `FloatingPointError` with the report."""
        output["skipped_steps"] = skipped = self._optimizer.skipped_steps
        if skipped > self._skipped:
            logging.warning(
                "%d steps were skipped: their gradients were not finite.", skipped - self._skipped
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
        self._skipped = self._optimizer.skipped_steps  # of the checkpoint, where it went back

    def _recover(self, output, report):
        # What diverged without a word in the loss is one trial of recovery, too.
        try:
            self.recovery({**output, "training_loss": math.nan} if report else output)
        except RuntimeError as error:
            why = str(error)
            if skipped := output["skipped_steps"] - self._skipped:
                why += (
                    f" {skipped} steps were skipped, so the weights are as they were before them: "
                    "trainer.recovery_max_trials=-1 lets the run go on."
                )
            raise report or RuntimeError(f"{why}\n{ADVICE}") from error


class NoiseScale:
    """Adds the simple noise scale, in examples; see `tf_lamb.tf_keras.NoiseScale`."""

    def __init__(self, optimizer, batch_size: int):
        self._optimizer, self._batch_size = optimizer, batch_size
        self._averages: list[noise.Averages] = []

    def __call__(self, output):
        """Adds to the output of a loop."""
        output["noise_scale"] = self._optimizer.noise_scale(self._batch_size)
        now = self._optimizer.averages()
        # Where the run went back to a checkpoint, what was read after it is no part of these.
        self._averages = [*(each for each in self._averages if each.count < now.count), now]

    def advice(self) -> str:
        """The critical batch size, what the present batch costs, and a better one."""
        critical = self._optimizer.noise_scale(self._batch_size)
        precision = noise.precision(self._averages, self._optimizer.smoothing)
        return noise.advice(critical, self._batch_size, precision)


class AdaScaleProgress:
    """Adds AdaScale's gain, its rate, and steps of the base batch, which end a run at `steps`."""

    def __init__(self, optimizer, steps: int | None = None):
        self._optimizer, self._steps = optimizer, steps

    def __call__(self, output):
        """Adds to the output of a loop."""
        output["gain"] = self._optimizer.gain
        output["base_step"] = self._optimizer.base_steps
        output["scaled_learning_rate"] = self._optimizer.scaled_learning_rate

    def advice(self) -> str:
        """The progress of training, in steps of the base batch."""
        spent, steps = self._optimizer.base_steps, step_of(self._optimizer)
        asked = f" of {self._steps:,}" if self._steps else ""
        return f"AdaScale: {steps:,} steps were worth {spent:,.0f}{asked} of the base batch."

    def is_spent(self) -> bool:
        """Whether training is over."""
        return self._steps is not None and self._optimizer.base_steps >= self._steps


class TrustRatios:
    """Reads the trust ratio of every layer, as `tf_lamb.tf_keras.TrustRatios` does.

    A reading is of the last step of a loop, and `every` is rounded up to whole loops
    (`trainer.steps_per_loop`).
    """

    def __init__(self, optimizer, directory=None, every=100):
        self._every = checks.integer("every", every)
        optimizer = observed(optimizer)
        if optimizer.observe_trust_ratios() and optimizer.has_traced_a_step():
            raise ValueError(
                "TrustRatios was made after the first step, which does not leave its trust ratios "
                "and is not traced again: make it before the training begins."
            )
        opener = None if directory is None else functools.partial(Writer, directory, optimizer)
        self.history = History(optimizer, opener)
        self._due = None

    def __call__(self, output):
        """Reads, if it is time; Orbit calls this after each loop."""
        step = step_of(self.history.optimizer)
        if self._due is None or step >= self._due:
            self.history.read()
            self._due = step + self._every

    def close(self):
        """Reads the last step, closes the files, and logs the table, outliers first."""
        self.history.read()
        self.history.close()
        logging.info("%s", self.history.table())
