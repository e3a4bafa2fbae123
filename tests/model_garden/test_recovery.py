"""`trainer.recovery_max_trials` against our report on divergence: recovery goes first."""

import pytest

pytest.importorskip("official")

import numpy as np
import orbit
import support.garden  # noqa: F401
import tensorflow as tf
from official.core import actions as core_actions

import tf_lamb.tf_keras
from tf_lamb.model_garden.running import actions, controllers


class Run:
    """One variable, its checkpoint, and the actions in the order in which they are called."""

    def __init__(self, folder, trials):
        self.v, self.optimizer = (
            tf.Variable([1.0, 2.0]),
            tf_lamb.tf_keras.LAMB(0.1, jit_compile=False),
        )
        self.optimizer.build([self.v])
        checkpoint = tf.train.Checkpoint(v=self.v, optimizer=self.optimizer)
        self.manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1)
        condition = core_actions.RecoveryCondition(
            self.optimizer.iterations, loss_upper_bound=1e6, recovery_max_trials=trials
        )
        recovery = orbit.actions.ConditionalAction(
            condition, core_actions.RecoveryAction(self.manager)
        )
        self.divergence = actions.Divergence(self.optimizer)
        self.train_actions = (self.divergence, recovery)
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
    run = Run(str(tmp_path), trials=2)
    for _ in range(2):
        assert run.loop(NAN, NAN)["skipped_steps"] == 30  # each from the checkpoint
    run.loop(1.0, 0.5, steps=1)
    assert run.optimizer.iterations == 1
    with pytest.raises(FloatingPointError, match="Training has diverged: .* all skipped"):
        run.loop(NAN, NAN)


def test_what_no_loss_shows_is_a_trial_too(tmp_path):
    run = Run(str(tmp_path), trials=1)
    run.loop(NAN, 0.5)
    run.v.assign([NAN, 1.0])
    with pytest.raises(FloatingPointError, match="are not finite"):
        run.loop(1.0, 0.5, steps=1)


def test_weights_come_back(tmp_path):
    run = Run(str(tmp_path), trials=1)
    run.v.assign([NAN, 1.0])
    run.loop(1.0, NAN, steps=1)
    np.testing.assert_array_equal(run.v.numpy(), [1.0, 2.0])


def test_without_a_trial_a_skipped_step_ends_it_as_it_always_did_and_says_the_way_out(tmp_path):
    run = Run(str(tmp_path), trials=0)
    with pytest.raises(RuntimeError, match="1 steps were skipped.*recovery_max_trials=-1"):
        run.loop(NAN, NAN, steps=1)
    with pytest.raises(RuntimeError, match="larger than the bound"):
        run.loop(1.0, 1e7, steps=1)
