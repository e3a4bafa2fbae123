"""SOAP in every frontend: the oracle's numbers, its slots, and what cannot be meant.

A side that the first gradient does not span has no determined basis: matrices are square here.
"""

import functools

import numpy as np
import pytest
from oracle import Soap
from support.cases import assert_same, random_steps
from support.frontends import (
    FRONTENDS,
    apply,
    array,
    compiled_whole,
    dtype_of,
    every_frontend,
    new_variable,
    precision,
    train,
    uncompiled,
)

from tf_lamb.core.rules.soap import _accept_if_valid

SHAPES = {"conv/kernel": (2, 2, 3, 12), "dense/kernel": (6, 6), "dense/bias": (6,),
          "logits/kernel": (6, 3)}  # fmt: skip
COUNTS = ["kept_bases", "steps"]
MATRIX = ["m", "v", "L", "L_basis", "R", "R_basis", *COUNTS]


def problem(steps):
    """Path -> where its variable begins, and by step its gradient."""
    drawn = [random_steps(shape, seed=i, steps=steps) for i, shape in enumerate(SHAPES.values())]
    start, gradients = (dict(zip(SHAPES, of, strict=True)) for of in zip(*drawn, strict=True))
    return start, [{path: g[t] for path, g in gradients.items()} for t in range(steps)]


def names(optimizer, count):
    return [[*optimizer.state_of(i)] for i in range(count)]


@every_frontend
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float64", 1e-9)])
@uncompiled()
def test_soap_is_the_oracle(frontend, dtype, tolerance):
    start, gradients = problem(steps=12)
    references = {
        path: Soap(w, lr=0.02, wd=0.1, every=3, matrix=path in ("conv/kernel", "dense/kernel"))
        for path, w in start.items()
    }
    with precision(frontend, dtype):
        optimizer = FRONTENDS[frontend][1].SOAP(
            0.02, weight_decay=0.1, precondition_frequency=3,
            exclude_from_layer_adaptation=["logits"], form={"renewal": "qr"},
        )  # fmt: skip
        trained = train(frontend, optimizer, start, gradients, dtype)
        for ours, step in zip(trained, gradients, strict=True):
            for path, reference in references.items():
                expected = reference.step(step[path])
                np.testing.assert_allclose(ours[path], expected, rtol=tolerance, atol=tolerance)
    assert names(optimizer, 4) == [MATRIX, MATRIX, ["m", "v"], ["m", "v"]]


def built(frontend, shapes, dtype="float32", **arguments):
    """The optimizer, and variables of zeros and ones on a diagonal, by path."""
    optimizer = FRONTENDS[frontend][1].SOAP(0.1, **arguments)
    variables = [new_variable(frontend, np.eye(*s), dtype, path) for path, s in shapes.items()]
    optimizer.build(variables)
    return optimizer, variables


SQUARE = {"dense/kernel": (4, 4)}


def drawn(steps, seed=0):
    return random_steps((4, 4), steps, seed)[1]


@every_frontend
def test_a_frequency_beyond_the_counter_is_refused(frontend):
    """Its float32 goes back by a multiple of the frequency shortly before 2^24."""
    message = "precondition_frequency must be a whole number up to 8,388,608, not 8,388,609"
    with pytest.raises(ValueError, match=message):
        FRONTENDS[frontend][1].SOAP(precondition_frequency=2**23 + 1)


@every_frontend
@pytest.mark.parametrize(
    ("shapes", "words"),
    [({"logits/kernel": (5, 6)}, r"max_precond_dim=4, and logits/kernel is a matrix of 5 x 6: .*"
      r"'logits/kernel' into exclude_from_layer_adaptation.* max_precond_dim to 5\."),
     ({"dense/bias": (4, 1)}, "change no step from AdamW's: none of its 1 variables is a matrix")],
    ids=["both sides are too long", "no matrix"],
)  # fmt: skip
def test_a_plan_that_cannot_be_meant_is_refused(frontend, shapes, words):
    with pytest.raises(ValueError, match=f"^SOAP .*{words}"):
        built(frontend, shapes, max_precond_dim=4)


@every_frontend
@pytest.mark.parametrize(
    ("arguments", "dtype", "moments"),
    [({}, "float16", "float32"), ({"dtypes": {"slots": "bfloat16"}}, "float32", "bfloat16"),
     ({"dtypes": {"slots": "bfloat16", "masters": "float32"}}, "bfloat16", "bfloat16")],
)  # fmt: skip
@uncompiled()
def test_all_but_the_second_moment_is_never_in_half_precision(frontend, arguments, dtype, moments):
    optimizer, (w,) = built(frontend, SQUARE, dtype, precondition_frequency=2, **arguments)
    reference = Soap(np.eye(4), lr=0.1, every=2)
    for g in drawn(8):
        apply(optimizer, [g], [w])
        expected = reference.step(g)
    dtypes = {name: dtype_of(slot) for name, slot in optimizer.state_of(0).items()}
    assert dtypes == {name: moments if name == "v" else "float32" for name in MATRIX}
    assert np.abs(expected - np.eye(4)).max() > 0.3
    np.testing.assert_allclose(array(w).astype("float64"), expected, rtol=0, atol=0.02)


@every_frontend
@pytest.mark.parametrize("renewal", ["cholesky", "qr"])
@uncompiled()
def test_a_renewal_that_is_not_finite_leaves_the_bases_and_is_told_at_the_end(frontend, renewal):
    optimizer, (w,) = built(frontend, SQUARE, precondition_frequency=2, form={"renewal": renewal})
    *before, last = drawn(5)
    for g in before:
        apply(optimizer, [g], [w])
    own = optimizer.state_of(0)
    own["L"].assign(np.full((4, 4), np.nan))
    bases = [array(own[name]) for name in ("L_basis", "R_basis")]
    assert optimizer.kept_bases == 0
    apply(optimizer, [last], [w])
    assert optimizer.kept_bases == 1 and np.isfinite(array(w)).all()
    for name, basis in zip(("L_basis", "R_basis"), bases, strict=True):
        np.testing.assert_array_equal(array(own[name]), basis)
    with pytest.warns(UserWarning, match="SOAP: 1 times the bases of a matrix did not come"):
        optimizer.finalize_variable_values([w])


@every_frontend
@pytest.mark.parametrize(
    ("spoilt", "count"),
    [(np.s_[:0], 0), (np.s_[1, 2], 1), (np.s_[:, 128:], 1), (np.s_[:], 1)],
    ids=["none", "one", "half of the columns", "all"],
)
def test_a_long_basis_with_a_nan_is_not_taken(frontend, spoilt, count):
    xp, whole = FRONTENDS[frontend][1].SOAP._xp, np.eye(256, dtype="float32")
    basis = whole.copy()
    basis[spoilt] = np.nan
    whole, basis, kept = map(xp.convert_to_tensor, (whole, basis, np.float32(0)))
    _, seen, taken = _accept_if_valid(xp, kept < 1, [whole, basis], whole, kept, whole)
    assert np.isfinite(array(taken)).all() and float(array(seen)) == count


@every_frontend
@uncompiled()
def test_a_skipped_step_leaves_all_of_it(frontend):
    """The first step, which makes the bases, as well as one that would renew them."""
    gradients = drawn(6)
    bad = np.where(np.eye(4), np.nan, gradients[0])
    states = []
    for each in (gradients, [bad, *gradients[:3], bad, *gradients[3:], bad]):
        optimizer, (w,) = built(frontend, SQUARE, precondition_frequency=3)
        for g in each:
            apply(optimizer, [g], [w])
        states.append([array(v) for v in (w, *optimizer.state_of(0).values())])
    assert optimizer.skipped_steps == 3
    assert_same(*states)


ROWS, STEPS = 16, 8
DATA = np.random.default_rng(0).normal(size=(2, ROWS * STEPS, 4)).astype("float32")
WAYS = {
    "compiled whole": {"compiled": {"jit_compile": True}},
    "compiled in part": {"compiled": {"jit_compile": False}},
    "eager": {"compiled": {"run_eagerly": True}},
    "two fits": {"fits": 2},
    "micro-batches": {"own": {"gradient_accumulation_steps": 2}},
}


@functools.cache
def regressed():
    """Where the oracle gets to in one layer without a bias, by the mean squared error."""
    reference = Soap(np.eye(4), lr=0.02, wd=0.1, every=3)
    for x, y in zip(*(np.split(of.astype("float64"), STEPS) for of in DATA), strict=True):
        reference.step(2 / y.size * x.T @ (x @ reference.w - y))
    return reference.w


@every_frontend
@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=[compiled_whole] * (way == "compiled whole")) for way in WAYS],
)
def test_however_it_is_compiled_fit_is_the_oracle(frontend, way):
    host, ours = FRONTENDS[frontend]
    chosen = WAYS[way]
    arguments = {"weight_decay": 0.1, "precondition_frequency": 3, "form": {"renewal": "qr"}}
    arguments |= chosen.get("own", {})
    optimizer = ours.SOAP(0.02, **arguments)
    model = host.Sequential([host.Input((4,)), host.layers.Dense(4, use_bias=False)])
    model.set_weights([np.eye(4)])
    model.compile(optimizer, "mse", **chosen.get("compiled", {"jit_compile": False}))
    batch = ROWS // arguments.get("gradient_accumulation_steps", 1)
    for x, y in zip(*(np.split(of, chosen.get("fits", 1)) for of in DATA), strict=True):
        model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)
    assert np.abs(regressed() - np.eye(4)).max() > 0.1
    np.testing.assert_allclose(model.get_weights()[0], regressed(), rtol=1e-5, atol=1e-5)
    assert int(optimizer.iterations) == STEPS and optimizer.kept_bases == 0


@every_frontend
@pytest.mark.parametrize("bad", [np.nan, 1e25])  # whose square is infinite
@uncompiled()
def test_a_first_gradient_that_is_not_finite_does_not_hold_training_up(frontend, bad):
    """The bases are of what is finite, and every renewal says so."""
    w, gradients = random_steps((4, 4), steps=5)
    gradients[0][0, 1] = bad
    optimizer = FRONTENDS[frontend][1].SOAP(0.1, precondition_frequency=2, on_nonfinite="propagate")
    variable = new_variable(frontend, w, path="kernel")
    for g in gradients:
        apply(optimizer, [g], [variable])
    assert optimizer.kept_bases == 2
    assert np.isfinite(array(variable)).all() and np.abs(array(variable) - w).max() > 0.1
