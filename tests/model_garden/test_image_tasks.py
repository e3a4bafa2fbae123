"""Door 3: Model Garden's ResNet, normalized by groups."""

import numpy as np
import pytest

pytest.importorskip("official")

import tensorflow as tf
from support.garden import build, mirrored, one_device, trainer_of, weights

import tf_lamb.tf_keras
from tf_lamb.model_garden import checks, parsing

EXPERIMENT = "lars/resnet_imagenet"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("pictures") / "some.tfrecord")
    random = np.random.default_rng(1)
    with tf.io.TFRecordWriter(path) as writer:
        for label in random.integers(10, size=16):
            picture = tf.io.encode_jpeg(random.integers(0, 255, (32, 32, 3), np.uint8)).numpy()
            features = {
                "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[picture])),
                "image/class/label": tf.train.Feature(
                    int64_list=tf.train.Int64List(value=[int(label)])
                ),
            }
            features = tf.train.Features(feature=features)
            writer.write(tf.train.Example(features=features).SerializeToString())
    return path


def tiny(path, ghost_batch_size, experiment=EXPERIMENT):
    data = {"input_path": path, "global_batch_size": 8, "seed": 1, "aug_crop": False}
    backbone = {"type": "resnet", "resnet": {"model_id": 10, "depth_multiplier": 0.125}}
    return build(
        {
            "runtime": {"distribution_strategy": "one_device"},
            "task": {
                "ghost_batch_size": ghost_batch_size,
                "model": {"num_classes": 10, "input_size": [32, 32, 3], "backbone": backbone},
                "train_data": data,
                "validation_data": data,
            },
            "trainer": {"train_steps": 2, "steps_per_loop": 1,
                        "optimizer_config": {"warmup": {"tf_lamb": {"steps": 1}},
                                             "optimizer": {"tf_lars": {"jit_compile": False}}}},
        },
        experiment,
    )  # fmt: skip


def kind(variable):
    """A variable's name in its layer, whose own name counts the layers of this process."""
    return variable.name.rpartition("/")[2], variable.shape


two = pytest.param(lambda: mirrored(2), marks=pytest.mark.slow)


@pytest.mark.parametrize("strategy", [one_device, two], ids=["one", "two"])
def test_a_resnet_trains_by_groups(pictures, strategy):
    strategy = strategy()
    trainer = trainer_of(tiny(pictures, 2), strategy, evaluate=True)
    ghosts = [layer for layer in trainer.model.submodules if hasattr(layer, "moving_mean")]
    assert len(ghosts) == 13  # also in the residual blocks
    assert {(type(layer), layer.group_size) for layer in ghosts} == {
        (tf_lamb.tf_keras.GhostBatchNormalization, 2)
    }
    stock = trainer_of(tiny(pictures, None), strategy, evaluate=True)
    assert list(map(kind, stock.model.variables)) == list(map(kind, trainer.model.variables))
    batch = np.random.default_rng(1).normal(size=(4, 32, 32, 3)).astype("float32")
    with strategy.scope():
        np.testing.assert_array_equal(trainer.model(batch), stock.model(batch))
        trainer.train(tf.constant(1))
    moved = {
        v.name.rpartition("/")[2]
        for v, one, other in zip(
            stock.model.variables, weights(trainer), weights(stock), strict=True
        )
        if not np.allclose(one, other)
    }
    assert moved == {"moving_mean:0", "moving_variance:0"}  # warmup begins at a rate of 0
    assert all(np.isfinite(w).all() for w in weights(trainer))


@pytest.mark.parametrize(
    ("size", "change", "expected"),
    [
        (3, {}, "task.ghost_batch_size=3 does not divide the 8 examples that a replica sees"),
        (8, {"runtime": {"distribution_strategy": "mirrored", "num_gpus": 2}}, "the 4 examples"),
        (3, {"runtime": {"distribution_strategy": "tpu"}}, "8 examples that all replicas see"),
        (0, {}, "task.ghost_batch_size is 0. Set it to 1 or more"),
        (2, {"task": {"model": {"norm_activation": {"use_sync_bn": True}}}}, "use_sync_bn over"),
    ],
)
def test_groups_that_cannot_be(pictures, tmp_path, size, change, expected):
    params = tiny(pictures, size).replace(**change)
    with pytest.raises(parsing.UserError) as error:
        checks.check(params, "train", str(tmp_path))
    assert expected in str(error.value)


def test_groups_that_can_be(pictures, tmp_path):
    checks.check(tiny(pictures, 4), "train", str(tmp_path))
