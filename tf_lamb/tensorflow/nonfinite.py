"""Whether a step may be taken: one pass over its gradients."""

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from tf_lamb.tensorflow import servers


def are_finite(gradients):
    """By gradient, whether the sum of its squares is finite in the precision of the update.

    Then each element is, and its square as well, which a second moment has to hold.
    """
    return tf.stack([tf.math.is_finite(tf.nn.l2_loss(g)) for g in gradients])


def which(variables):
    """By variable, whether every element is finite, large as it may be; waits for the device."""
    return tf.stack([tf.reduce_all(tf.math.is_finite(v)) for v in variables]).numpy()


def count(skipped, step=None, tell=None):
    """One more step was skipped; calls `tell` with the step and the count, where a program can.

    Only this branch waits for the host. XLA compiles no call of the host, and a server has none.
    """
    skipped.assign_add(1)
    if tell is None:
        return
    # seam: TensorFlow 2.20. Whether XLA compiles what is being traced.
    compiled = control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    if not compiled and not servers.are_used():
        tf.py_function(tell, [step, skipped], [])


def refuse(finite, refusal, paths):
    """An operation that raises, unless all is finite; in a step that XLA compiles whole, none."""
    strange = tf.boolean_mask(tf.constant(paths), tf.logical_not(finite))
    return tf.debugging.Assert(tf.reduce_all(finite), [refusal, strange], summarize=10)
