"""Orbit actions: the report on divergence, Model Garden's recovery before it, trust ratios."""

import re

import numpy as np
import pytest

pytest.importorskip("official")

import orbit
import tensorflow as tf
from official.core import actions as core_actions
from support import garden
from support.frontends import uncompiled
from support.garden import build, optimizer, run, tiny

from tf_lamb.model_garden.folders.report import read_scalars
from tf_lamb.model_garden.running import controllers
from tf_lamb.model_garden.running.actions import Divergence, TrustRatios
from tf_lamb.tf_keras import LAMB


def test_a_run_of_the_model_garden_ends_before_it_saves(records, tmp_path):
    config = optimizer(on_nonfinite="propagate", jit_compile=False)
    config["learning_rate"] = {
        "type": "stepwise",
        "stepwise": {"boundaries": [3], "values": [1e-3, float("inf")]},
    }
    config["warmup"] = {"type": None}
    settings = tiny(records, optimizer_config=config)
    settings["trainer"] |= {"train_steps": 8, "steps_per_loop": 2, "checkpoint_interval": 2}
    with pytest.raises(FloatingPointError, match="at step 6, the weights of"):
        run(build(settings), tmp_path, "train")
    latest = tf.train.latest_checkpoint(str(tmp_path))
    assert latest.endswith("ckpt-4")


def test_the_output_of_a_loop_shows_norms_and_spikes():
    watched = LAMB(on_spike=[8, 6.0], jit_compile=False)
    action, variable = Divergence(watched), tf.Variable(tf.ones(3))
    for length in (1.0, 1.1, 1.0, 1.1, 100.0):
        watched.apply_gradients([(tf.constant([0.0, length, 0.0]), variable)])
    action(output := {"training_loss": 1.0})
    shown = {"skipped_steps": 0, "spiked_steps": 1, "gradient_norm": 100.0}
    assert output == {"training_loss": 1.0, **shown}


# `trainer.recovery_max_trials`: recovery goes first.


class Run:
    """One variable, its checkpoint, and the actions in the order in which they are called."""

    def __init__(self, folder, trials, before=None):
        self.v, self.optimizer = tf.Variable([1.0, 2.0]), LAMB(0.1, jit_compile=False)
        self.optimizer.build([self.v])
        checkpoint = tf.train.Checkpoint(v=self.v, optimizer=self.optimizer)
        self.manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1)
        condition = core_actions.RecoveryCondition(
            self.optimizer.iterations, loss_upper_bound=1e6, recovery_max_trials=trials
        )
        recovery = orbit.actions.ConditionalAction(
            condition, core_actions.RecoveryAction(self.manager)
        )
        self.train_actions = (before or Divergence(self.optimizer), recovery)
        controllers.let_recovery_go_first(self)
        self.manager.save()

    def loop(self, gradient, loss, steps=30):
        for _ in range(steps):
            self.optimizer.apply_gradients([(tf.constant([gradient, 1.0]), self.v)])
        output = {"training_loss": tf.constant(loss)}
        for action in self.train_actions:
            action(output)
        return output


NAN = float("nan")


def test_two_trials_outlive_sixty_steps_without_a_number(tmp_path):
    one = Run(str(tmp_path), trials=2)
    for _ in range(2):
        assert one.loop(NAN, NAN)["skipped_steps"] == 30  # each from the checkpoint
    one.loop(1.0, 0.5, steps=1)
    assert one.optimizer.iterations == 1
    with pytest.raises(FloatingPointError, match="Training has diverged: .* all skipped"):
        one.loop(NAN, NAN)


def test_what_no_loss_shows_is_a_trial_too(tmp_path):
    one = Run(str(tmp_path), trials=1)
    one.loop(NAN, 0.5)
    one.v.assign([NAN, 1.0])
    with pytest.raises(FloatingPointError, match="are not finite"):
        one.loop(1.0, 0.5, steps=1)


def test_without_a_report_too_recovery_goes_first(tmp_path):
    seen = []
    one = Run(str(tmp_path), trials=1, before=lambda output: seen.append(one.v.numpy().tolist()))
    one.v.assign([NAN, 1.0])
    one.loop(1.0, NAN, steps=1)
    assert seen == [[1.0, 2.0]]


def test_weights_come_back(tmp_path):
    one = Run(str(tmp_path), trials=1)
    one.v.assign([NAN, 1.0])
    one.loop(1.0, NAN, steps=1)
    np.testing.assert_array_equal(one.v.numpy(), [1.0, 2.0])


def test_without_a_trial_a_skipped_step_ends_it_as_it_always_did_and_says_the_way_out(tmp_path):
    one = Run(str(tmp_path), trials=0)
    with pytest.raises(RuntimeError, match="1 steps were skipped.*recovery_max_trials=-1"):
        one.loop(NAN, NAN, steps=1)
    with pytest.raises(RuntimeError, match="larger than the bound"):
        one.loop(1.0, 1e7, steps=1)


# Trust ratios.


@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_orbit_loop_is_watched(records, tmp_path, replicas):
    strategy = garden.mirrored(replicas) if replicas > 1 else garden.one_device()
    config = garden.optimizer(jit_compile=False)
    trainer = garden.trainer_of(
        garden.build(garden.tiny(records, optimizer_config=config)), strategy
    )
    action = TrustRatios(trainer.optimizer, str(tmp_path), every=4)
    controller = orbit.Controller(
        strategy=strategy, trainer=trainer, global_step=trainer.global_step, steps_per_loop=2,
        train_actions=[action],
    )  # fmt: skip
    controller.train(steps=8)
    assert (action.history.step, action.history.readings) == (6, 2)  # of steps 2 and 6
    norms = [np.linalg.norm(v.numpy()) for v in trainer.model.trainable_variables]
    controller.train(steps=9)
    action.close()
    table = action.history.table()
    assert list(read_scalars(str(tmp_path))["clipped_trust_ratios"]) == [2, 6, 9]
    moved = [pair for pair in zip(action.history.latest, norms, strict=True) if pair[0].trust_ratio]
    np.testing.assert_allclose(
        [seen.weight_norm for seen, _ in moved], [norm for _, norm in moved], rtol=1e-5
    )
    # Of this BERT, one kernel is in no loss: it has a ratio, but never a step.
    adapted = [seen for seen in action.history.latest if seen.ratios]
    (idle,) = {seen.path for seen in adapted} - {seen.path for seen, _ in moved}
    assert re.search(f"{idle} .* no step yet", table)
    assert len(moved) > 5


def test_a_loop_without_our_runner_tells_once_of_what_comes_nothing(records, caplog):
    own = {"trust_ratios_every": 2, "jit_compile": False}
    settings = garden.tiny(records, optimizer_config=garden.optimizer(**own))
    trainer = garden.trainer_of(garden.build(settings), garden.one_device())
    words = "Nothing comes of divergence_report=true, trust_ratios_every=2, but by actions"
    with uncompiled():
        for _ in range(2):
            trainer.train(tf.constant(1))
    assert len([line for line in caplog.messages if words in line]) == 1


def test_an_action_that_comes_too_late_is_refused():
    optimizer, variable = LAMB(0.1), tf.Variable([1.0])
    optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    with pytest.raises(ValueError, match=r"made after the first step.*before the training"):
        TrustRatios(optimizer)
