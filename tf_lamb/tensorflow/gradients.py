"""A gradient as a step takes it."""

import tensorflow as tf


def dense(gradient, variable):
    """As a tensor in the shape of its variable.

    Every row of the moments decays, so the gradient of an embedding may as well be dense. A data
    set that does not say its shapes hides those of gradients from TensorFlow, too.
    """
    gradient = tf.convert_to_tensor(gradient)
    gradient.set_shape(variable.shape)
    return gradient
