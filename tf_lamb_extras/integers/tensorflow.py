"""Computes batch normalization in integers on TensorFlow's tensors."""

import tensorflow as tf

from tf_lamb.tensorflow import namespace
from tf_lamb_extras.integers import arithmetic


def evaluate(layer, x):
    """Returns y, an int32 tensor, for the accumulators x of a `FixedPointLayer`.

    Args:
        layer: The `FixedPointLayer`.
        x: A tensor of integers, int32 or smaller.

    Raises:
        TypeError: If x is not a tensor of integers.
        tf.errors.InvalidArgumentError: If an accumulator is out of its range.
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
