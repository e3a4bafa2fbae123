"""AdaScale and the noise scale in Model Garden: its trainer, its runner, its checkpoints."""

import types

import numpy as np
import pytest
import tensorflow as tf
from support.clusters import mirrored
from support.garden import build, optimizer, run, tiny, train, weights

import tf_lamb.tf_keras
from tf_lamb.core import noise
from tf_lamb.model_garden.running import actions, runner

MICRO_BATCHES = 4


def adascale(**fields):
    return optimizer(
        gradient_accumulation_steps=MICRO_BATCHES, adascale={"scale": MICRO_BATCHES, **fields}
    )


def test_training_ends_when_the_steps_of_the_base_batch_are_spent(records, tmp_path, capsys):
    config = adascale(base_steps=12)
    config["optimizer"]["tf_lamb"]["trust_ratios_every"] = 2
    params = build(tiny(records, optimizer_config=config))
    first = run(params, tmp_path)
    measured = runner.measuring(first.trainer.optimizer)
    steps = int(first.trainer.global_step)
    assert steps < 12 <= measured.base_steps <= 12 + MICRO_BATCHES
    said = capsys.readouterr().out
    assert "batch 8" in said.lower() or "undefined" in said
    assert f"AdaScale: {steps} steps were worth" in said
    assert f"Trust ratios of step {steps}" in first._trust_ratios.history.table()
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith(f"ckpt-{steps}")
    output = {}
    for action in first.controller.train_actions:
        if isinstance(action, actions.NoiseScale | actions.AdaScaleProgress):
            action(output)
    assert output.keys() == {"noise_scale", "gain", "base_step", "scaled_learning_rate"}
    events = tf.io.gfile.glob(str(tmp_path / "train" / "*events*"))
    tags = {v.tag for path in events for e in tf.compat.v1.train.summary_iterator(path)
            for v in e.summary.value}  # fmt: skip
    assert output.keys() <= tags

    again = run(params, tmp_path, mode="train")  # it has nothing left to do
    assert int(again.trainer.global_step) == steps
    assert runner.measuring(again.trainer.optimizer).gain == measured.gain
    assert runner.measuring(again.trainer.optimizer).base_steps == measured.base_steps


@pytest.mark.parametrize(
    ("replicas", "micro_batches"), [(2, None), pytest.param(1, 2, marks=pytest.mark.slow)]
)
def test_measuring_changes_no_training(records, eager, replicas, micro_batches):
    def trained(**fields):
        config = optimizer(gradient_accumulation_steps=micro_batches, **fields)
        return train(build(tiny(records, optimizer_config=config)), mirrored(replicas), 3)[0]

    plain, measured = trained(), trained(measure_noise={"enabled": True})
    assert isinstance(measured.optimizer, tf_lamb.tf_keras.MeasureNoise)
    for one, other in zip(weights(plain), weights(measured), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_run_that_went_back_says_the_error_of_one_that_did_not():
    random, averages = np.random.default_rng(1), noise.Averages(0.0, 0.0, 0)
    measured = types.SimpleNamespace(
        smoothing=0.9, averages=lambda: averages,
        noise_scale=lambda batch: noise.noise_scale(*averages[:2], batch),
    )  # fmt: skip
    straight, back = (actions.NoiseScale(measured, 8) for _ in range(2))
    for step in range(40):
        moments = random.normal([10.0, 1.0], 0.1)
        averages = noise.next_averages(np, averages, *moments, theta=0.9)
        if step < 20 or step >= 30:  # the others come to nothing
            straight({})
        back({})
        if step == 19:
            kept = averages
        elif step == 29:
            averages = kept
    assert "(standard error" in straight.advice()
    assert back.advice() == straight.advice()
