"""Orbit's controller: training can end before its last step, and no evaluation is missing."""

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
    """Hands Model Garden's recovery to our report, which would end the run before it."""
    ours = [a for a in controller.train_actions if isinstance(a, actions.Divergence)]
    # seam: tf-models-official 2.20.0, which puts it behind all other actions.
    theirs = [
        a
        for a in controller.train_actions
        if isinstance(getattr(a, "condition", None), core_actions.RecoveryCondition)
    ]
    if ours and theirs:
        ours[0].recovery = theirs[0]
        controller.train_actions = [a for a in controller.train_actions if a is not theirs[0]]


_PAUSE = 1.0  # seconds between two looks for a checkpoint


class _Spent(Exception):
    """Leaves Orbit's loop, which knows steps only."""


class Controller(orbit.Controller):
    """Orbit's controller, which also ends where an `AdaScaleProgress` action says so.

    Evaluations are due at the multiples of their interval, and at the end, wherever the run was
    resumed. One that a kill prevented is made up for.
    """

    model_dir: str | None = None  # the folder that remembers which evaluation was the last
    writes = False  # whether this process writes into it
    is_over: Callable[[], bool] | None = None  # whether its last checkpoint is that of the end

    def _is_spent(self):
        progress = (a for a in self.train_actions if isinstance(a, actions.AdaScaleProgress))
        return any(action.is_spent() for action in progress)

    def _train_n_steps(self, num_steps):
        # seam: orbit of tf-models-official 2.20.0.
        if self._is_spent():
            raise _Spent
        super()._train_n_steps(num_steps)

    def train(self, steps, checkpoint_at_completion=True):
        """See base class."""
        try:
            super().train(steps, checkpoint_at_completion)
        except _Spent:
            if checkpoint_at_completion:
                self._save_now()

    def train_and_evaluate(self, train_steps, eval_steps=-1, eval_interval=None):
        """See base class, which counts the interval from where the run was resumed."""
        output, interval = None, eval_interval or train_steps
        step, evaluated = int(self.global_step.numpy()), self._last_evaluated()
        while True:
            is_over = step >= train_steps or self._is_spent()
            if step != evaluated and (is_over or step % interval == 0):
                output = self.evaluate(eval_steps)
                self._remember(step)
            if is_over:
                break
            evaluated, due = None, step - step % interval + interval
            self.train(min(due, train_steps), checkpoint_at_completion=False)
            step = int(self.global_step.numpy())
        self._save_now()
        return output

    def evaluate_continuously(self, steps=-1, timeout=None, timeout_fn=None):
        """See base class; ends with the last checkpoint of training, or says why."""
        folder, seen, is_over = self.checkpoint_manager.directory, None, False
        output, since = None, time.monotonic()
        while True:
            path = checkpoints.latest(folder)
            if path not in (None, seen):
                self.restore_checkpoint(path)
                output = self.evaluate(steps)
                # Of a later checkpoint, maybe, which is evaluated before this ends.
                is_over = self.is_over is not None and self.is_over()
                seen, since = path, time.monotonic()
            elif is_over:
                return output
            elif timeout is None or time.monotonic() - since < timeout:
                time.sleep(_PAUSE)
            elif timeout_fn is None or timeout_fn():
                return output
            else:
                last = f"behind {os.path.basename(seen)}" if seen else "at all"
                raise UserError(
                    f"--model_dir={folder}: no checkpoint {last} has come within trainer."
                    f"continuous_eval_timeout={timeout} seconds, and training is not over. It has "
                    "stopped, or takes longer: give the same command again, or a longer timeout"
                )

    def _last_evaluated(self):
        """The step of the last evaluation; 0, which is never evaluated, if there was none."""
        last = model_dirs.read_evaluated(self.model_dir) if self.model_dir else 0
        if last > self.global_step.numpy():  # of weights that this run has lost
            self._remember(last := 0)
        return last

    def _remember(self, step):
        if self.writes and self.model_dir:
            model_dirs.write_evaluated(self.model_dir, step)

    def restore_checkpoint(self, checkpoint_path=None):
        """See base class, which would not look at a checkpoint that is named."""
        if checkpoint_path is None:
            return super().restore_checkpoint()
        with self.strategy.scope():
            return self.checkpoint_manager.restore(checkpoint_path)

    def _save_now(self):
        self.save_checkpoint()
        self._sync_on_async_checkpointing()

    def _maybe_save_checkpoint(self, check_interval=True):
        with self._saving():
            return super()._maybe_save_checkpoint(check_interval)

    def _sync_on_async_checkpointing(self):
        with self._saving():
            super()._sync_on_async_checkpointing()
            # seam: tensorflow 2.20. It says of a checkpoint that its thread could not write when
            # the next is due: never, of the last.
            saver = getattr(self.checkpoint_manager, "checkpoint", None)
            if thread := getattr(saver, "_async_checkpointer_impl", None):
                thread._check_async_thread_error()

    @contextlib.contextmanager
    def _saving(self):
        try:
            yield
        except tf.errors.OpError as error:
            folder = self.checkpoint_manager.directory
            raise UserError(
                f"no checkpoint can be saved to {folder}: {error.message}. Those before it are "
                "whole: with room on the disk, give the same command again"
            ) from error
