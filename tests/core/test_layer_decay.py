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
    ],
)
def test_what_is_not_one_stack_is_refused(paths, words):
    with pytest.raises(ValueError, match=words):
        rates_by_path(paths, 0.5)
