"""Extends Orbit's controller: AdaScale can end training early, and no evaluation is missed."""

import contextlib
import os
import time
from collections.abc import Callable

import orbit
import tensorflow as tf
from official.core import actions as core_actions

from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.folders import checkpoints, model_dirs
from tf_lamb.model_garden.running import actions


def let_recovery_go_first(controller):
    """Makes Model Garden's recovery action run before the other actions of a controller.

    The recovery action restores the last checkpoint if the loss has become too large or NaN. Orbit
    would call it last. By then the action `Divergence` would have ended the run, although recovery
    could save it. Therefore `Divergence` gets the recovery action and calls it. If there is no
    `Divergence`, the recovery action becomes the first of `train_actions`.
    """
    reports = [
        action for action in controller.train_actions if isinstance(action, actions.Divergence)
    ]
    # seam: relies on tf-models-official 2.20.0, whose recovery action comes after the actions of
    # this package and has a `RecoveryCondition`.
    recoveries = [
        action
        for action in controller.train_actions
        if isinstance(getattr(action, "condition", None), core_actions.RecoveryCondition)
    ]
    if recoveries:
        others = [action for action in controller.train_actions if action is not recoveries[0]]
        if reports:
            reports[0].recovery = recoveries[0]
        controller.train_actions = others if reports else [recoveries[0], *others]


_PAUSE = 1.0  # seconds between two searches for a new checkpoint


class _Spent(Exception):
    """Raised to leave Orbit's training loop early, when AdaScale has made enough progress."""


class Controller(orbit.Controller):
    """Orbit's controller, which also ends training when AdaScale has reached its `base_steps`.

    An evaluation is due at each step that is a multiple of the interval, also in a resumed run, and
    at the end of training. If the process was killed before an evaluation that was due, the resumed
    run makes this evaluation first.

    Attributes:
        model_dir: the folder with the file that holds the step of the last evaluation; None for no
            file.
        writes: whether this process writes that file.
        is_over: a function that returns whether the folder's last checkpoint is the one of the end
            of training; None if there is no such function.
    """

    model_dir: str | None = None
    writes = False
    is_over: Callable[[], bool] | None = None

    def _is_spent(self):
        """Returns whether AdaScale has made the progress at which training is to end.

        An `AdaScaleProgress` action among the training actions decides this.
        """
        adascale_actions = (
            action for action in self.train_actions if isinstance(action, actions.AdaScaleProgress)
        )
        return any(progress.is_spent() for progress in adascale_actions)

    def _train_n_steps(self, num_steps):
        """Runs one loop of training steps; see base class.

        Raises `_Spent` instead if AdaScale has made the progress at which training is to end.
        """
        # seam: relies on the Orbit of tf-models-official 2.20.0, whose `train` calls this private
        # method for each loop.
        if self._is_spent():
            raise _Spent
        super()._train_n_steps(num_steps)

    def train(self, steps, checkpoint_at_completion=True):
        """Trains as the base class does, and also ends if AdaScale has reached its `base_steps`.

        Args:
            steps: the step at which training ends.
            checkpoint_at_completion: whether to save a checkpoint at the end.
        """
        try:
            super().train(steps, checkpoint_at_completion)
        except _Spent:
            if checkpoint_at_completion:
                self._save_now()

    def train_and_evaluate(self, train_steps, eval_steps=-1, eval_interval=None):
        """Trains and evaluates in turn; see base class.

        The base class counts the interval from the step at which the run was resumed. Here it
        counts from step 0.

        Args:
            train_steps: the step at which training ends.
            eval_steps: the number of steps of an evaluation; -1 takes all data.
            eval_interval: the number of training steps between two evaluations; None evaluates only
                at the end.

        Returns:
            The output of the last evaluation; None if there was none.
        """
        output, interval = None, eval_interval or train_steps
        step, evaluated_step = int(self.global_step.numpy()), self._last_evaluated()
        while True:
            is_over = step >= train_steps or self._is_spent()
            if step != evaluated_step and (is_over or step % interval == 0):
                output = self.evaluate(eval_steps)
                self._remember(step)
            if is_over:
                break
            evaluated_step, due_step = None, step - step % interval + interval
            self.train(min(due_step, train_steps), checkpoint_at_completion=False)
            step = int(self.global_step.numpy())
        self._save_now()
        return output

    def evaluate_continuously(self, steps=-1, timeout=None, timeout_fn=None):
        """Evaluates new checkpoints until the last one of the training run; see base class.

        It always takes the newest one. If several come during an evaluation, the older ones of them
        are not evaluated.

        Args:
            steps: the number of steps of an evaluation; -1 takes all data.
            timeout: the number of seconds to wait for the next checkpoint; None waits without end.
            timeout_fn: a function that is called after `timeout` seconds without a checkpoint, and
                returns whether training is over; with None, training counts as over.

        Returns:
            The output of the last evaluation.

        Raises:
            UserError: if no checkpoint has come within `timeout` seconds and `timeout_fn` returns
                false, or if a checkpoint is not of this model.
        """
        folder, evaluated_path, is_over = self.checkpoint_manager.directory, None, False
        output, last_change = None, time.monotonic()
        while True:
            path = checkpoints.latest(folder)
            if path not in (None, evaluated_path):
                self.restore_checkpoint(path)
                output = self.evaluate(steps)
                # If training is over by now, it may have saved another checkpoint in the meantime.
                # The loop evaluates that one, too, before it ends.
                is_over = self.is_over is not None and self.is_over()
                evaluated_path, last_change = path, time.monotonic()
            elif is_over:
                return output
            elif timeout is None or time.monotonic() - last_change < timeout:
                time.sleep(_PAUSE)
            elif timeout_fn is None or timeout_fn():
                return output
            else:
                position = (
                    f"behind {os.path.basename(evaluated_path)}" if evaluated_path else "at all"
                )
                raise UserError(
                    f"--model_dir={folder}: no checkpoint {position} has come within trainer."
                    f"continuous_eval_timeout={timeout} seconds, and training is not over. It has "
                    "stopped, or takes longer: give the same command again, or a longer timeout"
                )

    def _last_evaluated(self):
        """Returns the step of the last evaluation; 0 without one, as step 0 is never evaluated.

        If the run has lost the weights of that step, it writes 0 to the file, and returns 0.
        """
        step = model_dirs.read_evaluated(self.model_dir) if self.model_dir else 0
        if step > self.global_step.numpy():  # the run has lost the weights of that step
            self._remember(step := 0)
        return step

    def _remember(self, step):
        """Writes the step of the last evaluation to the folder, if this process may write."""
        if self.writes and self.model_dir:
            model_dirs.write_evaluated(self.model_dir, step)

    def restore_checkpoint(self, checkpoint_path=None):
        """Restores the newest checkpoint, or the one at `checkpoint_path`.

        For a path, the base class would not call `checkpoints.Manager.restore`, which checks that
        the checkpoint is of this model.
        """
        if checkpoint_path is None:
            return super().restore_checkpoint()
        with self.strategy.scope():
            return self.checkpoint_manager.restore(checkpoint_path)

    def _save_now(self):
        """Saves a checkpoint, and waits until it is written."""
        self.save_checkpoint()
        self._sync_on_async_checkpointing()

    def _maybe_save_checkpoint(self, check_interval=True):
        """Saves a checkpoint if one is due; see base class."""
        with self._saving():
            return super()._maybe_save_checkpoint(check_interval)

    def _sync_on_async_checkpointing(self):
        """Waits for an asynchronous save, and raises its error; see base class."""
        with self._saving():
            super()._sync_on_async_checkpointing()
            # seam: relies on tensorflow 2.20, which writes checkpoints in a thread, and reports an
            # error of this thread only when the next checkpoint is due. The error of the last
            # checkpoint would never be reported.
            saver = getattr(self.checkpoint_manager, "checkpoint", None)
            if thread := getattr(saver, "_async_checkpointer_impl", None):
                thread._check_async_thread_error()

    @contextlib.contextmanager
    def _saving(self):
        """Turns TensorFlow's error about a failed write of a checkpoint into a `UserError`."""
        try:
            yield
        except tf.errors.OpError as error:
            folder = self.checkpoint_manager.directory
            raise UserError(
                f"no checkpoint can be saved to {folder}: {error.message}. Those before it are "
                "whole: with room on the disk, give the same command again"
            ) from error
