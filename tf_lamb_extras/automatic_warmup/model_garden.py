"""Registers AutoWU in TensorFlow's Model Garden, as a learning rate that finds its own peak.

    learning_rate:
      type: tf_lamb_auto_warmup
      tf_lamb_auto_warmup: {total_steps: 30000, decide_every: 312}

Importing this module registers the learning rate. To import it in a training command, pass
`--gin_params='import tf_lamb_extras.automatic_warmup.model_garden'`. `decide_every` is the number
of steps from one decision to the next, usually the steps of an epoch. It is rounded up to whole
loops, each of `trainer.steps_per_loop` steps. `patience` counts decisions in place of epochs.

The training step computes the learning rate. After each loop of steps, the trainer calls an action.
This action reads the mean loss of the loop, which is the same on all replicas and workers. Every
`decide_every` steps it tests whether the loss has passed its minimum, and if so begins the decay.
It writes its state to `auto_warmup.json` beside the checkpoints, where a resumed run finds it. At
the end of training it draws the losses and the rate as `auto_warmup.png`.
"""

import dataclasses
import json
import os
from typing import cast

import tensorflow as tf
from absl import logging

from tf_lamb.api.variables import step_of
from tf_lamb.core import checks
from tf_lamb.model_garden import registered  # noqa: F401  (registers what this builds on)
from tf_lamb.model_garden.common import seams
from tf_lamb.model_garden.common.errors import UserError, named
from tf_lamb.model_garden.experiments import schedule_configs
from tf_lamb.model_garden.folders import checkpoints
from tf_lamb.tensorflow import namespace
from tf_lamb_extras.automatic_warmup import gaussian_process
from tf_lamb_extras.automatic_warmup.callback import draw
from tf_lamb_extras.automatic_warmup.decisions import AutoWUState, Settings

KEY = "tf_lamb_auto_warmup"  # the type of the learning rate in a config
_CONFIG = "trainer.optimizer_config"


class Schedule(schedule_configs.Steered):
    """Computes the learning rate of AutoWU from two variables, the begin and the peak of its decay.

    The action of the trainer sets the variables between two loops of steps.

    Args:
        decide_every: The number of steps from one decision of the action to the next.
        settings: The arguments of `decisions.Settings`.
    """

    def __init__(self, decide_every, **settings):
        super().__init__()
        checks.integer("decide_every", decide_every)
        self.settings, self.decide_every = Settings(**settings), decide_every
        self.switch = [
            tf.Variable(value, trainable=False, name=name, dtype="float32")
            for name, value in zip(("begin", "peak"), self.settings.unfound(), strict=True)
        ]

    def __call__(self, step):
        return self.settings.value(namespace, tf.cast(step, "float32"), *self.switch)

    def get_config(self):
        """Returns the constructor's arguments."""
        return {"decide_every": self.decide_every, **dataclasses.asdict(self.settings)}

    @classmethod
    def check(cls, params) -> None:
        """Checks the learning rate of an experiment; see base class.

        Args:
            params: The config of the experiment.

        Raises:
            UserError: If the experiment also has another warmup or AdaScale, if a setting is out of
                its range, if a package is missing, or if the learning rate would be 0 before
                training ends.
        """
        config, steps = params.trainer.optimizer_config, params.trainer.train_steps
        if config.warmup.get():
            raise UserError(
                f"{_CONFIG}.learning_rate.type={KEY} warms up itself. Write "
                f"{_CONFIG}.warmup.type=null"
            )
        adascale = getattr(config.optimizer.get(), "adascale", None)
        if adascale is not None and adascale.scale is not None:
            raise UserError(
                f"{_CONFIG}.learning_rate.type={KEY} finds a learning rate of its own, which "
                "AdaScale would scale unseen. Write adascale.scale=null"
            )
        path = f"{_CONFIG}.learning_rate.{KEY}"
        with named(path, (TypeError, ValueError, ModuleNotFoundError)):
            with tf.Graph().as_default():
                total = cls(**config.learning_rate.get().as_dict()).settings.total_steps
            gaussian_process.check_installed()
        if total < steps:
            raise UserError(
                f"the learning rate would be 0 from step {total:,} of trainer.train_steps={steps:,}"
                f" on, because {path}.total_steps is {total:,}. Write {path}.total_steps={steps}, "
                f"or trainer.train_steps={total}"
            )

    def action(self, optimizer, model_dir, writes=True):
        """Returns the action, called after each loop, that sets this learning rate's decay.

        Args:
            optimizer: The trainer's optimizer.
            model_dir: The folder of the run.
            writes: Whether this process writes the state. Defaults to True.
        """
        return AutoWarmup(optimizer, model_dir, writes)


class AutoWarmup:
    """Records the loss after each loop of the trainer, and decides when the learning rate decays.

    It is an action, which the trainer calls after each loop of steps. It decides every
    `decide_every` steps. One process writes the state to a file, which all processes read. Unlike
    the callback `AutoWarmup`, the action neither restores weights nor halves the peak.

    Args:
        optimizer: The trainer's optimizer, whose learning rate is a `Schedule`.
        model_dir: The folder of the run.
        writes: Whether this process writes the state. Defaults to True.
    """

    def __init__(self, optimizer, model_dir, writes: bool = True):
        self._optimizer, self._schedule = (
            optimizer,
            cast(Schedule, schedule_configs.steered_rate(optimizer)),
        )
        self._schedule.is_watched = True
        self._folder, self._writes = model_dir, writes
        self._path = os.path.join(model_dir, "auto_warmup.json")
        self.warmup = AutoWUState(self._schedule.settings)
        self._step, self._due = 0, self._schedule.decide_every

    def resume(self):
        """Resumes at the optimizer's step. The trainer calls it after it has restored a checkpoint.

        Raises:
            UserError: If the state of an earlier run cannot be read.
        """
        self._step = step_of(self._optimizer)
        if self._step:
            self._restore()
        self._aim()

    def _aim(self):
        """Sets the begin and the peak of the learning rate's decay, and the next step to decide at.

        All three follow from the recorded losses and decisions.
        """
        last_decision = self.warmup.verdicts[-1][0] if self.warmup.verdicts else 0
        self._due = last_decision + self._schedule.decide_every
        begin, peak = self._schedule.switch
        begin.assign(self.warmup.begin)
        peak.assign(self.warmup.peak)

    def _restore(self):
        """Restores the state from its file; raises `UserError` if the file cannot be read."""
        try:
            with tf.io.gfile.GFile(self._path) as file:
                self.warmup.restore(json.load(file), self._step)
        except (tf.errors.OpError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"the run goes on at step {self._step:,}, but {self._path}, which keeps the losses "
                f"before it, cannot be read: {error!r}. Bring back a copy, or begin in a new folder"
            ) from error

    def __call__(self, output):
        """Records the mean loss of a loop, and every `decide_every` steps decides on the decay.

        It also writes the state file, if `writes`. Once the decay has begun, it does nothing. If an
        earlier checkpoint was restored, it drops what was recorded after it.

        Args:
            output: The trainer's output, a dict with "training_loss".

        Raises:
            FloatingPointError: If no loss since the last decision is finite.
        """
        previous_step, self._step = self._step, step_of(self._optimizer)
        # If the step has not grown, Model Garden's recovery has restored an earlier checkpoint.
        # Losses and decisions that were recorded after its step are then dropped.
        if self._step <= previous_step:
            self.warmup.restore(self.warmup.state(), self._step)
            return self._aim()
        if not self.warmup.is_rising(previous_step):
            return
        self.warmup.record((previous_step + self._step - 1) / 2, float(output["training_loss"]))
        if self._step >= self._due or not self.warmup.is_rising(self._step):
            self.warmup.end_epoch(self._step, is_kept=False)
            self._aim()
            if self.warmup.found:
                logging.warning(
                    "%s The weights stay as they are; the loss was lowest around step %d. If it "
                    "does not fall again, begin a run from the checkpoint before that step, with "
                    "max_learning_rate=%.2g.",
                    self.warmup,
                    self.warmup.lowest,
                    self.warmup.peak,
                )
        if self._writes:
            checkpoints.write_json(self._path, self.warmup.state())

    def advice(self) -> str:
        """Returns a sentence on how the warmup ended; draws it to the file `auto_warmup.png`.

        Only the process that writes the state draws, and only if there are losses.
        """
        if self._writes and self.warmup.points:
            loss_axes, _ = draw(self.warmup)
            with tf.io.gfile.GFile(os.path.join(self._folder, "auto_warmup.png"), "wb") as file:
                loss_axes.figure.savefig(file, format="png", dpi=110)
        return str(self.warmup)


seams.add_learning_rates(
    {KEY: Schedule}, {KEY: schedule_configs.settings_of(Settings, decide_every=None)}
)
