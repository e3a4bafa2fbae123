"""Trust ratios on TensorFlow: where a step leaves them, who reads them, and TensorBoard's files."""

import contextlib
import math

import tensorflow as tf

from tf_lamb.api.callbacks.trust_ratios import by_layer
from tf_lamb.api.optimizers.observation import NORMS_AND_RATIO, UNSEEN


def vector_like(variable, strategy, name):
    """A vector that has seen no step, where the variable lives: each replica has a copy."""
    inside = tf.distribute.get_strategy() is strategy
    with (
        contextlib.nullcontext() if inside else strategy.scope(),
        strategy.extended.colocate_vars_with(variable),
    ):
        return tf.Variable(UNSEEN, trainable=False, name=name)


def fetch(vectors):
    """The vectors as lists, in one transfer."""
    return tf.stack([tf.convert_to_tensor(v) for v in vectors]).numpy().tolist()


class Writer:
    """Event files in a directory; written by the chief alone where there are several workers."""

    def __init__(self, directory, optimizer):
        # seam: tf_keras 2.20.1 and Keras 3.15.1, where TensorFlow trains.
        strategy = getattr(optimizer, "_distribution_strategy", None)
        if strategy is None or strategy.extended.should_save_summary:
            self._writer = tf.summary.create_file_writer(str(directory))
        else:
            self._writer = tf.summary.create_noop_writer()

    def write(self, step, observations):
        """One reading: scalars by variable, histograms and the count of clipped ratios by layer."""
        layers = by_layer(observations)
        with self._writer.as_default(step), tf.summary.record_if(True):
            for seen in observations:
                if seen.trust_ratio is not None:
                    for name in NORMS_AND_RATIO:
                        tf.summary.scalar(f"{name}/{seen.path}", getattr(seen, name))
            for name in NORMS_AND_RATIO:
                values = [getattr(seen, name) for seen in layers]
                if finite := [value for value in values if math.isfinite(value)]:
                    tf.summary.histogram(f"{name}s", finite)
            tf.summary.scalar("clipped_trust_ratios", sum(seen.clipped for seen in layers))
            self._writer.flush()

    def close(self):
        """Closes the file."""
        self._writer.close()
