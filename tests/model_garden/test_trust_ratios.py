"""Trust ratios of an orbit loop: its action, its tables, its averages."""

import re

import numpy as np
import orbit
import pytest
import tensorflow as tf
import tf_keras
from official.modeling import optimization
from support import garden

from tf_lamb.model_garden.folders.report import read_scalars
from tf_lamb.model_garden.running.actions import TrustRatios
from tf_lamb.tf_keras import LAMB


@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_orbit_loop_is_watched(records, tmp_path, replicas):
    strategy = garden.mirrored(replicas) if replicas > 1 else garden.one_device()
    config = garden.optimizer(jit_compile=False)
    trainer = garden.trainer_of(
        garden.build(garden.tiny(records, optimizer_config=config)), strategy
    )
    action = TrustRatios(trainer.optimizer, str(tmp_path), every=4)
    controller = orbit.Controller(
        strategy=strategy,
        trainer=trainer,
        global_step=trainer.global_step,
        steps_per_loop=2,
        train_actions=[action],
    )
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


def test_an_action_that_comes_too_late_is_refused():
    optimizer, variable = LAMB(0.1), tf.Variable([1.0])
    optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    with pytest.raises(ValueError, match=r"made after the first step.*before the training"):
        TrustRatios(optimizer)


def test_averaging_of_the_model_garden_is_seen_through():
    inner = LAMB(0.1)
    action = TrustRatios(optimization.ExponentialMovingAverage(inner))
    assert action.history.optimizer is inner
    with pytest.raises(TypeError, match="not those of .*SGD"):
        TrustRatios(tf_keras.optimizers.SGD(0.1))
