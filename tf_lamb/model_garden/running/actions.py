"""Defines Orbit actions that report divergence, noise scale, AdaScale's gain and trust ratios.

Orbit runs training steps in loops of `trainer.steps_per_loop`, and after each loop calls every
action with the output of the loop. The action adds its values to that output, and Orbit writes them
to TensorBoard and to the log. This package's `Runner` makes the actions that the settings of an
experiment ask for. With another runner, pass the actions to it as `train_actions`.
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
        recovery: Model Garden's action that goes back to the last checkpoint, at most
            `trainer.recovery_max_trials` times. It then gives up by raising `RuntimeError`, and the
            run ends. None, the default, ends the run at once.
    """

    def __init__(self, optimizer, model=None, patience: int = 20, recovery=None):
        self._optimizer, self._model = optimizer, model
        self._advice, self._skipped = optimizer._guard.advice, optimizer.skipped_steps
        self._diagnosis = Diagnosis(patience, self._advice)
        self._diagnosis.begin_loss(self._skipped)
        self.recovery = recovery

    def __call__(self, output):
        """Checks whether the run has diverged, and adds the number of skipped steps to `output`.

        `output` is the dict of a loop's results. Steps that were skipped in the loop are logged in
        a warning.

        Raises:
            FloatingPointError: if the run has diverged, and `recovery` is None or has given up. The
                message is a report on the divergence.
            RuntimeError: if `recovery` no longer tries to rescue the run, but the run has not
                diverged by the test of this class.
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
        self._diagnosis.begin_loss(self._skipped)  # the loss is the mean of one loop

    def _recover(self, output, report):
        """Calls `recovery`, which goes back to the last checkpoint if the loss is not finite.

        If `recovery` gives up, this raises `report`, the error on the divergence; or `RuntimeError`
        if `report` is None.
        """
        # `recovery` looks at the loss alone. If there is a report, it gets NaN as the loss, so that
        # a divergence which the loss does not show also counts as one of its trials.
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
        # If the run has gone back to a checkpoint, the readings after that checkpoint are dropped.
        self._averages = [
            *(reading for reading in self._averages if reading.count < averages.count),
            averages,
        ]

    def advice(self) -> str:
        """Returns a text on the critical batch size, the cost of this batch, and a better batch."""
        critical = self._optimizer.noise_scale(self._batch_size)
        precision = noise.precision_text(self._averages, self._optimizer.smoothing)
        return noise.advice_text(critical, self._batch_size, precision)


class AdaScaleProgress:
    """Adds AdaScale's gain, learning rate and progress to a loop's output.

    The progress is counted in steps of the base batch, the smaller batch for which the learning
    rate was tuned. A step of the run is worth as many of them as the gain.

    Args:
        optimizer: the AdaScale optimizer.
        steps: the progress at which the run ends, in steps of the base batch; None for no limit.
    """

    def __init__(self, optimizer, steps: int | None = None):
        self._optimizer, self._steps = optimizer, steps

    def __call__(self, output):
        """Adds `gain`, `base_step` and `scaled_learning_rate` to `output`."""
        output["gain"] = self._optimizer.gain
        output["base_step"] = self._optimizer.base_steps
        output["scaled_learning_rate"] = self._optimizer.scaled_learning_rate

    def advice(self) -> str:
        """Returns a line on the steps of the run, and the steps of the base batch they equal."""
        base_steps, steps = self._optimizer.base_steps, step_of(self._optimizer)
        target = f" of {self._steps:,}" if self._steps else ""
        return f"AdaScale: {steps:,} steps were worth {base_steps:,.0f}{target} of the base batch."

    def is_spent(self) -> bool:
        """Returns whether AdaScale's progress has reached the `steps` of the base batch."""
        return self._steps is not None and self._optimizer.base_steps >= self._steps


class TrustRatios:
    """Reads the trust ratio of every layer, as `tf_lamb.tf_keras.TrustRatios` does.

    Each reading is taken at the last step of a loop, so `every` is rounded up to a multiple of
    `trainer.steps_per_loop`.

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
        """Reads the trust ratios if a reading is due; Orbit calls it after each loop of steps."""
        step = step_of(self.history.optimizer)
        if self._due is None or step >= self._due:
            self.history.read()
            self._due = step + self._every

    def close(self):
        """Reads the ratios of the last step, closes the files, and logs a table of the ratios."""
        self.history.read()
        self.history.close()
        logging.info("%s", self.history.table())
