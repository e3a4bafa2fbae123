"""Makes a dataset for `fit` from the batches of a Python generator."""

import tensorflow as tf


def dataset(batches, first, is_tried=False):
    """Returns a dataset whose shapes are known except for the batch, for one program of all sizes.

    Args:
        batches: The generator of batches, which is read once.
        first: A batch that is like all others, except for its size.
        is_tried: Whether `fit` begins to read the dataset to build the model, and then begins anew.
    """
    passes = iter([[first], batches] if is_tried else [batches])
    signature = tf.nest.map_structure(
        lambda array: tf.TensorSpec([None, *array.shape[1:]], array.dtype), _tuples(first)
    )
    tf_dataset = tf.data.Dataset.from_generator(
        lambda: map(_tuples, next(passes)), output_signature=signature
    )
    return tf_dataset.prefetch(tf.data.AUTOTUNE)


def _tuples(batch):
    """Returns the batch with tuples in place of lists, each of which would become one array."""
    if isinstance(batch, dict):
        return {key: _tuples(value) for key, value in batch.items()}
    return tuple(map(_tuples, batch)) if isinstance(batch, (list, tuple)) else batch
