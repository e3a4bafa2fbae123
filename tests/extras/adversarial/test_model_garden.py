"""Model Garden's ResNet, trained on adversarial examples too."""

import numpy as np
import pytest

pytest.importorskip("official")

import tensorflow as tf
from official.vision.ops import preprocess_ops
from support.clusters import mirrored
from support.garden import tiny_resnet, trainer_of

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
