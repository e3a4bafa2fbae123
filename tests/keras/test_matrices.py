"""The layers of Keras, built: what Muon takes for a matrix in each."""

import keras
import pytest

from tf_lamb.keras import Muon

LAYERS = keras.layers


def of(model, **form):
    """Path -> in words what Muon makes of it, of what has two axes or more."""
    plan = Muon(form=form).plan_for(model.trainable_variables)
    return {
        path: treatment.description
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


def test_heads_of_keras():
    layer = LAYERS.GroupQueryAttention(4, 6, 3, name="gqa")
    found = of(model_of(layer, (5, 12), 2), heads="each")
    assert found == {
        "gqa/query/kernel": "matrix of 12 x 4 for each of 6 heads",
        **{
            f"gqa/{part}/kernel": "matrix of 12 x 4 for each of 3 heads"
            for part in ("key", "value")
        },
        **{f"gqa/{part}/bias": BIAS for part in ("query", "key", "value")},
        "gqa/attention_output/kernel": "matrix of 24 x 12",
    }


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


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Bert", {"transformer_layer_0/self_attention_layer/query": (16, 16),
               "transformer_layer_0/self_attention_layer/attention_output": (16, 16)}),
     ("Gemma", {"decoder_block_0/attention/query": (16, 20), "decoder_block_0/attention/key":
                (16, 10), "decoder_block_0/attention/attention_output": (20, 16)}),
     ("GPTNeoX", {"transformer_layer_0/self_attention/query_key_value": (16, 48)}),
     ("Mixtral", {"transformer_layer_0/self_attention/value": (16, 8)})],
)  # fmt: skip
def test_backbones_of_keras_hub(name, expected):
    models = pytest.importorskip("keras_hub").models
    made = {
        "Bert": lambda: models.BertBackbone(30, 1, 4, 16, 20, max_sequence_length=8),
        "Gemma": lambda: models.GemmaBackbone(30, 1, 4, 2, 16, 20, 5),
        "GPTNeoX": lambda: models.GPTNeoXBackbone(30, 1, 4, 16, 20, max_sequence_length=8),
        "Mixtral": lambda: models.MixtralBackbone(30, 1, 4, 16, 20, 2, num_experts=3, top_k=2),
    }[name]()
    found = of(made)
    for path, size in expected.items():
        assert found[f"{path}/kernel"] == "matrix of {} x {}".format(*size)
    for path, layout in found.items():
        if "bias" in path:
            assert layout == BIAS
        assert ("experts/" in path) == (layout == "fallback: stack of matrices")
        assert ("embeddings" in path) == (layout == "fallback: no matrix, by its name")
