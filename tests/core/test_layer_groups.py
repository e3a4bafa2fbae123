"""What a layer is, and how state is rounded, in NumPy."""

import numpy as np
import pytest
from support.layouts import RULES, plan, problem, step

from tf_lamb.core.rules import lamb

JOINED = {"dense": {"join": True}}


@pytest.mark.parametrize("rule", RULES)
def test_each_slice_is_a_layer_of_its_own(rule):
    weights, gradients = problem()
    apart = []
    for w, g in zip(weights[2], gradients[2], strict=True):
        alone = plan(paths=["kernel"], shapes=[w.shape])
        apart += step(alone, *RULES[rule], [w], [g])
    stacked = step(
        plan(treatments={"stacked": {"slices": (0, None)}}), *RULES[rule], weights, gradients
    )
    np.testing.assert_allclose(stacked[2], apart, rtol=1e-12)


@pytest.mark.parametrize("axis", [1, -1])
def test_blocks_along_an_axis_are_layers_of_their_own(axis):
    weights, gradients = problem()
    sliced = plan(treatments={"dense/kernel": {"slices": (axis, 3)}})
    fused = step(sliced, lamb, 2, weights, gradients)[0]
    for block in range(3):
        part = np.s_[:, 2 * block : 2 * block + 2]
        alone = plan(paths=["kernel"], shapes=[(4, 2)])
        (expected,) = step(alone, lamb, 2, [weights[0][part]], [gradients[0][part]])
        np.testing.assert_allclose(fused[part], expected, rtol=1e-12)


def test_an_empty_axis_has_no_slices():
    empty = plan(paths=("head",), shapes=((0, 2),), treatments={"head": {"slices": (0, None)}})
    assert empty.treatments[0].view is None


def test_the_sizes_of_fused_blocks_no_longer_meet():
    """Block norms .04, 4 and 400 in one kernel: one ratio moves the blocks by 577, 5.8 and .06
    times themselves at rate .1; a ratio each moves each by a tenth."""
    w = np.repeat([0.01, 1.0, 100.0], 16).reshape(1, 48)
    g = np.ones_like(w)
    settings = {"paths": ["qkv/kernel"], "shapes": [w.shape], "weight_decay": 0.0}
    (fused,) = step(plan(**settings), lamb, 2, [w], [g])
    (apart,) = step(plan(treatments={"qkv": {"slices": (-1, 3)}}, **settings), lamb, 2, [w], [g])
    np.testing.assert_allclose(np.abs(fused - w)[0, ::16] / w[0, ::16], [577.4, 5.774, 0.05774],
                               rtol=1e-3)  # fmt: skip
    np.testing.assert_allclose(np.abs(apart - w) / w, 0.1, rtol=1e-9)


@pytest.mark.parametrize("undecayed", [None, ("bias",)])
@pytest.mark.parametrize("rule", RULES)
def test_a_kernel_and_its_bias_share_a_ratio(rule, undecayed):
    weights, gradients = problem()
    joined = plan(undecayed=undecayed, treatments=JOINED)
    assert joined.groups == ("block/dense", "block/dense", "", "")
    new = step(joined, *RULES[rule], weights, gradients)
    # One long vector, written out: with LAMB's first step u = sign(g) + decay w.
    decays = (0.1, 0.0 if undecayed else 0.1)
    pairs = list(zip(weights[:2], gradients[:2], decays, strict=True))

    def length(arrays):
        return np.sqrt(sum(np.sum(a**2) for a in arrays))

    if rule == "lamb":
        moves = [g / (np.abs(g) + 1e-6) + d * w for w, g, d in pairs]
        ratio = length(weights[:2]) / length(moves)
    else:
        moves = [g + d * w for w, g, d in pairs]
        below = length(gradients[:2]) + length([d * w for w, _, d in pairs])
        ratio = 0.1 * length(weights[:2]) / below
    for got, w, move in zip(new, weights[:2], moves, strict=False):
        np.testing.assert_allclose(got, w - 0.1 * ratio * move, rtol=1e-9)


def test_an_explicit_exclusion_leaves_its_group():
    assert plan(treatments=JOINED, unadapted=("bias",)).groups[:2] == ("block/dense", "")


def test_the_table_says_what_a_layer_is():
    table = plan(treatments=JOINED | {"stacked": {"slices": (0, None)}}).table()
    assert "joined in block/dense" in table
    assert "3 slices along axis 0" in table


@pytest.mark.parametrize(
    ("treatments", "words"),
    [
        ({"head": {"slices": (2, None)}}, ["axis 2", "head/kernel", "(6, 2)", "0 to 1"]),
        ({"head": {"slices": (-3, None)}}, ["axis -3", "head/kernel"]),
        ({"head": {"slices": (0, 4)}}, ["4 blocks", "head/kernel", "multiple of 4"]),
        ({"dense": {"slices": (0, None), "join": True}}, ["block/dense/kernel", "joined in"]),
    ],
)  # fmt: skip
def test_a_layer_that_cannot_be_is_refused(treatments, words):
    with pytest.raises(ValueError) as caught:
        plan(treatments=treatments)
    for word in ["treatments", *words]:
        assert word in str(caught.value)
