"""The layers of Keras, built: what Muon takes for a matrix in each."""

import keras

from tf_lamb.keras import Muon

LAYERS = keras.layers


def of(model):
    """Path -> in words what Muon makes of it, of what has two axes or more."""
    plan = Muon().plan_for(model.trainable_variables)
    return {
        path: treatment.words
        for path, shape, treatment in zip(plan.paths, plan.shapes, plan.treatments, strict=True)
        if len(shape) > 1
    }


def model_of(layer, shape, copies=1):
    inputs = keras.Input(shape)
    return keras.Model(inputs, layer(*[inputs] * copies))


BIAS = "fallback: bias or normalization"


def test_attention_of_keras():
    found = of(model_of(LAYERS.MultiHeadAttention(3, 4, name="mha"), (5, 12), 2))
    assert found == {
        **{f"mha/{part}/kernel": "matrix of 12 x 12" for part in ("query", "key", "value")},
        **{f"mha/{part}/bias": BIAS for part in ("query", "key", "value")},
        "mha/attention_output/kernel": "matrix of 12 x 12",
    }
    found = of(model_of(LAYERS.GroupQueryAttention(4, 6, 3, name="gqa"), (5, 12), 2))
    assert [found[f"gqa/{part}/kernel"] for part in ("query", "key", "attention_output")] == [
        "matrix of 12 x 24",
        "matrix of 12 x 12",
        "matrix of 24 x 12",
    ]


def test_convolutions_of_keras():
    inputs = keras.Input((8, 8, 6))
    made = [
        LAYERS.SeparableConv2D(7, 3, depth_multiplier=2, name="separable")(inputs),
        LAYERS.DepthwiseConv2D(3, depth_multiplier=2)(inputs),
        LAYERS.DepthwiseConv2D(3, name="stem")(inputs),
    ]
    assert sorted(of(keras.Model(inputs, made)).values()) == [
        "fallback: depthwise",
        "fallback: depthwise",
        "fallback: one row or column",
        "matrix of 12 x 7",
    ]
