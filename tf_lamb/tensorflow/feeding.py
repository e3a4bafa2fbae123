"""Makes a dataset for `fit` from the batches of a Python generator."""

import tensorflow as tf


def dataset(batches, first, is_tried=False):
    """Returns a dataset whose shapes are known but for the batch size; one program fits all sizes.

    Args:
        batches: The generator of batches, which is read once.
        first: A batch that is like all others, except for its size.
        is_tried: Whether `fit` reads the dataset twice: first a batch to build the model, which is
            `first`, and then all batches. Defaults to False.
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
    """Returns the batch with tuples for lists, because TensorFlow makes one array of a list."""
    if isinstance(batch, dict):
        return {key: _tuples(value) for key, value in batch.items()}
    return tuple(map(_tuples, batch)) if isinstance(batch, (list, tuple)) else batch
