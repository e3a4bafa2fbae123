"""Model Garden's ResNet, normalized by groups."""

import numpy as np
import pytest

pytest.importorskip("official")

import tensorflow as tf
from support.clusters import mirrored
from support.garden import tiny_resnet as tiny
from support.garden import trainer_of, weights

import tf_lamb.tf_keras
from tf_lamb.model_garden.checks.experiment import check_run
from tf_lamb.model_garden.common.errors import UserError


def kind(variable):
    """A variable's name in its layer, whose own name counts the layers of this process."""
    return variable.name.rpartition("/")[2], variable.shape


@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_resnet_trains_by_groups(pictures, eager, replicas):
    strategy = mirrored(replicas)
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
        (3, {}, "task.ghost_batch_size=3 does not divide the 8 examples that are seen at once"),
        (8, {"runtime": {"distribution_strategy": "mirrored", "num_gpus": 2}}, "the 4 examples"),
        (0, {}, "task.ghost_batch_size=0 does not divide"),
        (2, {"task": {"model": {"norm_activation": {"use_sync_bn": True}}}}, "use_sync_bn over"),
    ],
)
def test_groups_that_cannot_be(pictures, tmp_path, size, change, expected):
    params = tiny(pictures, size).replace(**change)
    with pytest.raises(UserError) as error:
        check_run(params, "train", str(tmp_path))
    assert expected in str(error.value)
