"""A training on torch that processes share, by `keras.distribution.DataParallel`."""

import os

import numpy as np

ROWS, STEPS = 16, 3


def trained(names):
    """The weights of each optimizer after three steps, all in one list.

    Each process has its share of the rows. Without `WORLD_SIZE` it is alone, and has them all.
    """
    import keras

    import tf_lamb.keras

    count, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if count > 1:
        distribution = keras.distribution
        distribution.initialize()
        devices = [f"cpu:{i}" for i in range(count)]
        distribution.set_distribution(
            distribution.DataParallel(devices=devices, auto_shard_dataset=False)
        )
    random, ends = np.random.default_rng(0), {}
    x, y = (random.normal(size=(ROWS, width)).astype("float32")[rank::count] for width in (4, 2))
    for name in names:
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(2)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.compile(getattr(tf_lamb.keras, name)(0.01), "mse")
        for _ in range(STEPS):
            model.train_on_batch(x, y)
        weights = map(keras.ops.convert_to_numpy, model.trainable_variables)
        ends[name] = np.concatenate([weight.ravel() for weight in weights]).tolist()
    return ends
