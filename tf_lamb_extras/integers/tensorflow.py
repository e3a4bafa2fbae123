"""Computes batch normalization and its activation in integer arithmetic, on TensorFlow tensors."""

import tensorflow as tf

from tf_lamb.tensorflow import namespace
from tf_lamb_extras.integers import arithmetic


def evaluate(layer, x):
    """Returns the output of a batch normalization and its activation, as an int32 tensor.

    Args:
        layer: The `FixedPointLayer`, which has the integers of the two layers.
        x: The input of the batch normalization, a tensor of integers, int32 or smaller.

    Raises:
        TypeError: If x is not a tensor of integers.
        tf.errors.InvalidArgumentError: If an integer is out of the range of its channel.
    """
    x = tf.convert_to_tensor(x)
    if not x.dtype.is_integer:
        raise TypeError(f"{layer.name} takes whole numbers, int32 or smaller, not {x.dtype.name}.")
    shape = layer.along(x.shape.rank)

    def along(numbers, dtype=tf.int32):
        return tf.reshape(tf.constant(numbers, dtype), shape)

    wide, low, high = tf.cast(x, tf.int64), along(layer.low, tf.int64), along(layer.high, tf.int64)
    tf.debugging.Assert(
        tf.reduce_all((wide >= low) & (wide <= high)),
        [f"{layer.name}: an accumulator is out of the range that its integers were made for."],
    )
    a, b, shift = map(along, (layer.a, layer.b, layer.shift))
    return arithmetic.evaluate(namespace, tf.cast(x, tf.int32), a, b, shift, layer.bits)
