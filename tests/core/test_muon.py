"""Muon against the oracle, in NumPy."""

import itertools

import numpy as np
import pytest
from oracle import Muon
from support.cases import random_steps

from tf_lamb.core.rules import muon
from tf_lamb.core.rules.muon import MuonForm, orthogonalized
from tf_lamb.core.stacks import run_single

_KEYS = ("wd", "nesterov", "scale", "mu")
CASES = [
    dict(zip(_KEYS, values, strict=True))
    for values in itertools.product((0.0, 0.3), (True, False), ("rms", "shape"), (0.95, 0.5))
]


# Preset -> a, b and c of each step: Jordan's; Amsel's and Huang's with a safety factor of 1.01.
POLYNOMIALS = {
    "jordan": np.full((5, 3), [3.4445, -4.7750, 2.0315]),
    "polar_express": np.array([
        [8.28721201814563, -23.595886519098837, 17.300387312530933],
        [4.107059111542203, -2.9478499167379106, 0.5448431082926601],
        [3.9486908534822946, -2.908902115962949, 0.5518191394370137],
        [3.3184196573706015, -2.488488024314874, 0.51004894012372],
        [2.300652019954817, -1.6689039845747493, 0.4188073119525673],
    ]) / [1.01, 1.01**3, 1.01**5],
    "cubic5": np.array([
        [3.3656576, -3.3420992, 0], [2.5744352, -1.4957376, 0], [2.5368962, -1.4312570, 0],
        [2.4418906, -1.2764040, 0], [2.2230472, -0.9630650, 0],
    ]) / [1.01, 1.01**3, 1.01**5],
}  # fmt: skip
# Form -> those that it has.
FORMS = {
    "jordan": (MuonForm(), POLYNOMIALS["jordan"]),
    "jordan, 3 steps": (MuonForm(newton_schulz_steps=3), POLYNOMIALS["jordan"][:3]),
    **{name: (MuonForm(coefficients=name), own) for name, own in POLYNOMIALS.items()},
    "a triple": (MuonForm(coefficients=(2.0, -1.5, 0.5)), [[2.0, -1.5, 0.5]] * 5),
    "a triple, 2 steps": (MuonForm(2, coefficients=(1.5, -0.5, 0.0)), [[1.5, -0.5, 0.0]] * 2),
    "two triples": (MuonForm(coefficients=((3.0, -4.0, 2.0), (1.5, -0.5, 0.0))),
                    [[3.0, -4.0, 2.0], [1.5, -0.5, 0.0]]),
    "one of one": (MuonForm(coefficients=((3.0, -4.0, 2.0),)), [[3.0, -4.0, 2.0]]),
}  # fmt: skip


def steps(w, gradients, *, wd=0.0, mu=0.95, scale="rms", rate=1.0, matrix=True, **arguments):
    """The weights after each step."""
    state = (w, np.zeros_like(w)) if matrix else (w, np.zeros_like(w), np.zeros_like(w))
    for t, g in enumerate(gradients, 1):
        step = muon(
            np, g, *state, lr=0.1, t=t, decay=wd, adapt=matrix, momentum=mu,
            form=MuonForm(update_scale=scale, fallback_lr_scale=rate), **arguments,
        )  # fmt: skip
        state = run_single(np, step)
        yield state[0]


@pytest.mark.parametrize("shape", [(4, 3), (3, 7), (5, 5)])
def test_a_matrix_is_the_oracles(shape):
    w, gradients = random_steps(shape, steps=5)
    for case in CASES:
        reference = Muon(w, lr=0.1, **case)
        for ours, g in zip(steps(w, gradients, **case), gradients, strict=True):
            np.testing.assert_allclose(ours, reference.step(g), rtol=1e-9, err_msg=str(case))


@pytest.mark.parametrize("shape", [(4,), (4, 3)])
def test_what_is_no_matrix_is_the_oracles(shape):
    w, gradients = random_steps(shape, steps=5)
    reference = Muon(w, lr=0.1, wd=0.3, matrix=False, rate=0.5, b1=0.8, b2=0.9)
    found = steps(w, gradients, wd=0.3, matrix=False, rate=0.5, beta_1=0.8, beta_2=0.9)
    for ours, g in zip(found, gradients, strict=True):
        np.testing.assert_allclose(ours, reference.step(g), rtol=1e-12)


def test_a_gradient_of_zeros_moves_what_decays_alone():
    w, _ = random_steps((4, 3))
    with np.errstate(all="raise"):
        (decayed,) = steps(w, np.zeros((1, 4, 3)), wd=0.3)
    np.testing.assert_allclose(decayed, 0.97 * w)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(4, 3), (3, 7)])
def test_coefficients_are_those_of_the_oracle(form, shape):
    chosen, polynomials = FORMS[form]
    assert chosen.newton_schulz_steps == len(polynomials)
    w, gradients = random_steps(shape, steps=3)
    reference = Muon(w, lr=0.1, wd=0.3, polynomials=polynomials)
    state = w, np.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        state = run_single(np, muon(np, g, *state, lr=0.1, t=t, decay=0.3, adapt=True, form=chosen))
        np.testing.assert_allclose(state[0], reference.step(g), rtol=1e-9)


def best_quintic(low, high):
    """a, b and c of the odd quintic that comes nearest to 1 between these, by exchange (Remez)."""
    inner = (3 * low + high) / 4, (low + 3 * high) / 4
    for _ in range(100):
        points = np.array([low, *inner, high])
        powers = [points, points**3, points**5, [1, -1, 1, -1]]
        a, b, c, _ = np.linalg.solve(np.transpose(powers), np.ones(4))
        turning = np.sqrt(9 * b * b - 20 * a * c)
        inner = np.sqrt((-3 * b - turning) / (10 * c)), np.sqrt((-3 * b + turning) / (10 * c))
    return np.array([a, b, c])


def test_the_polar_express_is_the_best_composition_from_a_thousandth_on():
    """Its authors take no interval with a larger ratio of its ends than 41.5 to 1 (appendix)."""
    low, high = 1e-3, 1.0
    for published in POLYNOMIALS["polar_express"]:
        best = best_quintic(max(low, 0.02407327424182761 * high), high)
        ends = [best @ np.array([x, x**3, x**5]) for x in (low, high)]
        best *= 2 / sum(ends)
        np.testing.assert_allclose(published * [1.01, 1.01**3, 1.01**5], best, rtol=1e-6)
        low = best @ np.array([low, low**3, low**5])
        high = 2 - low


# Preset -> where singular values from 0.01 to 1 end, as the docstring of Muon says.
BANDS = {"jordan": (0.68, 1.14), "polar_express": (0.87, 1.13), "cubic5": (0.8, 1.3)}


@pytest.mark.parametrize("name", BANDS)
def test_singular_values_end_in_the_band_of_the_coefficients(name):
    values = np.geomspace(0.01, 1, 1000)
    u = np.diag(values)  # divided by its norm, it is smaller: the first step undoes that
    (a, b, c), *others = MuonForm(coefficients=name).triples
    n = np.linalg.norm(u)
    (o,) = orthogonalized(np, u, [(a * n, b * n**3, c * n**5), *others])
    low, high = BANDS[name]
    assert low <= np.diag(o).min() < low + 0.011 and high - 0.011 < np.diag(o).max() <= high


@pytest.mark.parametrize("name", BANDS)
@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (8, 1), (3, 3)])
def test_a_matrix_of_rank_one_keeps_its_direction(name, shape):
    """As the kernel of `Dense(1)` always does: its one singular value is 1 at first."""
    low, high = BANDS[name]
    for seed in range(20):
        rng = np.random.default_rng(seed)
        u = np.outer(*(rng.normal(size=length) for length in shape)).astype("float32")
        (o,) = orthogonalized(np, u, MuonForm(coefficients=name).triples)
        along = np.sum(np.float64(o) * u) / np.linalg.norm(u)
        assert low < along < high
        np.testing.assert_allclose(o, along * u / np.linalg.norm(u), atol=0.01)


@pytest.mark.parametrize("name", BANDS)
def test_no_first_step_takes_1_to_what_rounding_to_bfloat16_adds(name):
    """A product, a factor and a sum are each rounded by up to a 256th of what is added."""
    (a, b, c), *_ = MuonForm(coefficients=name).triples
    assert a + b + c > 3 / 256 * (abs(a) + abs(b) + abs(c))


@pytest.mark.parametrize(
    "coefficients",
    ["polar_express", "cubic5", ((3.0, -4.0, 2.0),) * 2],
    ids=["polar_express", "cubic5", "two steps"],
)
def test_coefficients_of_another_number_of_steps_are_refused(coefficients):
    with pytest.raises(ValueError, match="newton_schulz_steps=4: leave newton_schulz_steps"):
        MuonForm(newton_schulz_steps=4, coefficients=coefficients)


def test_a_cubic_has_two_products_a_step():
    class Counted(np.ndarray):
        products = 0

        def __matmul__(self, other):
            Counted.products += 1
            return super().__matmul__(other)

    u = np.random.default_rng(0).normal(size=(3, 4)).view(Counted)
    found = []
    for name in POLYNOMIALS:
        Counted.products = 0
        orthogonalized(np, u, MuonForm(coefficients=name).triples)
        found.append(Counted.products)
    assert found == [15, 15, 10]
