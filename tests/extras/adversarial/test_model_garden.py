"""Model Garden's ResNet, trained on adversarial examples too."""

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("official")

import tensorflow as tf
from official.vision.ops import preprocess_ops
from support.clusters import mirrored
from support.garden import ROOT, tiny_resnet, trainer_of

from tf_lamb.model_garden.checks.experiment import check_run
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb_extras.adversarial import model_garden  # noqa: F401  (registers)

EXPERIMENT = "lars/resnet_imagenet_conadv"
DEVIATION = np.array(preprocess_ops.STDDEV_RGB)


def tiny(path, **adversarial):
    params = tiny_resnet(path, experiment=EXPERIMENT)
    return params.replace(
        task={"adversarial": adversarial},
        trainer={"optimizer_config": {"warmup": {"tf_lamb": {"steps": 1, "start": 0.1}}}},
    )


def numbers(variables):
    return [v.numpy() for v in variables]


def equal(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_the_line_is_as_stale_as_the_formula(pictures, eager, replicas, tmp_path):
    strategy = mirrored(replicas)
    trainer = trainer_of(tiny(pictures, tau=2), strategy, evaluate=True)
    model = trainer.model
    history = []
    for t in range(4):
        history.append(numbers(model.trainable_variables))
        assert equal(numbers(model.stale.model.trainable_variables), history[max(t - 2, 0)])
        assert equal(numbers(model.stale.line[0]), history[max(t - 1, 0)])
        with strategy.scope():
            logs = trainer.train(tf.constant(1))
    assert np.isfinite(logs["training_loss"])
    assert not equal(history[0], history[1]) and not equal(history[1], history[2])
    # The stale model moves no averages, and the optimizer knows nothing of it.
    norms = [layer for layer in model.stale.model.submodules if hasattr(layer, "moving_mean")]
    assert len(norms) == 13
    assert not any(np.any(layer.auxiliary_moving_mean.numpy()) for layer in norms)
    stale = {id(v) for v in model.stale.model.variables}
    assert not stale & {id(v) for v in model.trainable_variables}
    # What is saved is all of it.
    path = trainer.checkpoint.save(str(tmp_path / "some"))
    again = trainer_of(tiny(pictures, tau=2), strategy)
    again.checkpoint.read(path).expect_partial()
    for part in (
        lambda m: m.stale.model.trainable_variables,
        lambda m: m.stale.line[0],
        lambda m: m.trainable_variables,
    ):
        assert equal(numbers(part(again.model)), numbers(part(model)))


def test_a_restored_run_begins_its_attacks_where_the_unbroken_one_does(pictures, eager, tmp_path):
    params = tiny(pictures, tau=0, clean_start=0.2, step_size=1e-3)
    random = np.random.default_rng(1)
    batch = tf.constant(random.normal(size=(4, 32, 32, 3)), "float32"), tf.constant([1, 2, 3, 4])

    def attacked(trainer):
        return trainer.task.adversarial(trainer.model, *batch, trainer.optimizer).numpy()

    trainer = trainer_of(params, mirrored(1))
    first = attacked(trainer)
    trainer.optimizer.iterations.assign_add(1)
    second = attacked(trainer)
    assert np.abs(second - first).max() > 0.1
    path = trainer.checkpoint.save(str(tmp_path / "some"))
    again = trainer_of(params, mirrored(1))
    again.checkpoint.read(path).expect_partial()
    np.testing.assert_array_equal(attacked(again), second)


@pytest.mark.parametrize("tau", [0, 1])
def test_the_attack(pictures, eager, tau):
    trainer = trainer_of(tiny(pictures, tau=tau, clean_start=1.0), mirrored(1))
    random = np.random.default_rng(1)
    pixels = random.uniform(0, 255, (4, 32, 32, 3))
    x = ((pixels - preprocess_ops.MEAN_RGB) / DEVIATION).astype("float32")
    batch = tf.constant(x), tf.constant(random.integers(10, size=4))

    def attacked():
        return trainer.task.adversarial(trainer.model, *batch, trainer.optimizer).numpy()

    moved = attacked() * DEVIATION + preprocess_ops.MEAN_RGB
    assert moved.min() > -1e-3 and moved.max() < 255 + 1e-3
    change = np.abs(moved - pixels)
    np.testing.assert_allclose(change.max((0, 1, 2)), 9, rtol=1e-4)
    assert np.median(change) == pytest.approx(9, rel=1e-4)
    before = attacked()
    for v in trainer.model.trainable_variables:
        v.assign(-v + 0.1)
    assert np.array_equal(attacked(), before) == (tau > 0)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"adversarial": {"epsilon": 300}}, "epsilon must be a number in (0, 255], but it is 300"),
        ({"adversarial": {"step_size": 0}}, "step_size must be a number in (0, 255], but it is 0"),
        ({"adversarial": {"alpha": 2}}, "alpha must be a number in [0, 1], but it is 2"),
        ({"adversarial": {"tau": -1}}, "tau must be a whole number >= 0, not -1"),
        ({"ghost_batch_size": 2}, "set task.ghost_batch_size to null"),
        ({"losses": {"soft_labels": True}}, "needs one label an image"),
        ({"model": {"input_size": [32, 32, 1]}}, "3 colours"),
    ],
)
def test_an_attack_that_cannot_be(pictures, tmp_path, change, expected):
    with pytest.raises(UserError) as error:
        check_run(tiny(pictures).replace(task=change), "train", str(tmp_path))
    assert expected in str(error.value)


def test_staleness_counts_updates(pictures, tmp_path):
    optimizer = {"optimizer": {"tf_lars": {"gradient_accumulation_steps": 2}}}
    params = tiny(pictures).replace(trainer={"optimizer_config": optimizer})
    with pytest.raises(UserError, match="tau=1 counts updates"):
        check_run(params, "train", str(tmp_path))


@pytest.mark.slow  # a process
def test_the_command_knows_the_experiment_by_an_import():
    command = [
        sys.executable, "-m", "tf_lamb.model_garden.train", f"--experiment={EXPERIMENT}",
        "--mode=train", "--model_dir=unwritten", "--params_override=task.ghost_batch_size=2",
    ]  # fmt: skip

    def says(*flags):
        done = subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 1 and "Traceback" not in done.stderr
        return done.stderr

    assert "set task.ghost_batch_size to null" in says(
        "--gin_params=import tf_lamb_extras.adversarial.model_garden"
    )
    assert EXPERIMENT in says()  # which is no experiment without
