"""Batches of a Python generator, as a dataset for `fit`."""

import tensorflow as tf


def dataset(batches, first, is_tried=False):
    """A dataset, whose shapes are known but for the batch, so that one program serves all sizes.

    It is of a generator, which is read once, and a first batch as all others, but for its size;
    `is_tried` where `fit` begins to read it, to build the model, and then begins anew.
    """
    passes = iter([[first], batches] if is_tried else [batches])
    signature = tf.nest.map_structure(
        lambda each: tf.TensorSpec([None, *each.shape[1:]], each.dtype), _tuples(first)
    )
    made = tf.data.Dataset.from_generator(
        lambda: map(_tuples, next(passes)), output_signature=signature
    )
    return made.prefetch(tf.data.AUTOTUNE)


def _tuples(batch):
    """The batch, with tuples for lists, each of which would become one array."""
    if isinstance(batch, dict):
        return {key: _tuples(each) for key, each in batch.items()}
    return tuple(map(_tuples, batch)) if isinstance(batch, (list, tuple)) else batch
