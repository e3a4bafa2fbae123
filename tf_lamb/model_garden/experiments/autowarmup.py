"""AutoWarmup in a run of the Model Garden: a learning rate, and an action that sees to it.

    learning_rate:
      type: tf_lamb_auto_warmup
      tf_lamb_auto_warmup: {total_steps: 30000, decide_every: 312}

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
import tf_keras
from absl import logging

from tf_lamb.api import plots
from tf_lamb.api.variables import step_of, unwrapped
from tf_lamb.core import autowarmup, checks
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.folders import checkpoints
from tf_lamb.tensorflow import namespace

KEY = "tf_lamb_auto_warmup"


class Schedule(tf_keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate, whose switch an action moves between two loops."""

    is_watched = False  # by an action that reads the loss

    def __init__(self, decide_every, **settings):
        super().__init__()
        checks.integer("decide_every", decide_every)
        self.settings, self.decide_every = autowarmup.Settings(**settings), decide_every
        self.switch = [
            tf.Variable(value, trainable=False, name=name, dtype="float32")
            for name, value in zip(("begin", "peak"), self.settings.unfound(), strict=True)
        ]

    def __call__(self, step):
        return self.settings.value(namespace, tf.cast(step, "float32"), *self.switch)

    def get_config(self):
        """The constructor's arguments."""
        return {"decide_every": self.decide_every, **dataclasses.asdict(self.settings)}


def schedule_of(optimizer) -> Schedule | None:
    """The schedule inside an optimizer and what may wrap it; None where it has another."""
    # seam: tf-models-official 2.20.0 and tf_keras 2.20.1. Averaging, and either generation.
    optimizer = unwrapped(getattr(optimizer, "_optimizer", optimizer))
    rate = getattr(optimizer, "_learning_rate", None)
    rate = optimizer.learning_rate if rate is None else rate
    return rate if isinstance(rate, Schedule) else None


class AutoWarmup:
    """The action: reads the loss after each loop, and decides when it is time.

    Args:
        optimizer: The trainer's, with a `Schedule`, in whatever wrapper.
        model_dir: Where the state is kept.
        writes: Whether this process writes it; all of them read it.
    """

    def __init__(self, optimizer, model_dir, writes: bool = True):
        self._optimizer, self._schedule = optimizer, cast(Schedule, schedule_of(optimizer))
        self._schedule.is_watched = True
        self._folder, self._writes = model_dir, writes
        self._path = os.path.join(model_dir, "auto_warmup.json")
        self.warmup = autowarmup.AutoWUState(self._schedule.settings)

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
            above, _ = plots.warmup(self.warmup)
            with tf.io.gfile.GFile(os.path.join(self._folder, "auto_warmup.png"), "wb") as file:
                above.figure.savefig(file, format="png", dpi=110)
        return str(self.warmup)
