"""Model Garden's runner and Orbit's controller, of which training can end before its last step."""

import contextlib
import os
import tempfile

import orbit
import tensorflow as tf
import tf_keras
from absl import logging
from official.core import actions as core_actions
from official.core import train_lib, train_utils

from tf_lamb.api.callbacks.noise_scale import shared_statistics
from tf_lamb.api.noise import AdaScale, Measured
from tf_lamb.api.wrappers import unwrapped
from tf_lamb.model_garden.errors import UserError
from tf_lamb.model_garden.folders import checkpoints, model_dirs
from tf_lamb.model_garden.running import actions, autowarmup, console
from tf_lamb.model_garden.running.trust_ratios import TrustRatios


def measuring(optimizer):
    """The measuring optimizer among what is wrapped in each other, or None."""
    found = unwrapped(optimizer, Measured)
    return found if isinstance(found, Measured) else None


def is_synchronized(layer):
    """Whether it is a batch normalization with statistics of all replicas together."""
    sync = tf_keras.layers.experimental.SyncBatchNormalization
    return getattr(layer, "synchronized", False) or isinstance(layer, sync)


def _let_recovery_go_first(controller):
    """Hands Model Garden's recovery to our report, which would end the run before it."""
    ours = [a for a in controller.train_actions if isinstance(a, actions.Divergence)]
    # seam: tf-models-official 2.20.0, which puts it behind all other actions.
    theirs = [
        a for a in controller.train_actions
        if isinstance(getattr(a, "condition", None), core_actions.RecoveryCondition)
    ]  # fmt: skip
    if ours and theirs:
        ours[0].recovery = theirs[0]
        controller.train_actions = [a for a in controller.train_actions if a is not theirs[0]]


class _Spent(Exception):
    """Leaves Orbit's loop, which knows steps only."""


class Controller(orbit.Controller):
    """Orbit's controller, which also ends where a `Progress` action says so.

    Evaluations are due at the multiples of their interval, and at the end, wherever the run was
    resumed. One that a kill prevented is made up for.

    Attributes:
        model_dir: the folder that remembers which evaluation was the last; None for none.
        writes: whether this process writes into it.
    """

    model_dir, writes = None, False

    def _is_spent(self):
        progress = (a for a in self.train_actions if isinstance(a, actions.Progress))
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

    def _last_evaluated(self):
        """The step of the last evaluation; 0, which is never evaluated, if there was none."""
        last = model_dirs.read_evaluated(self.model_dir) if self.model_dir else 0
        if last > self.global_step.numpy():  # of weights that this run has lost
            self._remember(last := 0)
        return last

    def _remember(self, step):
        if self.writes:
            model_dirs.write_evaluated(self.model_dir, step)

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


class Runner(train_lib.OrbitExperimentRunner):
    """Model Garden's runner, with the actions that the experiment's optimizer asks for."""

    console = None  # shows nothing
    _advisers = ()
    _trust_ratios = _warmup = _progress = None

    def _build_best_checkpoint_exporter(self):
        trainer = self.params.trainer
        if not trainer.best_checkpoint_export_subdir or not trainer.best_checkpoint_eval_metric:
            return None
        folder = os.path.join(self.model_dir, trainer.best_checkpoint_export_subdir)
        try:
            return checkpoints.Best(
                folder, trainer.best_checkpoint_eval_metric, trainer.best_checkpoint_metric_comp
            )
        except ValueError as error:  # its notes are damaged, or the comparison is unknown
            raise UserError(
                f"{os.path.join(folder, 'info.json')} cannot be read: {error}. Delete it: the next "
                "evaluation is the best one"
            ) from error

    def _maybe_build_checkpoint_manager(self):
        # Every worker has to save, for what they sum up together; only the chief's is kept.
        chief = self.strategy.extended.should_checkpoint
        return checkpoints.Manager(
            self.trainer.checkpoint,
            directory=self.model_dir if chief else tempfile.mkdtemp(),
            max_to_keep=self.params.trainer.max_to_keep if chief else 1,
            step_counter=self.trainer.global_step,
            checkpoint_interval=self.params.trainer.checkpoint_interval,
            init_fn=self.trainer.initialize,
            model_dir=self.model_dir,
        )

    def _build_controller(self, trainer, *args, train_actions=None, eval_actions=None, **kwargs):
        # seam: tf-models-official 2.20.0. `official.nlp.train` hands neither of them on.
        mine = self._actions(trainer.optimizer) if trainer else []
        evaluated = []
        if self.console:
            self._progress = console.Progress(
                self.console, lambda: int(self.trainer.global_step.numpy()),
                self.params.trainer.train_steps if trainer else None,
                self.params.task.train_data.global_batch_size,
            )  # fmt: skip
            mine, evaluated = [*mine, self._progress], [self._progress.evaluated]
        kwargs["controller_cls"] = Controller
        controller = super()._build_controller(
            trainer, *args, train_actions=[*(train_actions or []), *mine],
            eval_actions=[*(eval_actions or []), *evaluated], **kwargs,
        )  # fmt: skip
        controller.model_dir = self.model_dir
        controller.writes = self.strategy.extended.should_checkpoint
        _let_recovery_go_first(controller)
        if self._warmup:  # the controller has restored the optimizer
            self._warmup.resume()
        return controller

    def _actions(self, optimizer):
        config, mine = self.params.trainer.optimizer_config.optimizer.get(), []
        if getattr(config, "divergence_report", False):
            mine.append(actions.Divergence(unwrapped(optimizer), self.trainer.model))
        if every := getattr(config, "trust_ratios_every", None):
            folder = os.path.join(self.model_dir, "trust_ratios")
            self._trust_ratios = TrustRatios(optimizer, folder, every)
            mine.append(self._trust_ratios)
        if autowarmup.schedule_of(optimizer):
            chief = self.strategy.extended.should_checkpoint
            self._warmup = autowarmup.AutoWarmup(optimizer, self.model_dir, writes=chief)
            mine.append(self._warmup)
            self._advisers = [self._warmup]
        if (measured := measuring(optimizer)) is None:
            return mine
        if layers := [m.name for m in self.trainer.model.submodules if is_synchronized(m)]:
            logging.warning(shared_statistics(layers))
        batch = self.params.task.train_data.global_batch_size
        measuring_actions = [actions.NoiseScale(measured, batch)]
        if isinstance(measured, AdaScale):
            progress = actions.Progress(measured, config.adascale.scale_invariant_steps)
            measuring_actions.append(progress)
        self._advisers = [*self._advisers, *measuring_actions]
        return [*mine, *measuring_actions]

    def run(self):
        """See base class; ends with what was measured."""
        if self._progress and "train" in self._mode:
            self._progress.begin()
        result = super().run()
        if self.console:
            self.console.close_bar()
        if self._trust_ratios:
            self._trust_ratios.close()
        for adviser in self._advisers:
            advice = adviser.advice()  # of all workers, if it reads what they share
            if self.strategy.extended.should_checkpoint:
                print(advice, flush=True)
        return result


def install(shown_on=None) -> None:
    """Has every run of this process use this runner, and write its params.yaml whole.

    Args:
        shown_on: the `Console` that shows how far it is, instead of Orbit's own lines.
    """
    if shown_on:
        # seam: orbit of tf-models-official 2.20.0, which logs each line and prints it, too.
        orbit.controller._log = logging.info
    Runner.console = shown_on
    train_lib.OrbitExperimentRunner = Runner
    train_utils.serialize_config = model_dirs.write_params
