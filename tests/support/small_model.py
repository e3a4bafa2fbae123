"""A small dense model of either frontend, whose layers have the names that users exclude by."""

import functools

import numpy as np
from support.frontends import FRONTENDS, array


@functools.cache
def classes(frontend):
    """The model's block, and the model as a subclass."""
    host, _ = FRONTENDS[frontend]

    class Block(host.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.dense = host.layers.Dense(4, name="dense")
            self.norm = host.layers.LayerNormalization(name="LayerNorm")
            self.scale = self.add_weight(name="scale", shape=(4,), initializer="ones")

        def build(self, input_shape):
            if frontend == "keras":  # tf_keras names them when they are called
                self.dense.build(input_shape)
                self.norm.build((*input_shape[:-1], 4))

        def call(self, x):
            return self.norm(self.dense(x)) * self.scale

    class Subclassed(host.Model):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.parts = layers(frontend)

        def call(self, x):
            for part in self.parts:
                x = part(x)
            return x

    return Block, Subclassed


def layers(frontend):
    host, _ = FRONTENDS[frontend]
    return [
        classes(frontend)[0](name="encoder"),
        host.layers.LayerNormalization(name="final_layer_norm"),
        host.layers.Dense(2, name="head"),
    ]


def functional(frontend):
    host, _ = FRONTENDS[frontend]
    x = inputs = host.Input((3,))
    for part in layers(frontend):
        x = part(x)
    return host.Model(inputs, x)


def subclassed(frontend):
    model = classes(frontend)[1](name="my_model")
    model(np.ones((2, 3), "float32"))
    return model


def two_layers(frontend):
    """Where no name matters: the quickest to compile."""
    host, _ = FRONTENDS[frontend]
    return host.Sequential([host.Input((3,)), host.layers.Dense(4), host.layers.Dense(2)])


def data(rows=64):
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype("float32")
    return x, x[:, :2] * 2 + 1


def go_on(model, epochs=1, batch_size=16):
    """The losses of further epochs."""
    history = model.fit(
        *data(), batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0
    )  # fmt: skip
    return history.history["loss"]


def fit(frontend, optimizer, make=functional, **how):
    """The model after its training with this optimizer, and the losses."""
    host, _ = FRONTENDS[frontend]
    host.utils.set_random_seed(0)
    model = make(frontend)
    model.compile(optimizer=optimizer, loss=host.losses.MeanSquaredError())
    return model, go_on(model, **how)


def assert_same_weights(one, other, tolerance=0.0):
    for a, b in zip(one.trainable_variables, other.trainable_variables, strict=True):
        np.testing.assert_allclose(array(a), array(b), rtol=tolerance, atol=tolerance)
