"""Makes a dataset for `fit` from the batches of a Python generator."""

import tensorflow as tf


def make_dataset(batches, first_batch, is_read_twice=False):
    """Returns a `tf.data.Dataset` of batches, with all dimensions known except the batch size.

    So TensorFlow traces one training step for all batch sizes.

    Args:
        batches: The generator of batches, which is read once.
        first_batch: A batch that is like all others, except for its size.
        is_read_twice: Whether `fit` reads the dataset twice: first a batch to build the model,
            which is `first_batch`, and then all batches. Defaults to False.
    """
    passes = iter([[first_batch], batches] if is_read_twice else [batches])
    signature = tf.nest.map_structure(
        lambda array: tf.TensorSpec([None, *array.shape[1:]], array.dtype),
        _lists_to_tuples(first_batch),
    )
    tf_dataset = tf.data.Dataset.from_generator(
        lambda: map(_lists_to_tuples, next(passes)), output_signature=signature
    )
    return tf_dataset.prefetch(tf.data.AUTOTUNE)


def _lists_to_tuples(batch):
    """Replaces lists in a batch by tuples, because TensorFlow would make a list one array."""
    if isinstance(batch, dict):
        return {key: _lists_to_tuples(value) for key, value in batch.items()}
    return tuple(map(_lists_to_tuples, batch)) if isinstance(batch, (list, tuple)) else batch
