"""`trainer.optimizer_config.ema`: averages move with updates, not with micro-batches."""

import contextlib

import numpy as np
import pytest

pytest.importorskip("official")

import tensorflow as tf
import tf_keras
from official.modeling import optimization
from support.clusters import mirrored
from support.frontends import uncompiled
from support.garden import build, run, tiny

from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.folders import checkpoints
from tf_lamb.model_garden.running.runner import Runner

STEPS = 6


class Run:
    """A layer, an optimizer of an experiment around it, and gradients that do not depend on it."""

    def __init__(self, lamb=(), replicas=1, kind="tf_lamb", traced=False, **ema):
        config = optimization.OptimizationConfig(
            {
                "optimizer": {"type": kind, kind: dict(lamb)},
                "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.1}},
                "ema": {"average_decay": 0.9, **ema},
            }
        )
        factory = optimization.OptimizerFactory(config)
        self.strategy, self.traced = mirrored(replicas), traced
        self.call = tf.function(self._call)
        with self.strategy.scope():
            self.model = tf_keras.Sequential([tf_keras.layers.Dense(2, input_shape=(3,))])
            self.model.set_weights([np.ones((3, 2)), np.ones(2)])
            self.optimizer = factory.build_optimizer(factory.build_learning_rate())
            self.optimizer.shadow_copy(self.model)

    def _call(self, kernel, bias):
        def apply(*gradients):
            pairs = zip(gradients, self.model.trainable_variables, strict=True)
            share = self.strategy.num_replicas_in_sync
            self.optimizer.apply_gradients([(g / share, v) for g, v in pairs])

        self.strategy.run(apply, args=(kernel, bias))

    def step(self, gradients):
        with contextlib.nullcontext() if self.traced else uncompiled():
            self.call(*map(tf.constant, gradients))

    def averages(self):
        found = [self.optimizer.get_slot(v, "average") for v in self.model.trainable_variables]
        return [each.numpy() for each in found]


def parts(count):
    """Of each step, of each of its micro-batches, the gradients."""
    rng = np.random.default_rng(0)
    draw = lambda shape: rng.normal(size=shape).astype("float32")  # noqa: E731
    return [[[draw((3, 2)), draw((2,))] for _ in range(count)] for _ in range(STEPS)]


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("ema", [{}, {"dynamic_decay": False}, {"start_step": 3}], ids=str)
@pytest.mark.parametrize(("replicas", "traced"), [(1, False), (2, True)])
def test_micro_batches_are_averaged_as_one_batch(replicas, traced, ema):
    in_one = Run(replicas=replicas, **ema)
    in_parts = Run({"gradient_accumulation_steps": 4}, replicas, traced=traced, **ema)
    for micro_batches in parts(4):
        in_one.step([np.mean(same, axis=0) for same in zip(*micro_batches, strict=True)])
        for micro_batch in micro_batches:
            in_parts.step(micro_batch)
    assert_same(in_one.model.get_weights(), in_parts.model.get_weights())
    assert_same(in_one.averages(), in_parts.averages())
    assert not np.allclose(in_one.averages()[0], in_one.model.get_weights()[0], atol=1e-3)


@pytest.mark.parametrize("accumulation", [None, 2])
def test_a_skipped_update_moves_no_average(accumulation):
    met, spared = (Run({"gradient_accumulation_steps": accumulation}) for _ in range(2))
    for micro_batches in parts(accumulation or 1):
        for micro_batch in micro_batches:
            met.step([np.full_like(g, np.nan) for g in micro_batch])
        for micro_batch in micro_batches:
            met.step(micro_batch)
            spared.step(micro_batch)
    for a, b in zip(met.averages(), spared.averages(), strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("around", ["measure_noise", "adascale"])
def test_what_is_averaged_may_be_measured(around):
    """Model Garden logs the rate that averages have of the optimizer inside."""
    settings = {"measure_noise": {"enabled": True}, "adascale": {"scale": 2}}[around]
    run = Run({around: settings, "gradient_accumulation_steps": 2})
    for micro_batches in parts(2):
        for gradients in micro_batches:
            run.step(gradients)
    assert int(run.optimizer.iterations) == STEPS
    assert float(run.optimizer.learning_rate) == pytest.approx(0.1)


EMA = {"ema": {"average_decay": 0.5, "dynamic_decay": False}}


def test_averages_are_evaluated_where_there_are_any(records, tmp_path, monkeypatch):
    """Those of a checkpoint without any would be 0; weights are told of where averages are."""
    warned = []
    monkeypatch.setattr(checkpoints.logging, "warning", lambda text, *a: warned.append(text % a))
    plain, settings = tmp_path / "plain", tiny(records, optimizer_config=EMA)
    with uncompiled():
        run(build(tiny(records, train_steps=1)), plain, "train")
        monkeypatch.setattr(Runner, "evaluated", str(plain / "ckpt-1"))
        words = f"averages of the weights, and {plain}/ckpt-1 gives none. Write"
        with pytest.raises(UserError, match=words):
            run(build(settings), tmp_path / "two", "eval")
        monkeypatch.setattr(Runner, "evaluated", None)
        settings["task"]["init_checkpoint"] = str(plain)
        with pytest.raises(UserError, match="and task.init_checkpoint gives none. Write"):
            run(build(settings), tmp_path / "three", "eval")
        averaged = tmp_path / "averaged"
        run(build(tiny(records, train_steps=1, optimizer_config=EMA)), averaged, "train")
        monkeypatch.setattr(Runner, "evaluated", str(averaged / "ckpt-1"))
        warned.clear()
        run(build(tiny(records)), tmp_path / "four", "eval")
    said = f"{averaged}/ckpt-1 holds averages of the weights, and the weights are evaluated"
    assert any(text.startswith(said) for text in warned)
