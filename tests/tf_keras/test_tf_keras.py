"""What tf_keras alone has: replicas that name their variables anew, and strangers at any step."""

import numpy as np
import pytest
import tensorflow as tf
from support import small_model
from support.clusters import mirrored

import tf_lamb.tf_keras


@pytest.mark.parametrize("make", ["functional", "subclassed"])
def test_patterns_see_through_the_names_of_replicas(make):
    """On replica 1 a variable is called `dense/bias/replica_1:0`."""
    strategy = mirrored(2)
    with strategy.scope():
        model = getattr(small_model, make)("tf_keras")
    for pattern in ("bias$", "LayerNorm", "layer_norm", "^encoder/.*/kernel$"):
        plans = []
        for on_replicas in (False, True):
            with strategy.scope():
                optimizer = tf_lamb.tf_keras.LAMB(
                    weight_decay=0.1, exclude_from_weight_decay=[pattern]
                )
            if on_replicas:
                strategy.run(lambda o=optimizer: o.build(model.trainable_variables))
            else:
                optimizer.build(model.trainable_variables)
            plans.append(optimizer.plan)
        assert plans[0] == plans[1]
        assert not all(t.decay for t in plans[0].treatments)


def test_a_stranger_is_refused_at_any_step():
    optimizer = tf_lamb.tf_keras.LAMB()
    optimizer.build(small_model.functional("tf_keras").trainable_variables)
    stranger = tf.Variable(np.ones(1), name="stranger")
    with pytest.raises(ValueError, match="built for other variables than 'stranger'"):
        optimizer.apply_gradients([(tf.ones(1), stranger)])
