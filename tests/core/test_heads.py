"""Muon and SOAP on each head of a kernel, against the oracle on that head's matrix alone."""

import functools

import numpy as np
import oracle
import pytest
from support.cases import random_steps

from tf_lamb.core import rules
from tf_lamb.core.layouts import matrix
from tf_lamb.core.plan import plan_for
from tf_lamb.core.rules import muon
from tf_lamb.core.rules.lamb import Bounds
from tf_lamb.core.rules.muon import MuonForm
from tf_lamb.core.rules.soap import SOAPForm
from tf_lamb.core.stacks import run_batched, run_single
from tf_lamb.core.step import apply_rule

FORMS = {"Muon": MuonForm, "SOAP": SOAPForm}
ORACLES = {"Muon": oracle.Muon, "SOAP": oracle.Soap}
RATE, HEADS = 0.1, range(3)
# Path, shape, what the user says -> the index of the matrix of a head. All are of 4 x 4: a side
# that SOAP's first gradient does not span has no determined basis.
KERNELS = {
    "into heads": ("mha/query/kernel", (4, 3, 4), {}, lambda i: np.s_[:, i]),
    "columns": ("qkv/kernel", (4, 12), {"heads": (-1, 3)}, lambda i: np.s_[:, 4 * i : 4 * i + 4]),
    "rows": ("output/kernel", (12, 4), {"heads": (0, 3)}, lambda i: np.s_[4 * i : 4 * i + 4]),
    "heads first": ("mixer/kernel", (3, 4, 4), {"rows": (1,), "heads": (0, None)},
                    lambda i: np.s_[i]),
}  # fmt: skip
# Our arguments -> the oracle's.
WAYS = {
    "plain": ({}, {}),
    "a ratio": ({"bounds": Bounds(trust_ratio=(None, None))}, {"bounds": (0, np.inf)}),
    "bounds": ({"bounds": Bounds(trust_ratio=(0.9, 1.1))}, {"bounds": (0.9, 1.1)}),
    "a constant norm": ({"form": {"norm": "constant"}}, {"constant": True}),
}


def treated(path, shape, given, decay=0.0, heads="each"):
    (treatment,) = plan_for(
        [path], [shape], weight_decay=decay, exclude_from_layer_adaptation=(),
        treatments={path: given}, layout=functools.partial(matrix, heads=heads),
    ).treatments  # fmt: skip
    return treatment


def slots(name, w, view):
    """Those of a variable before its first step."""
    if name == "Muon":
        return [np.zeros_like(w)]
    *heads, rows, columns = view
    pairs = [np.zeros((*heads, n, n)) for n in (rows, rows, columns, columns)]
    return [np.zeros_like(w)] * 2 + pairs + [np.zeros(heads)] * 2


def rule_of(name, form=(), **arguments):
    own = {"precondition_frequency": 2} if name == "SOAP" else {}
    form = FORMS[name](heads="each", **dict(form))
    return functools.partial(rules.OURS[name].step, form=form, **own, **arguments)


def steps(name, w, gradients, treatment, **arguments):
    """What is kept after each step, the weight first."""
    state = [w, *slots(name, w, treatment.view)]
    rule = rule_of(name, **arguments)
    for t, g in enumerate(gradients, 1):
        (state,) = run_single(np, apply_rule(np, rule, [treatment], [g], [state], lr=RATE, t=t))
        yield state


def lengthened(w, index_of):
    """Heads of norms that differ, so that one ratio for all, or a neighbour's, is another step."""
    w = np.array(w)
    for i in HEADS:
        w[index_of(i)] *= 1 + 2 * i
    return w


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_each_head_is_the_oracles(name, way, kernel):
    path, shape, given, index_of = KERNELS[kernel]
    drawn, gradients = random_steps(shape, steps=5)
    w, (ours, theirs) = lengthened(drawn, index_of), WAYS[way]
    decay = 0.0 if "constant" in theirs else 0.3
    every = {"every": 2} if name == "SOAP" else {}
    references = [
        ORACLES[name](w[index_of(i)], lr=RATE, wd=decay, **every, **theirs) for i in HEADS
    ]
    treatment = treated(path, shape, given, decay)
    assert treatment.description == "matrix of 4 x 4 for each of 3 heads"
    for (after, *_), g in zip(steps(name, w, gradients, treatment, **ours), gradients, strict=True):
        for i, reference in enumerate(references):
            expected = reference.step(g[index_of(i)])
            np.testing.assert_allclose(after[index_of(i)], expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("shape", [(5, 3, 2), (2, 3, 5)])
@pytest.mark.parametrize("scale", ["rms", "shape"])
def test_a_heads_scale_is_that_of_its_own_sides(shape, scale):
    w, gradients = random_steps(shape, steps=2)
    treatment = treated("query/kernel", shape, {})
    *_, (after, _) = steps("Muon", w, gradients, treatment, form={"update_scale": scale})
    for i in HEADS:
        reference = oracle.Muon(w[:, i], lr=RATE, scale=scale)
        for g in gradients:
            expected = reference.step(g[:, i])
        np.testing.assert_allclose(after[:, i], expected, rtol=1e-8)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("by", ["rows", "columns"])
def test_slices_are_the_rows_or_the_columns_of_each_head(name, by):
    shape = (4, 3, 4)
    w, gradients = random_steps(shape, steps=4)
    seen = []
    treatment = treated("query/kernel", shape, {"slices": (0 if by == "rows" else 2, None)})
    bounds = Bounds(trust_ratio=(None, None))
    found = list(steps(name, w, gradients, treatment, bounds=bounds,
                       observe=lambda *values: seen.append(values)))  # fmt: skip
    every = {"every": 2} if name == "SOAP" else {}
    for i in HEADS:
        reference = ORACLES[name](w[:, i], lr=RATE, bounds=(0, np.inf), by=by, **every)
        for (after, *_), g in zip(found, gradients, strict=True):
            np.testing.assert_allclose(after[:, i], reference.step(g[:, i]), rtol=1e-7, atol=1e-9)
    assert seen[-1][2].size == 3 * 4
    assert treatment.description == (
        f"matrix of 4 x 4 for each of 3 heads, 4 slices along axis {0 if by == 'rows' else 2}"
    )


@pytest.mark.parametrize("name", FORMS)
def test_heads_in_a_stack_are_heads_alone(name):
    """Beside kernels of that shape, of the shape of a head, and of one that only joined has."""
    rule, shapes = rule_of(name), [(4, 3, 4), (4, 3, 4), (4, 4), (4, 12)]

    def made():
        for seed, shape in enumerate(shapes):
            treatment = treated("query/kernel", shape, {})
            w, gradients = random_steps(shape, steps=2, seed=seed)
            state = [w, *slots(name, w, treatment.view)]
            first, second = (
                functools.partial(apply_rule, np, rule, [treatment], [g], lr=RATE, t=t)
                for t, g in enumerate(gradients, 1)
            )
            yield second(run_single(np, first([state])))

    for (stacked,), step in zip(run_batched(np, list(made())), made(), strict=True):
        for array, own in zip(stacked, run_single(np, step)[0], strict=True):
            np.testing.assert_allclose(array, own, rtol=1e-10, atol=1e-12)


def test_a_basis_that_is_lost_is_counted_by_its_head_alone():
    treatment = treated("query/kernel", (4, 3, 4), {})
    w, gradients = random_steps((4, 3, 4), steps=5)
    *_, state = steps("SOAP", w, gradients, treatment)  # a renewal is due in every second step
    state[3] = np.array(state[3])
    state[3][1] = np.nan
    rule = rule_of("SOAP")
    for t in (6, 7):
        step = apply_rule(np, rule, [treatment], [gradients[0]], [state], lr=RATE, t=t)
        (state,) = run_single(np, step)
    np.testing.assert_array_equal(state[-2], [0, 1, 0])
    assert np.all(np.isfinite(state[0]))


@pytest.mark.parametrize(
    ("heads", "batch"), [("each", {(3,)}), (None, {()})], ids=["each head", "the whole"]
)
def test_all_heads_are_one_batch_of_as_many_products(heads, batch):
    class Counted(np.ndarray):
        shapes = []

        def __matmul__(self, other):
            Counted.shapes.append(self.shape)
            return super().__matmul__(other)

    w, (g,) = random_steps((4, 3, 4), steps=1)
    treatment = treated("query/kernel", w.shape, {}, heads=heads)
    gradient, *state = (array.view(Counted) for array in (g, w, np.zeros_like(w)))
    run_single(np, apply_rule(np, muon, [treatment], [gradient], [state], lr=RATE, t=1))
    assert len(Counted.shapes) == 15 and {shape[:-2] for shape in Counted.shapes} == batch


# (query, key, attention_output) of Gemma, where heads come first, and of XLNet.
GEMMA = {"query": (4, 16, 5), "key": (2, 16, 5), "attention_output": (4, 5, 16)}
XLNET = {"query": (12, 3, 5), "key": (12, 3, 5), "attention_output": (12, 3, 5)}


@pytest.mark.parametrize(
    ("shapes", "views"),
    [(GEMMA, [(4, 16, 5), (2, 16, 5), (20, 16)]), (XLNET, [(3, 12, 5), (3, 12, 5), (15, 12)])],
)
def test_the_axis_of_heads_is_that_of_the_layer(shapes, views):
    treatments = plan_for(
        [f"block/attention/{of}/kernel" for of in shapes], [*shapes.values()],
        exclude_from_layer_adaptation=(), layout=functools.partial(matrix, heads="each"),
    ).treatments  # fmt: skip
    assert [treatment.view for treatment in treatments] == views


@pytest.mark.parametrize(
    ("path", "shape", "given"),
    [("attention_output/kernel", (3, 4, 12), {}), ("query/kernel", (12, 4), {}),
     ("query/lora_kernel_a", (12, 3, 2), {}), ("conv/kernel", (3, 6, 8), {}),
     ("query/kernel", (3, 3, 6, 8), {}), ("query/kernel", (12, 3, 4), {"rows": (0,)}),
     ("query/kernel", (12, 3, 4), {"heads": None}),
     ("cross_attn/sampling_offsets/kernel", (12, 3, 4), {})],
)  # fmt: skip
def test_all_else_is_one_matrix(path, shape, given):
    treatment = treated(path, shape, given)
    assert len(treatment.view) == 2 and treatment.axes is None and treatment.split_shape is None
    assert "heads" not in treatment.description


def test_a_convolution_that_is_named_so_has_none():
    """A Conv1D, whose bias has one axis."""
    kernel, _ = plan_for(
        ["block/query/kernel", "block/query/bias"], [(3, 6, 8), (8,)],
        exclude_from_layer_adaptation=(), layout=functools.partial(matrix, heads="each"),
    ).treatments  # fmt: skip
    assert kernel.description == "matrix of 18 x 8"


def test_a_head_of_one_column_is_adamws():
    assert treated("query/kernel", (12, 3, 1), {}).description == "fallback: one row or column"


@pytest.mark.parametrize(
    ("shape", "heads", "words"),
    [((4, 12), (2, None), r"all heads of axis 2 of qkv/kernel.*\(4, 12\)"),
     ((4, 12), (-1, 5), "5 heads of axis -1 .* as many blocks of it as divide it"),
     ((12,), (0, 3), "3 heads of axis 0")],
)  # fmt: skip
def test_heads_that_a_variable_cannot_have_are_refused_by_name(shape, heads, words):
    with pytest.raises(ValueError, match=rf"treatments\['qkv/kernel'\] makes {words}"):
        treated("qkv/kernel", shape, {"heads": heads})


@pytest.mark.parametrize(
    ("path", "shape", "given", "words"),
    [
        ("mqa/key/kernel", (1, 16, 4), {}, "fallback: one row or column"),
        ("dense/kernel", (6, 4), {"heads": (1, 1)}, "matrix of 6 x 4"),
        ("dense/kernel", (4, 0), {"heads": (1, None)}, "matrix of 4 x 0"),
        ("dense/kernel", (6, 8), {"heads": (1, None)}, "fallback: one row or column; no heads"),
        ("experts/kernel", (8, 6, 4), {"heads": (0, None)},
         "fallback: stack of matrices; no heads"),
        ("experts/kernel", (8, 6, 4), {"heads": (0, None), "rows": (1,)},
         "matrix of 6 x 4 for each of 8 heads"),
        ("dense/bias", (6,), {"heads": (0, None), "slices": (0, None)},
         "fallback: bias or normalization; no heads; no slices"),
        ("attention_output/kernel", (3, 4, 6), {"heads": (0, None), "slices": (1, None)},
         "matrix of 4 x 6 for each of 3 heads, 4 slices along axis 1"),
    ],
)  # fmt: skip
def test_what_has_no_heads_says_so(path, shape, given, words):
    assert treated(path, shape, given).description == words
