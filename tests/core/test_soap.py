"""SOAP against the oracle, in NumPy; the oracle against numbers of the authors' code."""

import itertools

import numpy as np
import pytest
from oracle import Soap
from support.cases import random_steps

from tf_lamb.core.rules import soap
from tf_lamb.core.rules.soap import sides_of

# The authors' `soap.py`, to 7 digits in torch's float32: w after calls 2, 3 and 4.
START = [[0.5, -0.3], [0.2, 0.8]]
GRADIENTS = np.array([
    [[0.1, -0.2], [0.3, 0.05]], [[-0.05, 0.1], [0.2, -0.15]],
    [[0.2, 0.1], [-0.1, 0.3]], [[0.15, -0.1], [0.05, 0.2]],
])  # fmt: skip
SECOND = [0.5505101868, -0.3603472093, 0.0817407007, 0.9395634219]
AUTHORS = {
    "every 10": (
        {"every": 10},
        [SECOND, [0.4998021715, -0.4402299098, 0.0447421630, 0.9206979016],
         [0.4316182340, -0.4490071904, -0.0005686724, 0.8617813558]],
    ),
    "every 1": (
        {"every": 1},
        [SECOND, [0.4971078244, -0.4345534648, 0.0586726215, 0.9027260354],
         [0.4254713718, -0.4701448342, 0.0383338760, 0.8416823433]],
    ),
    "normalized": (
        {"every": 1, "normalize": True},
        [[0.7276245719, -0.5709226620, -0.3281774256, 1.4269245298],
         [0.3915597220, -1.0434658613, -0.4736941836, 1.1977311998],
         [0.0218805527, -1.2294346177, -0.5784952799, 0.8843389488]],
    ),
    "not corrected": (
        {"every": 2, "correct": False, "wd": 0.0},
        [[0.5114176422, -0.3135747030, 0.1735747128, 0.8314176329],
         [0.4957402889, -0.3386556675, 0.1620359079, 0.8258146517],
         [0.4716069720, -0.3504588061, 0.1508731026, 0.8074002220]],
    ),
}  # fmt: skip


def slots(w, *, longest=10_000, one_sided=False):
    """Those of a matrix, before its first step."""
    sizes = [w.shape[side] for side in sides_of(w.shape, longest, one_sided)]
    return [np.zeros(w.shape)] * 2 + [np.zeros((n, n)) for n in sizes for _ in "LQ"] + [0.0] * 2


def steps(w, gradients, *, wd=0.01, every=10, longest=10_000, one_sided=False, **arguments):
    """All that is kept after each step, the weight first."""
    state = (w, *slots(w, longest=longest, one_sided=one_sided))
    for t, g in enumerate(gradients, 1):
        state = soap(
            np, g, *state, lr=0.1, t=t, decay=wd, adapt=True, precondition_frequency=every,
            max_precond_dim=longest, one_sided=one_sided, **arguments,
        )  # fmt: skip
        yield state


@pytest.mark.parametrize("case", AUTHORS)
def test_the_oracle_has_the_authors_numbers(case):
    arguments, expected = AUTHORS[case]
    reference = Soap(START, lr=0.1, **{"wd": 0.01, **arguments})
    np.testing.assert_array_equal(reference.step(GRADIENTS[0]), START)
    for g, after in zip(GRADIENTS[1:], expected, strict=True):
        np.testing.assert_allclose(reference.step(g).ravel(), after, rtol=0, atol=1e-9)


# Of a side that the first gradient does not span, no basis is determined: those have none.
CASES = [
    ((5, 5), {}), ((4, 7), {"one_sided": True}), ((7, 4), {"one_sided": True}),
    ((4, 7), {"longest": 5}), ((7, 4), {"longest": 5}),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "sides"), CASES)
@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_matrix_is_the_oracles(shape, sides, every):
    w, gradients = random_steps(shape, steps=8)
    for wd, b1, b2, eps in itertools.product((0.0, 0.3), (0.9, 0.0), (0.95, 0.8), (1e-8, 0.1)):
        own = {"wd": wd, "every": every, **sides}
        reference = Soap(w, lr=0.1, b1=b1, b2=b2, eps=eps, **own)
        found = steps(w, gradients, beta_1=b1, beta_2=b2, epsilon=eps, **own)
        for (ours, *_), g in zip(found, gradients, strict=True):
            np.testing.assert_allclose(ours, reference.step(g), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("shape", [(4,), (4, 3)])
def test_what_is_no_matrix_is_adamws(shape):
    w, gradients = random_steps(shape, steps=5)
    reference = Soap(w, lr=0.1, wd=0.3, matrix=False, b1=0.8, b2=0.9)
    state = (w, np.zeros(shape), np.zeros(shape))
    for t, g in enumerate(gradients, 1):
        state = soap(np, g, *state, lr=0.1, t=t, decay=0.3, adapt=False, beta_1=0.8, beta_2=0.9)
        np.testing.assert_allclose(state[0], reference.step(g), rtol=1e-12)


def test_bases_stay_orthogonal_and_in_order():
    w, gradients = random_steps((6, 4), steps=40)
    *_, state = steps(w, gradients, every=5)
    factors, bases = state[3:7:2], state[4:7:2]
    for factor, basis in zip(factors, bases, strict=True):
        np.testing.assert_allclose(basis.T @ basis, np.eye(len(basis)), atol=1e-12)
        along = np.diag(basis.T @ factor @ basis)
        assert np.all(np.diff(along) < 0.1 * along[0]) and along[0] > along[-1]
        assert np.all(basis.sum(0) >= 0)


def test_between_renewals_no_basis_moves():
    w, gradients = random_steps((4, 4), steps=9)
    bases = [state[4] for state in steps(w, gradients, every=4)]
    moved = [not np.array_equal(*pair) for pair in itertools.pairwise(bases)]
    assert moved == [False] * 3 + [True] + [False] * 3 + [True]  # after calls 5 and 9


def test_a_basis_that_is_not_finite_stays_and_is_counted():
    w, gradients = random_steps((4, 4), steps=4)
    for state in steps(w, gradients[:3], every=1):
        before = state
    broken = [*before]
    broken[3] = np.full((4, 4), np.nan)  # L
    with np.errstate(invalid="ignore"):
        after = soap(np, gradients[3], *broken, lr=0.1, t=4, decay=0.0, adapt=True,
                     precondition_frequency=1)  # fmt: skip
    np.testing.assert_array_equal(after[4], before[4])
    np.testing.assert_array_equal(after[6], before[6])
    assert before[-2] == 0 and after[-2] == 1
    assert np.isfinite(after[0]).all() and np.isfinite(after[2]).all()


@pytest.mark.parametrize("clock", [lambda t: 2 * t, lambda t: 1])
def test_a_matrix_counts_its_own_steps(clock):
    """It may rest in every other step, or `iterations` begin anew."""
    w, gradients = random_steps((4, 4), steps=9)
    state = (w, *slots(w))
    for t, g in enumerate(gradients, 1):
        state = soap(
            np, g, *state, lr=0.1, t=clock(t), decay=0.01, adapt=True, precondition_frequency=4
        )
    *_, expected = steps(w, gradients, every=4)
    np.testing.assert_array_equal(state[0], expected[0])


@pytest.mark.parametrize(
    ("shape", "longest", "one_sided", "expected"),
    [((4, 7), 10, False, [0, 1]), ((4, 7), 5, False, [0]), ((7, 4), 5, False, [1]),
     ((7, 7), 5, False, []), ((4, 7), 10, True, [0]), ((7, 4), 10, True, [1]),
     ((4, 4), 10, True, [0]), ((7, 9), 5, True, [])],
)  # fmt: skip
def test_the_sides_that_have_a_basis(shape, longest, one_sided, expected):
    assert sides_of(shape, longest, one_sided) == expected
