"""Trust ratios and constant norms of Muon and SOAP, against the oracle, in NumPy."""

import functools
import itertools

import numpy as np
import oracle
import pytest
from support.cases import random_steps

from tf_lamb.core import rules
from tf_lamb.core.layouts import matrix
from tf_lamb.core.plan import plan_for
from tf_lamb.core.rules.lamb import Bounds
from tf_lamb.core.rules.muon import MuonForm
from tf_lamb.core.rules.soap import SOAPForm, sides_of
from tf_lamb.core.stacks import run_batched, run_single

INF = float("inf")
FORMS = {"Muon": MuonForm, "SOAP": SOAPForm}
ORACLES = {"Muon": oracle.Muon, "SOAP": oracle.Soap}
AXES = {None: None, "rows": (1,), "columns": (0,)}
# Our bounds -> the oracle's words.
BOUNDS = {
    "the ratio as it is": (Bounds(trust_ratio=(None, None)), {"bounds": (0, INF)}),
    "at least": (Bounds(trust_ratio=(2.0, None)), {"bounds": (2.0, INF)}),
    "at most": (Bounds(trust_ratio=(None, 1.1)), {"bounds": (0, 1.1)}),
    "within": (Bounds(trust_ratio=(0.9, 1.1)), {"bounds": (0.9, 1.1)}),
    "of a norm": (Bounds(weight_norm=(None, 1.5)), {"bounds": (0, INF), "phi": (0, 1.5)}),
}


def slots(name, w):
    """Those of a matrix before its first step."""
    if name == "Muon":
        return [np.zeros_like(w)]
    pairs = [np.zeros((n, n)) for n in (w.shape[side] for side in sides_of(w.shape, 99, False))
             for _ in "LQ"]  # fmt: skip
    return [np.zeros_like(w)] * 2 + pairs + [np.zeros(())] * 2


def steps(name, w, gradients, *, by=None, decay=0.0, **arguments):
    """The weights after each step."""
    state = w, *slots(name, w)
    for t, g in enumerate(gradients, 1):
        step = rules.OURS[name].step(
            np, g, *state, lr=0.1, t=t, decay=decay, adapt=True, axes=AXES[by], **arguments
        )
        state = run_single(np, step)
        yield state[0]


CASES = list(itertools.product(FORMS, BOUNDS, AXES))


@pytest.mark.parametrize(("name", "bounds", "by"), CASES)
def test_a_step_has_the_ratio_of_the_oracle(name, bounds, by):
    w, gradients = random_steps((4, 3), steps=4)
    ours, words = BOUNDS[bounds]
    reference = ORACLES[name](w, lr=0.1, wd=0.3, by=by, **words)
    found = list(steps(name, w, gradients, by=by, decay=0.3, bounds=ours))
    for after, g in zip(found, gradients, strict=True):
        np.testing.assert_allclose(after, reference.step(g), rtol=1e-8)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("by", AXES)
@pytest.mark.parametrize("bounds", [None, "the ratio as it is"])
def test_a_constant_norm_is_that_of_the_oracle(name, by, bounds):
    w, gradients = random_steps((3, 5), steps=5)
    ours, words = BOUNDS[bounds] if bounds else (Bounds(), {})
    reference = ORACLES[name](w, lr=0.1, by=by, constant=True, **words)
    found = list(steps(name, w, gradients, by=by, form=FORMS[name](norm="constant"), bounds=ours))
    for after, g in zip(found, gradients, strict=True):
        np.testing.assert_allclose(after, reference.step(g), rtol=1e-8)
    norms = [np.linalg.norm(x, axis=AXES[by]) for x in (w, found[-1])]
    np.testing.assert_allclose(*norms, rtol=1e-12)
    assert not np.allclose(w, found[-1])


@pytest.mark.parametrize("name", FORMS)
def test_what_is_observed_is_the_ratio_of_the_step(name):
    w, gradients = random_steps((4, 3), steps=3)
    seen = []
    list(steps(name, w, gradients, by="columns", bounds=Bounds(trust_ratio=(None, 1.1)),
               observe=lambda *values: seen.append(values)))  # fmt: skip
    reference = ORACLES[name](w, lr=0.1, by="columns", bounds=(0, 1.1))
    for g in gradients:
        before = reference.w
        reference.step(g)
    w_norm, u_norm, ratio, clipped = (np.ravel(each) for each in seen[-1])
    assert len(seen) == 3
    np.testing.assert_allclose(w_norm, np.linalg.norm(before, axis=0), rtol=1e-8)
    np.testing.assert_allclose(ratio, reference.ratios, rtol=1e-8)
    np.testing.assert_array_equal(clipped, w_norm / u_norm > 1.1)


@pytest.mark.parametrize("name", FORMS)
def test_without_bounds_nothing_is_observed_and_open_bounds_are_no_default(name):
    w, gradients = random_steps((4, 3), steps=3)
    plain, observed, opened = (
        list(steps(name, w, gradients, **arguments))
        for arguments in (
            {}, {"observe": pytest.fail}, {"bounds": Bounds(trust_ratio=(None, None))},
        )
    )  # fmt: skip
    np.testing.assert_array_equal(plain, observed)
    assert not np.allclose(plain[-1], opened[-1])


@pytest.mark.parametrize("name", FORMS)
def test_what_is_no_matrix_has_no_ratio_and_no_norm_to_keep(name):
    w, gradients = random_steps((4, 3), steps=1)
    zeros = np.zeros_like(w)
    plain, bounded = (
        rules.OURS[name].step(
            np, gradients[0], w, zeros, zeros, lr=0.1, t=1, decay=0.1, adapt=False, **arguments
        )
        for arguments in (
            {}, {"bounds": Bounds(trust_ratio=(2.0, None)), "form": FORMS[name](norm="constant")},
        )
    )  # fmt: skip
    (plain,), (bounded,) = ([run_single(np, each)[0]] for each in (plain, bounded))
    np.testing.assert_array_equal(plain, bounded)


@pytest.mark.parametrize("name", FORMS)
def test_each_matrix_of_a_stack_has_its_own_ratio(name):
    problems = [random_steps((4, 3), steps=1, seed=seed) for seed in range(3)]

    def made():
        return [
            rules.OURS[name].step(
                np, g[0], (i + 1) * w, *slots(name, w), lr=0.1, t=1, decay=0.1, adapt=True,
                bounds=Bounds(trust_ratio=(None, None)),
            )
            for i, (w, g) in enumerate(problems)
        ]  # fmt: skip

    for stacked, step in zip(run_batched(np, made()), made(), strict=True):
        np.testing.assert_allclose(stacked[0], run_single(np, step)[0], rtol=1e-12)


def sliced(path, shape, slices, rows=None):
    entry = {"slices": (slices, None) if isinstance(slices, int) else slices}
    entry |= {} if rows is None else {"rows": rows}
    (treatment,) = plan_for(
        [path], [shape], exclude_from_layer_adaptation=(), treatments={path: entry},
        layout=functools.partial(matrix, embeddings=False),
    ).treatments  # fmt: skip
    return treatment


@pytest.mark.parametrize(
    ("path", "shape", "slices", "rows", "axes", "count"),
    [("dense/kernel", (4, 6), -1, None, (0,), 6), ("dense/kernel", (4, 6), 0, None, (1,), 4),
     ("conv2d/kernel", (3, 3, 4, 6), 3, None, (0,), 6),
     ("a/query/kernel", (8, 2, 3), 0, None, (1,), 8),
     ("a/attention_output/kernel", (2, 3, 8), (2, 8), None, (0,), 8),
     ("mixer/kernel", (4, 3, 5), 1, (1,), (1,), 3)],
)  # fmt: skip
def test_slices_are_all_rows_or_all_columns(path, shape, slices, rows, axes, count):
    treatment = sliced(path, shape, slices, rows)
    assert treatment.axes == axes
    assert treatment.view[1 - axes[0]] == count
    assert f", {count} slices along axis " in treatment.description


@pytest.mark.parametrize("path", ["dense/bias", "embedding/embeddings"])
def test_what_is_no_matrix_is_shown_to_have_no_slices(path):
    treatment = sliced(path, (4, 6), -1)
    assert not treatment.adapt and treatment.axes is None
    assert treatment.description.startswith("fallback: ") and treatment.description.endswith(
        "; no slices"
    )


@pytest.mark.parametrize(
    ("shape", "slices"), [((3, 3, 4, 6), 0), ((3, 3, 4, 6), 4), ((3, 3, 4, 6), (3, 2))]
)
def test_other_slices_of_a_matrix_are_refused_by_name(shape, slices):
    with pytest.raises(ValueError, match=r"treatments\['conv/kernel'\] .* matrix of 36 x 6"):
        sliced("conv/kernel", shape, slices)
