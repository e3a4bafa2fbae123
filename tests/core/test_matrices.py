"""Which axes of a variable are rows: real paths and shapes of Keras, KerasHub and Model Garden."""

import functools

import numpy as np
import pytest

from tf_lamb.core.layouts import matrix
from tf_lamb.core.plan import plan_for
from tf_lamb.core.rules import muon
from tf_lamb.core.stacks import run_single
from tf_lamb.core.step import apply_rule

# Path, shape -> (rows, columns), or a word of the reason for which it is no matrix. Models are of
# width 12 or 16: the layers of Keras, which `tests/keras` builds, and of Model Garden 2.20.
FOUND = {
    # Keras
    ("dense/kernel", (8, 6)): (8, 6),
    ("dense/bias", (6,)): "bias",
    ("dense/temperature", (6,)): "one axis",
    ("logits/kernel", (6, 1)): (6, 1),
    ("conv1d/kernel", (3, 6, 5)): (18, 5),
    ("conv2d/kernel", (3, 3, 6, 7)): (54, 7),
    ("stem/kernel", (3, 3, 1, 32)): (9, 32),
    ("conv2d_transpose/kernel", (3, 3, 5, 6)): (45, 6),
    ("conv_lstm2d/conv_lstm_cell/recurrent_kernel", (3, 3, 5, 20)): (45, 20),
    ("gru/gru_cell/bias", (2, 9)): "bias",
    ("layer_normalization/gamma", (8, 6)): "normalization",
    ("rms_normalization/scale", (8, 6)): "normalization",
    ("p_re_lu/alpha", (8, 8, 6)): "no kernel",
    ("depthwise_conv2d/kernel", (3, 3, 6, 2)): "depthwise",
    ("depthwise_conv1d/kernel", (3, 6, 1)): "depthwise",
    ("stem/kernel", (3, 3, 32, 1)): "one row or column",
    ("stem/depthwise_kernel", (3, 3, 6, 2)): "depthwise",
    ("depthwise_separable/pointwise_kernel", (1, 1, 6, 8)): (6, 8),
    ("convnext_tiny_stage_0_block_0_depthwise_conv/kernel", (7, 7, 1, 96)): "depthwise",
    ("multi_head_attention/query/kernel", (12, 3, 4)): (12, 12),
    ("multi_head_attention/query/bias", (3, 4)): "bias",
    ("multi_head_attention/value/kernel", (12, 3, 5)): (12, 15),
    ("multi_head_attention/attention_output/kernel", (3, 5, 12)): (15, 12),
    ("group_query_attention/key/kernel", (12, 2, 4)): (12, 8),
    ("einsum_dense/kernel", (6, 3, 2)): "not known",
    ("einsum_dense_1/kernel", (6, 3, 2, 2)): "not known",
    ("mixer/kernel", (6, 3, 2)): "not known",
    # LoRA: the second factor has two axes, and is a matrix; so is the first, of rank 2 or 1
    ("dense/lora_kernel_a", (8, 2)): (8, 2),
    ("dense/lora_kernel_b", (2, 6)): (2, 6),
    ("conv2d/lora_kernel_a", (3, 3, 6, 2)): (54, 2),
    ("multi_head_attention/query/lora_kernel_a", (12, 3, 2)): (12, 6),
    ("multi_head_attention/attention_output/lora_kernel_a", (3, 5, 2)): (15, 2),
    ("mixer/lora_kernel_a", (6, 3, 2)): (18, 2),
    ("experts/up/lora_kernel_a", (3, 12, 2)): (36, 2),
    ("token_embedding/lora_embeddings_a", (8, 2)): "its name",
    # KerasHub
    ("encoder_block/self_attention/query_key_value/kernel", (12, 3, 15)): (12, 45),  # GPT-NeoX
    ("decoder_layer_0/attention/query_dense/kernel", (12, 3, 5)): (12, 15),  # Falcon
    ("hybrid_encoder/self_attn/q_proj/kernel", (12, 3, 5)): (12, 15),  # D-FINE
    ("cross_attn/attention_weights/kernel", (12, 3, 4)): (12, 12),
    ("cross_attn/sampling_offsets/kernel", (12, 3, 4, 2)): (12, 24),
    ("xlnet_encoder_0/rel_attn/encoding/kernel", (12, 3, 5)): (12, 15),
    ("xlnet_encoder_0/content_attention_bias", (3, 4)): "bias",
    ("xlnet_encoder_0/segment_encoding", (2, 3, 4)): "no kernel",
    ("sparse_moe_block/experts/gate_up_proj", (3, 16, 40)): "stack",
    ("sparse_moe_block/experts/gate_up_proj_bias", (3, 40)): "bias",
    # Conformers have convolutions above attention, non-local blocks a convolution named as it is.
    ("conv_block/self_attention/query/kernel", (12, 3, 4)): (12, 12),
    ("non_local/query/kernel", (1, 1, 6, 8)): (6, 8),
    # Model Garden
    ("transformer/layer_0/self_attention/value_new/kernel", (12, 3, 5)): (12, 15),
    ("reuse_transformer/self_attention/attention_output_new/kernel", (3, 5, 12)): (15, 12),
    ("multi_query_attention/key/kernel", (12, 4)): (12, 4),
    ("experts/intermediate/kernel", (3, 12, 20)): "stack",
    ("block_diag_feedforward/output/kernel", (2, 10, 6)): "stack",
    ("transformer/position_embedding/embeddings", (8, 12)): "its name",
    ("cls/cls", (1, 1, 12)): "no kernel",
}
# (query, key, attention_output): where heads come first, and where the output is turned.
GEMMA = {"query": (4, 16, 5), "key": (2, 16, 5), "attention_output": (4, 5, 16)}
XLNET = {"query": (12, 3, 5), "key": (12, 3, 5), "attention_output": (12, 3, 5)}


def plan(variables, rows=None, excluded=(), decay=0.1, embeddings=False):
    paths, shapes = zip(*variables, strict=True)
    return plan_for(
        paths, shapes, weight_decay=decay, exclude_from_layer_adaptation=excluded,
        treatments={pattern: {"rows": axes} for pattern, axes in (rows or {}).items()},
        layout=functools.partial(matrix, embeddings=embeddings),
    )  # fmt: skip


def size(treatment, shape):
    """Rows and columns, or None of what is no matrix."""
    return (treatment.view or shape) if treatment.adapt else None


@pytest.mark.parametrize(("path", "shape"), FOUND)
def test_paths_and_shapes_tell_what_is_a_matrix(path, shape):
    (treatment,) = plan([(path, shape)]).treatments
    expected = FOUND[path, shape]
    if isinstance(expected, str):
        assert not treatment.adapt and treatment.view is None
        assert expected in treatment.description.removeprefix("fallback: ")
    else:
        assert size(treatment, shape) == expected
        assert treatment.description == "matrix of {} x {}".format(*expected)
        assert treatment.order is None


@pytest.mark.parametrize(
    ("shapes", "found"),
    [(GEMMA, [(16, 20), (16, 10), (20, 16)]), (XLNET, [(12, 15), (12, 15), (15, 12)])],
)
def test_the_layers_of_attention_tell_of_each_other(shapes, found):
    treatments = plan([(f"block/attention/{of}/kernel", s) for of, s in shapes.items()]).treatments
    assert [t.view for t in treatments] == found


def test_gemmas_heads_come_first_in_lora_too():
    (treatment,) = plan([("block/attention/query/lora_kernel_a", (4, 16, 2))]).treatments
    assert (treatment.view, treatment.order) == ((16, 8), (1, 0, 2))


@pytest.mark.parametrize(("bias", "view"), [((8,), (18, 8)), ((2, 4), (3, 48)), (None, (3, 48))])
def test_a_bias_tells_a_convolution_from_attention(bias, view):
    """A Conv1D of width 3 may be named as a layer of attention is."""
    beside = [("block/query/bias", bias)] if bias else []
    shape = (3, 6, 8)
    kernel, *_ = plan([("block/query/kernel", shape), *beside]).treatments
    assert size(kernel, shape) == view


@pytest.mark.parametrize(
    ("shape", "rows"), [((4, 3, 5), (0,)), ((4, 3, 5), (1,)), ((4, 3, 5), (1, 2)), ((4, 3), (1,)),
                        ((2, 4, 3, 5), (-1, 1))]
)  # fmt: skip
def test_a_step_is_that_of_the_matrix(shape, rows):
    rng = np.random.default_rng(0)
    w, g, m = rng.normal(size=(3, *shape))
    treatments = plan([("mixer/kernel", shape)], {"mixer": rows}).treatments

    def matrix(array):
        axes = [axis % len(shape) for axis in rows]
        return np.moveaxis(array, axes, range(len(axes))).reshape(
            int(np.prod([shape[axis] for axis in axes])), -1
        )

    step = apply_rule(np, muon, treatments, [g], [[w, m]], lr=0.1, t=1)
    ((ours, momentum),) = run_single(np, step)
    expected = run_single(
        np, muon(np, matrix(g), matrix(w), matrix(m), lr=0.1, t=1, decay=0.1, adapt=True)
    )
    assert ours.shape == momentum.shape == shape
    np.testing.assert_array_equal(matrix(ours), expected[0])
    np.testing.assert_array_equal(matrix(momentum), expected[1])


def test_what_the_user_says_counts_but_for_biases_and_exclusions():
    variables = [
        ("mixer/kernel", (6, 3, 2)), ("mixer/bias", (3, 2)), ("grouped/kernel", (3, 3, 2, 6)),
        ("embedding/table", (9, 4)), ("experts/up", (3, 4, 5)),
    ]  # fmt: skip
    rows = {"grouped": None, "mixer": (0,), "embedding": (0,), "experts|mixer": (0, 1)}
    found = plan(variables, rows).treatments
    assert [size(t, s) for t, (_, s) in zip(found, variables, strict=True)] == [
        (6, 6), None, None, (9, 4), (12, 5),
    ]  # fmt: skip
    assert found[2].description == "fallback: no matrix, by treatments"
    assert plan(variables, rows, ["mixer"]).treatments[0].description == "fallback: excluded"
    assert plan(variables, {"nowhere": (0,)}).unmatched == ("nowhere",)
    assert plan(variables).unmatched == plan([("dense/kernel", (2, 2))]).unmatched == ()


@pytest.mark.parametrize(
    ("shape", "rows", "word"),
    [((6, 3), (2,), "axis 2"), ((6, 3), (-3,), "axis -3"), ((6, 3), (0, 1), "axes 0, 1"),
     ((6, 3, 2), (0, -3), "axes 0, -3"), ((6,), (0,), "axis 0"), ((), (0,), "axis 0")],
)  # fmt: skip
def test_rows_that_a_variable_cannot_have_are_refused_by_name(shape, rows, word):
    with pytest.raises(ValueError, match="treatments") as refusal:
        plan([("block/mixer/weight", shape)], {"mixer": rows})
    for part in (word, "block/mixer/weight", str(shape), "'mixer'", "None for what is no matrix"):
        assert part in str(refusal.value)


@pytest.mark.parametrize(
    ("excluded", "embeddings", "adapted"),
    [((), False, [False, True]), (["logits"], True, [True, False])],
    ids=["as it is", "asked for"],
)
def test_embeddings_are_matrices_where_that_is_asked_for(excluded, embeddings, adapted):
    variables = [("embedding/embeddings", (10, 4)), ("logits/kernel", (6, 2))]
    found = plan(variables, excluded=excluded, embeddings=embeddings).treatments
    assert [treatment.adapt for treatment in found] == adapted
    assert all(treatment.decay == 0.1 for treatment in found)
