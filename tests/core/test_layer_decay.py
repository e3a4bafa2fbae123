"""Layer-wise decay, by the names of KerasHub and of Model Garden."""

import pytest

from tf_lamb.api.describe import rates_by_path
from tf_lamb.core.patterns import aliases
from tf_lamb.core.plan import plan_for

EMBEDDINGS = ["token_embedding/embeddings", "embeddings/layer_norm/gamma"]
HEAD = ["pooled_dense/kernel", "logits/bias"]
STEMS = ["transformer_layer_", "transformer/layer_", "encoder_layer_", "vit/encoderblock_"]


def rates(paths, decay):
    """By path, as the plan finds them."""
    found = plan_for(
        paths, [(1,)] * len(paths),
        treatments=rates_by_path([alias[-1] for alias in aliases(paths)], decay),
    )  # fmt: skip
    assert not found.unmatched
    return dict(zip(paths, found.multipliers, strict=True))


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("root", ["", "my_model/"])
@pytest.mark.parametrize("stem", STEMS)
def test_the_rate_falls_from_the_head_to_the_embeddings(stem, root, first):
    depth = 12
    parts = ["attention_layer/query/kernel", "relative_embedding", "mlp_layer_1/bias"]
    blocks = [f"{stem}{first + i}/{part}" for i in range(depth) for part in parts]
    paths = [root + path for path in [*HEAD, *EMBEDDINGS, *blocks]]  # in whatever order
    found = rates(paths, 0.75)
    for path in HEAD:
        assert found[root + path] == 1
    for path in EMBEDDINGS:
        assert found[root + path] == pytest.approx(0.75**13)
    for i in range(depth):
        for part in parts:
            expected = 0.75 ** (depth - i)
            assert found[f"{root}{stem}{first + i}/{part}"] == pytest.approx(expected)


# Stages: of Keras's applications, of Model Garden and timm with slashes, of ConvNeXt's authors.
STAGES = {
    "m_stage_{}_block_{}_conv/kernel": "m_downsampling_block_{}/m_downsampling_conv_{}/kernel",
    "stages_{}/blocks_{}/mlp/bias": "stages_{}/downsample/conv/kernel",
    "encoder/stages/{}/blocks/{}/gamma": "encoder/downsample_layers/{}/kernel",
}


@pytest.mark.parametrize("frozen", [0, 2])
@pytest.mark.parametrize("block", STAGES)
def test_blocks_of_stages_are_counted_through(block, frozen):
    """What makes the image smaller stands before its stage, by its number or as a part of it."""
    between, blocks = STAGES[block], [2, 1, 12]
    first = 0 if "ing" in between else 1
    order = [
        path
        for stage, count in enumerate(blocks)
        for path in [
            *([between.format(*[stage - 1 + first] * 2)] if stage else []),
            *(block.format(stage, i) for i in range(count)),
        ]
    ][frozen:]
    stem, head = "m_stem/conv/kernel", "m_head/kernel"
    found = rates([head, *reversed(order), *([] if frozen else [stem])], 0.75)
    assert found[head] == 1
    assert frozen or found[stem] == pytest.approx(0.75 ** (len(order) + 1))
    for i, path in enumerate(order):
        assert found[path] == pytest.approx(0.75 ** (len(order) - i)), path


def test_no_pattern_stands_for_nothing():
    assert rates_by_path(["block_0/kernel", "block_1/kernel", "head/kernel"], 0.5) == {
        "^block_0/": {"rate": 0.25},
        "^block_1/": {"rate": 0.5},
    }


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (["dense_1/kernel", "layer_norm/gamma"], "none in paths such as 'dense_1/kernel'"),
        (["encoder_layer_0/k", "decoder_layer_0/k"], "'decoder_layer_', 'encoder_layer_'"),
        (["transformer_layer/k", "transformer_layer_1/k"], "all numbered.* 'transformer_layer_'"),
        (["a_stage_0_block_0_k/k", "b_stage_0_block_0_k/k"], "'a_stage', 'b_stage'"),
        (["stage_0_block_0_k/k", "downsampling_1/k", "downsampling_2/k"], "found 'stage'"),
    ],
)
def test_what_is_not_one_stack_is_refused(paths, words):
    with pytest.raises(ValueError, match=words):
        rates_by_path(paths, 0.5)
