"""Two views of an event and a loss between them: a subclassed model with a `train_step` of its own.

It took Model Garden's LARS, along a warmup and cosine that the batch gives, and the encoder may be
frozen.
"""

import functools

import keras
import numpy as np
import pytest
from support.frontends import BACKEND, FRONTENDS, array, every_frontend

pytestmark = pytest.mark.usefixtures("quickly_compiled")

BATCH = 8
rng = np.random.default_rng(0)
EVENTS = rng.normal(size=(4 * BATCH, 6)).astype("float32")
TARGETS = EVENTS[:, :3] * 2 - 1


@functools.cache
def model_class(frontend, own_step=True):
    """An encoder and a projector; without the step of its own, `fit` takes Keras's."""
    host, _ = FRONTENDS[frontend]
    layers = host.layers

    class TwoViews(host.Model):
        def __init__(self):
            super().__init__(name="two_views")
            self.encoder = host.Sequential(
                [layers.Dense(5, activation="relu", name="first"),
                 layers.BatchNormalization(name="norm")], name="encoder",
            )  # fmt: skip
            self.projector = layers.Dense(3, name="projector")

        def call(self, x, training=False):
            return self.projector(self.encoder(x, training=training))

        if own_step and BACKEND == "tensorflow":

            def train_step(self, data):
                import tensorflow as tf

                x, y = data
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
                gradients = tape.gradient(loss, self.trainable_variables)
                pairs = zip(gradients, self.trainable_variables, strict=True)
                self.optimizer.apply_gradients(pairs)
                return {"loss": loss}

        elif own_step:

            def train_step(self, state, data):
                import jax

                trainable, other, optimizer, metrics = state

                def loss_of(trainable, other):
                    outputs, other = self.stateless_call(trainable, other, x, training=True)
                    return keras.ops.mean(keras.ops.square(outputs - y)), other

                x, y = data
                (loss, other), gradients = jax.value_and_grad(loss_of, has_aux=True)(
                    trainable, other
                )
                trainable, optimizer = self.optimizer.stateless_apply(
                    optimizer, gradients, trainable
                )
                return {"loss": loss}, (trainable, other, optimizer, metrics)

    return TwoViews


def cosine(host):
    rate = 0.2 * BATCH / 256
    return host.optimizers.schedules.CosineDecay(
        rate / 10, 10, alpha=0.0, warmup_target=rate, warmup_steps=3
    )


def lars(frontend, **own):
    host, ours = FRONTENDS[frontend]
    return ours.LARS(cosine(host), momentum=0.9, weight_decay=1.5e-6, **own)


def compiled(frontend, own_step=True, frozen=False, **own):
    host, _ = FRONTENDS[frontend]
    host.utils.set_random_seed(0)
    model = model_class(frontend, own_step)()
    model(EVENTS[:2])
    model.encoder.trainable = not frozen
    model.compile(lars(frontend, **own), "mse")
    return model


def fit(model, epochs=2):
    model.fit(EVENTS, TARGETS, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)
    return model


def bits(layer):
    return [weights.copy() for weights in layer.get_weights()]


def is_same(one, other):
    return [bool((a == b).all()) for a, b in zip(one, other, strict=True)]


@every_frontend
@pytest.mark.once
def test_the_call_of_model_gardens_lars_is_answered(frontend):
    host, ours = FRONTENDS[frontend]
    with pytest.raises(TypeError, match=r"write LARS\(.*weight_decay=1\.5e-06"):
        ours.LARS(weight_decay_rate=1.5e-6, learning_rate=0.1, momentum=0.9)


@pytest.mark.skipif(BACKEND == "torch", reason="the step is TensorFlow's or JAX's")
@pytest.mark.parametrize("frozen", [False, True], ids=["whole", "frozen encoder"])
@every_frontend
def test_an_own_step_ends_where_keras_own_step_does(frontend, frozen):
    one, other = (fit(compiled(frontend, own, frozen)) for own in (True, False))
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert int(array(one.optimizer.iterations)) == 8


@pytest.mark.skipif(BACKEND == "torch", reason="the step is TensorFlow's or JAX's")
@every_frontend
def test_a_frozen_encoder_keeps_its_bits_and_has_no_slots(frontend):
    model = compiled(frontend, frozen=True)
    encoder, projector = bits(model.encoder), bits(model.projector)
    fit(model)
    assert all(is_same(encoder, bits(model.encoder)))
    assert not any(is_same(projector, bits(model.projector)))
    assert [path.split("/")[-2:] for path in model.optimizer.plan.paths] == [
        ["projector", "kernel"], ["projector", "bias"],
    ]  # fmt: skip


@pytest.mark.skipif(BACKEND == "torch", reason="the step is TensorFlow's or JAX's")
@every_frontend
def test_an_encoder_that_is_freed_and_compiled_anew_moves(frontend):
    model = fit(compiled(frontend, frozen=True))
    encoder = bits(model.encoder)
    model.encoder.trainable = True
    model.compile(lars(frontend), "mse")
    fit(model)
    assert not any(is_same(encoder, bits(model.encoder)))


@every_frontend
@pytest.mark.once
def test_names_of_a_subclassed_model_are_excluded_by(frontend):
    """Those of its layers, which are in the paths of both Kerases."""
    model = compiled(frontend, exclude_from_layer_adaptation=["first/", "norm/", "bias$"])
    model.optimizer.build(model.trainable_variables)
    plan = zip(model.optimizer.plan.paths, model.optimizer.plan.treatments, strict=True)
    adapted = [path.split("/")[-2:] for path, each in plan if each.adapt]
    assert adapted == [["projector", "kernel"]]
