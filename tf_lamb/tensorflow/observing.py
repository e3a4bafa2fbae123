"""Trust ratios on show, on TensorFlow: where a step leaves them, and who reads them."""

import contextlib

import tensorflow as tf

from tf_lamb.api.optimizers import observation as observing
from tf_lamb.tensorflow import namespace


def vector_beside(variable, strategy, name):
    """A vector of four numbers, all -1, where the variable lives: each replica has a copy."""
    inside = tf.distribute.get_strategy() is strategy
    with (
        contextlib.nullcontext() if inside else strategy.scope(),
        strategy.extended.colocate_vars_with(variable),
    ):
        return tf.Variable([-1.0] * 4, trainable=False, name=name)


def recorder(observed):
    """What a rule calls to leave its ratio in the vectors of a layer's variables, or None."""
    vectors = [vector for own in observed for vector in own]
    if not vectors:
        return None

    def observe(*seen):
        scalars = observing.summary(namespace, *seen)
        values = tf.stack([tf.cast(scalar, tf.float32) for scalar in scalars])
        for vector in vectors:
            vector.assign(values)

    return observe


def fetch(vectors):
    """The vectors as lists, in one transfer."""
    return tf.stack([tf.convert_to_tensor(v) for v in vectors]).numpy().tolist() if vectors else []
