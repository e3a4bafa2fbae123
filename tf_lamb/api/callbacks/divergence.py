"""Ends a diverged run with a report, and defines the base class of `StopOnDivergence`."""

import collections
import math
from typing import Any

from tf_lamb.api import seams
from tf_lamb.api.callbacks.callback import MODELS_WITH_RISING_RATE, Callback
from tf_lamb.api.optimizers.guard import ALL_FINITE_TEXT
from tf_lamb.api.optimizers.observation import NORMS_AND_RATIO, start_observing, three_digits
from tf_lamb.api.variables import our_optimizer, step_of, waiting_micro_batches
from tf_lamb.core import checks

_MAX_VARIABLES = 5  # the largest number of variables in a report
# The advice of a report if the optimizer trains none of the weights that are not finite.
_UNTRAINED_ADVICE = (
    "The optimizer has not made them so: a layer such as BatchNormalization also averages batches "
    "whose step is skipped, and a NaN stays in its average. Leave such batches out, and begin "
    "from a checkpoint of before; tf_lamb's GhostBatchNormalization (replace_batch_normalization) "
    "keeps averages that are finite."
)


class Diagnosis:
    """Decides whether a run has diverged, from readings of its optimizer and loss over time.

    Args:
        patience: The number of steps skipped in a row that counts as a divergence.
        advice: What usually helps, the last line of the report.
        keep: The number of readings in the report. Defaults to 5.
    """

    def __init__(self, patience, advice, keep=5):
        self._advice = advice
        # Pairs (steps tried, steps skipped), both counted from the beginning of the run.
        self._attempts: collections.deque = collections.deque()
        self._readings: collections.deque = collections.deque(maxlen=keep)  # (step, observations)
        self._patience = patience
        self._step = self._skipped = self._skipped_before = self._skipped_at_loss_start = 0

    def begin_loss(self, skipped):
        """Says that the mean loss begins anew, and how many steps were skipped before it does."""
        self._skipped_at_loss_start = skipped

    def add(self, step, skipped, loss, nonfinite_paths, observations, untrained=False):
        """Adds a reading, and returns the report if the run has diverged by now.

        Args:
            step: The number of steps that the optimizer has done.
            skipped: The number of steps that it has skipped so far.
            loss: The mean loss since `begin_loss`, or None.
            nonfinite_paths: The paths of the variables that are not finite.
            observations: The `Observation` of each variable with a trust ratio.
            untrained: Whether the optimizer trains none of the variables that are not finite.
                Defaults to False.

        Returns:
            The report if training has diverged, else None.
        """
        if step != self._step or skipped < self._skipped:  # a step was taken, or a new run began
            self._skipped_before = skipped
        if step < self._step or skipped < self._skipped:
            self._attempts.clear()
        self._skipped_at_loss_start = min(self._skipped_at_loss_start, skipped)
        self._step, self._skipped = step, skipped
        if self._readings and self._readings[-1][0] == step:
            self._readings.pop()
        self._readings.append(
            (step, {observation.path: observation for observation in observations})
        )
        if nonfinite_paths:
            names = ", ".join(map(repr, nonfinite_paths[:_MAX_VARIABLES]))
            more = (
                f" and {len(nonfinite_paths) - _MAX_VARIABLES} more"
                if len(nonfinite_paths) > _MAX_VARIABLES
                else ""
            )
            return self._report_text(
                f"the weights of {names}{more} are not finite",
                nonfinite_paths,
                _UNTRAINED_ADVICE if untrained else self._advice,
            )
        is_loss_nonfinite = loss is not None and not math.isfinite(loss)
        if skips := self._skips_text(step + skipped, skipped):
            detail = f", and the loss is {loss}" if is_loss_nonfinite else ""
            return self._report_text(f"{skips} skipped: their gradients were not finite{detail}")
        # A batch whose step is skipped makes the mean loss non-finite, but no weight.
        if is_loss_nonfinite and skipped == self._skipped_at_loss_start:
            return self._report_text(f"the loss is {loss}")
        return None

    def _skips_text(self, attempts, skipped):
        """Records the attempts, and returns words on the skips if they show a divergence.

        It returns None if they do not. They do if too many were skipped in a row, or more than half
        of the latest ones.

        Args:
            attempts: The number of steps taken or skipped so far.
            skipped: The number of steps skipped so far.
        """
        self._attempts.append((attempts, skipped))
        # The window starts at the latest reading since which 2 x patience or more steps were tried.
        while len(self._attempts) > 1 and attempts - self._attempts[1][0] >= 2 * self._patience:
            self._attempts.popleft()
        if (skipped_in_a_row := skipped - self._skipped_before) >= self._patience:
            return f"at least {skipped_in_a_row:,} more were tried and all"
        span, skips = (
            end - start for end, start in zip(self._attempts[-1], self._attempts[0], strict=True)
        )
        if span >= 2 * self._patience and 2 * skips > span:
            return f"{skips:,} of the last {span:,} that were tried had been"
        return None

    def check(self, optimizer, loss, model=None):
        """Reads an optimizer and all weights of a model, and raises if the run has diverged.

        Args:
            optimizer: The optimizer, without wrappers.
            loss: The mean loss since `begin_loss`, or None.
            model: The model whose weights are checked. Defaults to None: only the weights that the
                optimizer trains are checked, not the moving averages of batch normalization.

        Raises:
            FloatingPointError: if the run has diverged; its message is the report.
        """
        try:
            observations = optimizer.trust_ratios()
        except ValueError:  # the optimizer does not record trust ratios
            observations = []
        nonfinite_paths, plan = optimizer.nonfinite_weights(model), optimizer.plan
        untrained = plan is not None and not set(nonfinite_paths) & set(plan.names)
        skipped = optimizer.skipped_steps
        if optimizer._guard.is_on and waiting_micro_batches(optimizer):
            loss = None  # it includes batches of an update that may yet be skipped
        if report := self.add(
            step_of(optimizer), skipped, loss, nonfinite_paths, observations, untrained
        ):
            raise FloatingPointError(report)

    def _report_text(self, reason, nonfinite_paths=(), advice=""):
        """Returns the text of the report.

        Args:
            reason: What shows that the run has diverged.
            nonfinite_paths: The paths of the variables that are not finite. Defaults to none.
            advice: The last line. Defaults to "": a line that says that all weights are finite, and
                what usually helps.
        """
        lines = [f"Training has diverged: at step {self._step:,}, {reason}."]
        if table := self._table_lines(nonfinite_paths):
            lines += ["", *table, ""]
        return "\n".join([*lines, advice or f"{ALL_FINITE_TEXT} {self._advice}"])

    def _table_lines(self, nonfinite_paths):
        """Returns the lines of a table on the last readings before the divergence, for the report.

        For each variable and each reading it has the norm of the weight, the norm of the update,
        and the trust ratio. Variables that are not finite come first, then those whose norms grow
        fastest.
        """
        _, latest = self._readings[-1]
        paths = [path for path in [*nonfinite_paths, *self._paths_by_growth()] if path in latest]
        paths = list(dict.fromkeys(paths))[:_MAX_VARIABLES]
        if not paths:
            return []
        width = max(map(len, paths))
        format_row = f"{{:{width}}}  {{:>9}}  {{:>11}}  {{:>11}}  {{:>11}}".format
        lines = [format_row("variable", "step", "weight norm", "update norm", "trust ratio")]
        for path in paths:
            for i, (step, observations) in enumerate(self._readings):
                numbers = (
                    three_digits(getattr(observations[path], name)) for name in NORMS_AND_RATIO
                )
                lines.append(format_row("" if i else path, f"{step:,}", *numbers))
        return lines

    def _paths_by_growth(self):
        """Returns the paths of the variables with a trust ratio, sorted by growth of their norms.

        The growth is the factor from the oldest to the latest reading, of the norm of the weight or
        of the update, whichever grew more. The fastest growing variable is first.
        """
        (_, oldest), (_, newest) = self._readings[0], self._readings[-1]
        growth = {
            path: max(
                _growth(oldest[path].weight_norm, latest.weight_norm),
                _growth(oldest[path].update_norm, latest.update_norm),
            )
            for path, latest in newest.items()
            if latest.trust_ratio is not None and path in oldest
        }
        return sorted(growth, key=growth.__getitem__, reverse=True)


def _growth(before, after):
    """Returns the factor by which a norm has grown between two readings.

    It is infinite if the earlier norm is 0, unknown or not finite, or if the later one is unknown
    or NaN.
    """
    if not before or not math.isfinite(before) or after is None or math.isnan(after):
        return math.inf
    return after / before


class StopOnDivergence(Callback):
    """A callback that ends a diverged run with a report.

    Every `every` optimizer steps, and at the end of each epoch, it checks all weights of the model,
    the loss of the epoch and the skipped steps (`on_nonfinite="skip"`). It raises an error if
    weights are not finite (moving averages of batch normalization included), if `patience` steps in
    a row were skipped, if more than half of the last 2 x `patience` steps were skipped, or if the
    loss is not finite although no step was skipped in this epoch. The message gives

        the variables, and the step
        the weight norm, update norm and trust ratio of each in the last readings; if all weights
            are finite, of the variables with the largest growth of norms
        a note if all weights are finite: the cause is then in the batches, which a callback does
            not see, or in the loss
        the usual remedies

    It raises at the check that finds broken weights. Stand it in front of `ModelCheckpoint` and
    `BackupAndRestore` in the list of callbacks: what they save at the end of an epoch was then
    checked before. If some steps were skipped, but not enough for an error, the optimizer itself
    warns when `fit` ends. If the optimizer has `on_spike`, the logs of each epoch have the latest
    `gradient_norm` and the number of `spiked_steps`. Nothing is checked while a callback raises the
    learning rate to find a good peak rate, because that callback itself returns to an earlier
    epoch.

    Args:
        every: The optimizer steps between two readings; each reading waits for the device.
            Defaults to 10.
        keep: The number of readings in the report. Defaults to 5.
        patience: The number of steps skipped in a row that counts as a divergence. Defaults to 20.

    Raises:
        FloatingPointError: when training has diverged; its message is the report.
        TypeError: when training begins, for an optimizer of another package.
        ValueError, TypeError: for an argument that is not an integer >= 1.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
    >>> model.compile(optimizer=tf_lamb.LAMB(on_nonfinite="propagate"), loss="mse")
    >>> x = tf.constant([[1.0], [float("nan")]])
    >>> try:
    ...     _ = model.fit(x, x, verbose=0, callbacks=[tf_lamb.StopOnDivergence(every=1)])
    ... except FloatingPointError as error:
    ...     print(str(error).partition(",")[0])
    Training has diverged: at step 1
    """

    _diagnosis: Any = None

    def __init__(self, every: int = 10, *, keep: int = 5, patience: int = 20):
        super().__init__(every)
        self._keep = checks.integer("keep", keep)
        self._patience = checks.integer("patience", patience)

    def _optimizer_to_read(self, model):
        """Returns the optimizer, and makes its steps record trust ratios.

        A training step that was compiled before, without the recording, is compiled again. Each
        call also begins a new diagnosis, without the readings of an earlier `fit`. Raises TypeError
        for an optimizer of another package.
        """
        subject = "reads the optimizers of tf_lamb"
        optimizer = our_optimizer(model.optimizer, "StopOnDivergence", subject)
        if start_observing(optimizer):
            seams.drop_traced_step(model)
        self._diagnosis = Diagnosis(self._patience, optimizer._guard.advice, self._keep)
        MODELS_WITH_RISING_RATE.discard(model)  # an error in an earlier run may have left it there
        return optimizer

    def on_epoch_begin(self, epoch, logs=None):
        """Notes how many steps were skipped so far, because the loss is the mean of an epoch."""
        self._sync()
        self._diagnosis.begin_loss(self._optimizer.skipped_steps)

    def on_epoch_end(self, epoch, logs=None):
        """Checks the run, and adds the gradient norm and the number of spikes to the logs.

        It adds them only if `on_spike` is set.

        Raises:
            FloatingPointError: if the run has diverged.
        """
        self._sync()
        if self._batch_count:
            # The model's own metric of the loss is that of the validation by now.
            self._check((logs or {}).get("loss"))
        if logs is not None and (norm := self._optimizer.gradient_norm) is not None:
            logs["gradient_norm"] = norm
            logs["spiked_steps"] = self._optimizer.spiked_steps

    def on_train_end(self, logs=None):
        """Does nothing, because the end of the last epoch was checked."""

    def _at_reading(self):
        """Raises FloatingPointError if the run has diverged."""
        losses = [metric for metric in self.model.metrics if metric.name == "loss"]
        self._check(losses[0].result() if losses else None)

    def _check(self, loss):
        """Raises FloatingPointError if the run has diverged.

        Checks nothing while another callback raises the learning rate.

        Args:
            loss: The mean loss since the epoch began, or None.
        """
        if self.model in MODELS_WITH_RISING_RATE:
            return
        self._diagnosis.check(self._optimizer, None if loss is None else float(loss), self.model)
