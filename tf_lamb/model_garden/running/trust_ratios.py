"""Trust ratios on show in a run of the Model Garden: an action that Orbit calls."""

import functools

from absl import logging

from tf_lamb.api.callbacks.trust_ratios import History
from tf_lamb.api.optimizers.observation import observed
from tf_lamb.api.variables import step_of
from tf_lamb.core import checks
from tf_lamb.tensorflow.summaries import Writer


class TrustRatios:
    """An Orbit action that reads the trust ratio of every layer after a loop of steps.

    What is read, and what TensorBoard gets, is what `tf_lamb.tf_keras.TrustRatios` says. An action
    is called after each loop: a reading is of the last step of a loop, and `every` is rounded up
    to whole loops (`trainer.steps_per_loop`).

    Args:
        optimizer: The trainer's, in whatever wrapper. Its first step must be yet to come, for a
            step that was traced does not learn to leave its ratios.
        directory: Where TensorBoard's files go, say `MODEL_DIR/trust_ratios`; None for no files.
        every: Optimizer steps from one reading to the next. Defaults to 100.

    Attributes:
        history: as there.

    Raises:
        TypeError: for an optimizer that has no trust ratios.
        ValueError: for an optimizer that has trained.
        ValueError, TypeError: for an `every` that is no whole number.

    Example:

        action = TrustRatios(trainer.optimizer, os.path.join(model_dir, "trust_ratios"))
        train_lib.run_experiment(..., trainer=trainer, train_actions=[action])
        action.close()  # reads the last step and logs the table
    """

    def __init__(self, optimizer, directory=None, every=100):
        self._every = checks.whole("every", every)
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

    def table(self):
        """The latest reading as text, a line a variable, outliers first."""
        return self.history.table()

    def close(self):
        """Reads the last step, closes the files, logs the table and returns it."""
        self.history.read()
        self.history.close()
        logging.info("%s", self.table())
        return self.table()
