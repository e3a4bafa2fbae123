"""Trust ratios on show, on TensorFlow: where a step leaves them, and who reads them."""

import contextlib

import tensorflow as tf


def vector_beside(variable, strategy, name):
    """A vector of four numbers, all -1, where the variable lives: each replica has a copy."""
    inside = tf.distribute.get_strategy() is strategy
    with (
        contextlib.nullcontext() if inside else strategy.scope(),
        strategy.extended.colocate_vars_with(variable),
    ):
        return tf.Variable([-1.0] * 4, trainable=False, name=name)


def fetch(vectors):
    """The vectors as lists, in one transfer."""
    return tf.stack([tf.convert_to_tensor(v) for v in vectors]).numpy().tolist()
