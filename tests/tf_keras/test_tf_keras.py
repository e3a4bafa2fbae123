"""What tf_keras alone has: replicas that name their variables anew, and strangers at any step."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from support import small_model
from support.clusters import mirrored

import tf_lamb.tf_keras


@pytest.mark.parametrize("pattern", ["bias$", "LayerNorm", "layer_norm", "^encoder/.*/kernel$"])
@pytest.mark.parametrize("make", ["functional", "subclassed"])
def test_patterns_see_through_the_names_of_replicas(make, pattern):
    """On replica 1 a variable is called `dense/bias/replica_1:0`."""
    strategy, plans = mirrored(2), []
    with strategy.scope():
        model = getattr(small_model, make)("tf_keras")
    for on_replicas in (False, True):
        with strategy.scope():
            optimizer = tf_lamb.tf_keras.LAMB(weight_decay=0.1, exclude_from_weight_decay=[pattern])
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


@pytest.mark.parametrize(
    ("form", "compiles_anew", "steps"),
    [("model.h5", False, 0), ("model.h5", True, 1), ("model.keras", False, 2)],
)
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_hdf5_brings_the_state_of_what_was_trained_since_the_build(
    tmp_path, form, compiles_anew, steps
):
    """tf_keras builds it on what is trained, and where the file has more, the state begins anew."""
    model = tf_keras.Sequential([tf_keras.Input((3,)), *map(tf_keras.layers.Dense, (4, 2))])
    model.compile(tf_lamb.tf_keras.LARS(0.1), "mse")
    x, y = small_model.data()
    model.fit(x, y, batch_size=len(x), verbose=0)
    model.layers[-1].trainable = False
    model.compile(tf_lamb.tf_keras.LARS(0.1) if compiles_anew else model.optimizer, "mse")
    model.fit(x, y, batch_size=len(x), verbose=0)
    model.save(tmp_path / form)
    loaded = tf_keras.models.load_model(tmp_path / form)
    assert int(loaded.optimizer.iterations.numpy()) == steps
