"""The few NumPy-named functions that the mathematics uses, over TensorFlow."""

import math

import tensorflow as tf

abs = tf.abs
cos = tf.cos
expm1 = tf.math.expm1
floor = tf.floor
logical_not = tf.logical_not
max = tf.reduce_max
maximum = tf.maximum
minimum = tf.minimum
ones_like = tf.ones_like
reshape = tf.reshape
sqrt = tf.sqrt
square = tf.square
sum = tf.reduce_sum
where = tf.where


def concatenate(arrays):
    """Along the first axis."""
    return tf.concat(arrays, 0)


def log2(x):
    """The binary logarithm."""
    return tf.math.log(x) / math.log(2)
