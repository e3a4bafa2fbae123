"""The layers of Model Garden, built: what Muon takes for a matrix in each."""

import pytest

pytest.importorskip("official")

import support.garden  # noqa: F401  (registers ours)
import tensorflow as tf
import tf_keras
from official.nlp.modeling import layers

from tf_lamb.tf_keras import Muon

TO_HEADS = {"query/kernel": (12, 15), "key/kernel": (12, 15), "query/bias": None}


def found(layer, *inputs):
    """The last names of a path -> rows and columns, or None, of what has two axes or more."""
    layer(*inputs)
    plan = Muon(exclude_from_layer_adaptation=[]).plan_for(layer.trainable_variables)
    return {
        "/".join(path.split("/")[-2:]): (treatment.view or shape) if treatment.adapt else None
        for path, shape, treatment in zip(plan.paths, plan.shapes, plan.treatments, strict=True)
        if len(shape) > 1
    }


@pytest.mark.parametrize(
    ("layer", "expected"),
    [(layers.TransformerEncoderBlock(3, 20, "relu", key_dim=5),
      {**TO_HEADS, "attention_output/kernel": (15, 12), "output/kernel": (20, 12)}),
     (layers.ReuseMultiHeadAttention(3, 5),
      {**TO_HEADS, "value_new/kernel": (12, 15), "attention_output_new/kernel": (15, 12)}),
     (layers.TalkingHeadsAttention(3, 5), {**TO_HEADS, "attention_output/kernel": (15, 12)})],
)  # fmt: skip
def test_attention(layer, expected):
    x = tf.zeros((2, 5, 12))
    sizes = found(layer, *([x] if isinstance(layer, layers.TransformerEncoderBlock) else [x, x]))
    assert expected.items() <= sizes.items()


def test_stacks_of_matrices_and_depthwise_kernels_are_none():
    experts = layers.FeedForwardExperts(num_experts=3, d_ff=20, output_dropout=0.0)
    blocks = [experts, tf_keras.layers.DepthwiseConv2D(3), tf_keras.layers.Dense(4, name="dense")]
    for layer, shape in zip(blocks, [(2, 3, 5, 12), (1, 8, 8, 6), (2, 3)], strict=True):
        layer(tf.zeros(shape))
    variables = [v for layer in blocks for v in layer.trainable_variables]
    plan = Muon().plan_for(variables)
    adapted = [p for p, t in zip(plan.paths, plan.treatments, strict=True) if t.adapt]
    assert adapted == ["dense/kernel"]
