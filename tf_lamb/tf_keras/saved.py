"""What tf_keras's loaders hand over, as it was when it was saved.

Seams into tf_keras (2.20.1): HDF5 models are loaded by `class_name`, where a class of a package is
known by its `registered_name` alone; bfloat16, which HDF5 has not, comes back as two bytes of
nothing.
"""

import tensorflow as tf


def by_registered_name(config):
    """The config of an object, so that every loader finds its class."""
    if not isinstance(config, dict):
        return config
    return {**config, "class_name": config.get("registered_name") or config.get("class_name")}


def value(array):
    """What stood in a variable."""
    array = array[()]
    return array.view(tf.bfloat16.as_numpy_dtype) if array.dtype == "V2" else array
