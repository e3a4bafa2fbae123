"""What the tests of migration share: what the peers saved, and small models to go on with."""

import tensorflow as tf
import tf_keras
from goldens import load, problem

import tf_lamb.tf_keras

ADDONS = load.models("tensorflow_addons")["lamb_model"]
GARDEN = load.models("model_garden")
KERAS = load.models("keras")
DECAY = {"weight_decay": 0.01, "exclude_from_weight_decay": ["layer_norm", "bias"]}


def build(host):
    host.backend.clear_session()
    return problem.build_model(host)


def renamed_model(host, **names):
    model = host.Sequential(
        [host.Input((4,)), host.layers.Dense(3, name=names.get("dense", "dense")),
         host.layers.Dense(2, name=names.get("head", "head"))]
    )  # fmt: skip
    return model


def stepped():
    """An optimizer of tf_keras that has made a step, on layers `dense` and `head`."""
    tf_keras.backend.clear_session()
    model = renamed_model(tf_keras)
    optimizer = tf_lamb.tf_keras.LAMB(0.1, jit_compile=False)
    variables = model.trainable_variables
    optimizer.apply_gradients([(tf.ones(v.shape), v) for v in variables])
    return optimizer
