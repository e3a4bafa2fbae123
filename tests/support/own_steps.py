"""A model with steps of its own, in every Keras and on every backend that is tested."""

import keras
from support.frontends import BACKEND


def stepping(host, take, width=1, evaluates=True, loss=None):
    """A linear model of eight inputs, compiled with SGD, whose loss is the mean square.

    Args:
        host: Keras 3 or tf_keras.
        take: Data of a step -> inputs and targets; None: Keras's own steps.
        width: Outputs.
        evaluates: Whether it has a `test_step`.
        loss: Of `compile`, which its own steps do not use.
    """
    inputs = host.layers.Input((8,))
    outputs = host.layers.Dense(width, kernel_initializer="ones")(inputs)
    if take is None:
        model = host.Model(inputs, outputs)
        model.compile("sgd", "mse")
        return model

    class Tracking(host.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.tracker = host.metrics.Mean(name="loss")

        @property
        def metrics(self):
            return [self.tracker]

    on_backend = {"tensorflow": _on_tensorflow, "jax": _on_jax, "torch": _on_torch}[BACKEND]
    model_class = on_backend(Tracking, take)
    if not evaluates:
        model_class.test_step = host.Model.test_step
    model = model_class(inputs, outputs)
    model.compile("sgd", loss)
    return model


def _on_tensorflow(base, take):
    import tensorflow as tf

    class Model(base):
        def mean_square(self, data):
            x, y = take(data)
            return tf.reduce_mean((self(x) - y) ** 2)

        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = self.mean_square(data)
            trained = self.trainable_variables
            gradients = tape.gradient(loss, trained)
            self.optimizer.apply_gradients(zip(gradients, trained, strict=True))
            self.tracker.update_state(loss)
            return {"loss": self.tracker.result()}

        def test_step(self, data):
            self.tracker.update_state(self.mean_square(data))
            return {"loss": self.tracker.result()}

    return Model


def _on_jax(base, take):
    import jax

    class Model(base):
        def mean_square(self, trained, others, data):
            x, y = take(data)
            outputs, others = self.stateless_call(trained, others, x)
            return keras.ops.mean((outputs - y) ** 2), others

        def train_step(self, state, data):
            trained, others, slots, shown = state
            of = jax.value_and_grad(self.mean_square, has_aux=True)
            (loss, others), gradients = of(trained, others, data)
            trained, slots = self.optimizer.stateless_apply(slots, gradients, trained)
            shown = self.tracker.stateless_update_state(shown, loss)
            return {"loss": self.tracker.stateless_result(shown)}, (trained, others, slots, shown)

        def test_step(self, state, data):
            trained, others, shown = state
            loss, others = self.mean_square(trained, others, data)
            shown = self.tracker.stateless_update_state(shown, loss)
            return {"loss": self.tracker.stateless_result(shown)}, (trained, others, shown)

    return Model


def _on_torch(base, take):
    import torch

    class Model(base):
        def mean_square(self, data):
            x, y = take(data)
            return keras.ops.mean((self(x) - y) ** 2)

        def train_step(self, data):
            self.zero_grad()
            loss = self.mean_square(data)
            loss.backward()
            trained = self.trainable_variables
            with torch.no_grad():
                self.optimizer.apply([v.value.grad for v in trained], trained)
            self.tracker.update_state(loss)
            return {"loss": self.tracker.result()}

        def test_step(self, data):
            self.tracker.update_state(self.mean_square(data))
            return {"loss": self.tracker.result()}

    return Model
