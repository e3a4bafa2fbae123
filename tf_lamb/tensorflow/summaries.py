"""Makes TensorFlow variables that record trust ratios, and writes TensorBoard's event files."""

import contextlib
import math

import tensorflow as tf

from tf_lamb.api.callbacks.trust_ratios import layers_with_ratio
from tf_lamb.api.optimizers.observation import NORMS_AND_RATIO, UNSEEN


def observation_vector(variable, strategy, name):
    """Makes the variable that records the trust ratio of another variable, on its device.

    It is a vector of four numbers: the norm of the weight, the norm of the update, the trust ratio,
    and the number of ratios that a bound has changed. Before the first step they are `UNSEEN`.

    Args:
        variable: The other variable.
        strategy: The strategy of the optimizer.
        name: The name of the new variable.
    """
    is_in_scope = tf.distribute.get_strategy() is strategy
    with (
        contextlib.nullcontext() if is_in_scope else strategy.scope(),
        strategy.extended.colocate_vars_with(variable),
    ):
        return tf.Variable(UNSEEN, trainable=False, name=name)


def fetch(vectors):
    """Returns the values of variables of one shape as lists of floats, by one transfer for all."""
    return tf.stack([tf.convert_to_tensor(vector) for vector in vectors]).numpy().tolist()


class Writer:
    """Writes event files for TensorBoard; if there are several workers, only the chief writes.

    Args:
        directory: The folder of the files.
        optimizer: The optimizer, whose strategy tells whether this worker writes.
    """

    def __init__(self, directory, optimizer):
        # seam: the private `_distribution_strategy`, of tf_keras 2.20.1 and of Keras 3.15.1 on
        # TensorFlow.
        strategy = getattr(optimizer, "_distribution_strategy", None)
        if strategy is None or strategy.extended.should_save_summary:
            self._writer = tf.summary.create_file_writer(str(directory))
        else:
            self._writer = tf.summary.create_noop_writer()

    def write(self, step, observations):
        """Writes the norms and trust ratios of one step.

        It writes three scalars for each variable, three histograms over all layers, and the number
        of trust ratios that a bound has changed.

        Args:
            step: The number of the step.
            observations: An `Observation` for each variable.
        """
        layers = layers_with_ratio(observations)
        with self._writer.as_default(step), tf.summary.record_if(True):
            for observation in observations:
                if observation.trust_ratio is not None:
                    for name in NORMS_AND_RATIO:
                        tf.summary.scalar(f"{name}/{observation.path}", getattr(observation, name))
            for name in NORMS_AND_RATIO:
                values = [getattr(observation, name) for observation in layers]
                if finite := [value for value in values if math.isfinite(value)]:
                    tf.summary.histogram(f"{name}s", finite)
            tf.summary.scalar(
                "clipped_trust_ratios", sum(observation.clipped for observation in layers)
            )
            self._writer.flush()

    def close(self):
        """Closes the file."""
        self._writer.close()
