"""What the tests of decentralized training share: a small model, its data, `fit`, and graphs."""

import functools

import keras
import numpy as np

from tf_lamb_extras.decentralized import rules

WORKERS = 8


def matrix_of(topology, workers=4):
    """Who averages with whom, in a topology that has one turn."""
    (matrix,) = rules.matrices(topology, workers)
    return np.array(matrix)


def dense(dropout=0.0, normalized=False, **options):
    keras.utils.set_random_seed(3)
    layers = [keras.Input((6,)), keras.layers.Dense(16, activation="tanh", **options)]
    if normalized:
        layers.append(keras.layers.BatchNormalization(momentum=0.5))
    if dropout:
        layers.append(keras.layers.Dropout(dropout, seed=1))
    return keras.Sequential([*layers, keras.layers.Dense(3)], name="model")


def compiled(model=None, rate=0.05, momentum=0.9, **options):
    model = model or dense()
    options = {"loss": "mse", "metrics": ["mae"], **options}
    model.compile(keras.optimizers.SGD(rate, momentum=momentum), **options)
    return model


@functools.cache
def data(examples=64, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(examples, 6)).astype("float32")
    return x, np.stack([x[:, 0], x[:, 1] * x[:, 2], np.sin(x[:, 3])], axis=1)


def fit(trainer, epochs=3, **options):
    options = {"batch_size": 16, "shuffle": False, "verbose": 0, **options}
    x, y = options.pop("x", data()[0]), options.pop("y", data()[1])
    return trainer.fit(x, y, epochs=epochs, **options).history
