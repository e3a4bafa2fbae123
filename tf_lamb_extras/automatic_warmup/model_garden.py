"""AutoWarmup in a run of the Model Garden: a learning rate, and an action that sees to it.

    learning_rate:
      type: tf_lamb_auto_warmup
      tf_lamb_auto_warmup: {total_steps: 30000, decide_every: 312}

This import registers it; a command makes it with
`--gin_params='import tf_lamb_extras.automatic_warmup.model_garden'`. `decide_every` is the number
of steps from one decision to the next, as a rule those of an epoch, rounded up to whole loops
(`trainer.steps_per_loop`); `patience` counts decisions.

The rate is computed within the step. After a loop of steps the action reads their mean loss, which
all replicas and workers share, and every `decide_every` steps it asks whether the loss has passed
its minimum. What it has seen stands in `auto_warmup.json` beside the checkpoints, where a run that
goes on finds it, and the end of training draws it as `auto_warmup.png`.
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
from tf_lamb.model_garden.experiments import schedules
from tf_lamb.model_garden.folders import checkpoints
from tf_lamb.tensorflow import namespace
from tf_lamb_extras.automatic_warmup import gaussian_process
from tf_lamb_extras.automatic_warmup.callback import draw
from tf_lamb_extras.automatic_warmup.decisions import AutoWUState, Settings

KEY = "tf_lamb_auto_warmup"
_CONFIG = "trainer.optimizer_config"


class Schedule(schedules.Steered):
    """The learning rate, whose switch the action moves between two loops."""

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
        """The constructor's arguments."""
        return {"decide_every": self.decide_every, **dataclasses.asdict(self.settings)}

    @classmethod
    def check(cls, params) -> None:
        """See base class."""
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
        """See base class."""
        return AutoWarmup(optimizer, model_dir, writes)


class AutoWarmup:
    """The action: reads the loss after each loop, and decides when it is time.

    The optimizer is the trainer's, with a `Schedule`. One process writes the state; all read it.
    """

    def __init__(self, optimizer, model_dir, writes: bool = True):
        self._optimizer, self._schedule = (
            optimizer,
            cast(Schedule, schedules.steered_rate(optimizer)),
        )
        self._schedule.is_watched = True
        self._folder, self._writes = model_dir, writes
        self._path = os.path.join(model_dir, "auto_warmup.json")
        self.warmup = AutoWUState(self._schedule.settings)

    def resume(self):
        """Goes on where the optimizer is, which has its checkpoint by now."""
        self._step = step_of(self._optimizer)
        if self._step:
            self.warmup.restore(self._saved(), self._step)
        self._aim()

    def _aim(self):
        last = self.warmup.verdicts[-1][0] if self.warmup.verdicts else 0
        self._due = last + self._schedule.decide_every
        begin, peak = self._schedule.switch
        begin.assign(self.warmup.begin)
        peak.assign(self.warmup.peak)

    def _saved(self):
        try:
            with tf.io.gfile.GFile(self._path) as file:
                return json.load(file)
        except (tf.errors.NotFoundError, ValueError) as error:
            raise UserError(
                f"the run goes on at step {self._step:,}, but {self._path}, which keeps the losses "
                f"before it, cannot be read: {error}. Bring back a copy, or begin in a new folder"
            ) from error

    def __call__(self, output):
        """Takes the mean loss of a loop; raises `FloatingPointError` where none is finite."""
        before, self._step = self._step, step_of(self._optimizer)
        if self._step < before:  # Model Garden's recovery went back
            self.warmup.restore(self.warmup.state(), self._step)
            return self._aim()
        if not self.warmup.is_rising(before):
            return
        self.warmup.record((before + self._step - 1) / 2, float(output["training_loss"]))
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
        """Describes its decision, and draws it."""
        if self._writes and self.warmup.points:
            above, _ = draw(self.warmup)
            with tf.io.gfile.GFile(os.path.join(self._folder, "auto_warmup.png"), "wb") as file:
                above.figure.savefig(file, format="png", dpi=110)
        return str(self.warmup)


seams.add_learning_rates({KEY: Schedule}, {KEY: schedules.settings_of(Settings, decide_every=None)})
