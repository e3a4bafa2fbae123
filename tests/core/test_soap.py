"""SOAP against the oracle, in NumPy; the oracle against numbers of the authors' code."""

import itertools
import types

import numpy as np
import pytest
from oracle import Soap
from support.cases import assert_same, random_steps

from tf_lamb.core.rules import soap
from tf_lamb.core.rules.soap import SOAPForm, renew_bases, sides_of
from tf_lamb.core.stacks import run_batched, run_single

QR, CHOLESKY = SOAPForm(renewal="qr"), SOAPForm(renewal="cholesky")

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
    pairs = [np.zeros((n, n)) for n in sizes for _ in "LQ"]
    return [np.zeros(w.shape)] * 2 + pairs + [np.zeros(())] * 2


def solved(triangle, b, lower):
    assert lower
    return np.linalg.solve(np.tril(triangle), b)


LINALG = vars(np.linalg) | {"solve_triangular": solved}
NUMPY = types.SimpleNamespace(**vars(np) | {"linalg": types.SimpleNamespace(**LINALG)})


def step(g, state, *, wd=0.01, every=10, longest=10_000, form=QR, t=1, lr=0.1, **arguments):
    """A step of a matrix, to be run."""
    return soap(
        NUMPY, g, *state, lr=lr, t=t, decay=wd, adapt=True, precondition_frequency=every,
        max_precond_dim=longest, form=form, **arguments,
    )  # fmt: skip


def steps(w, gradients, *, longest=10_000, one_sided=False, renewal="qr", **arguments):
    """All that is kept after each step, the weight first."""
    state, form = (w, *slots(w, longest=longest, one_sided=one_sided)), SOAPForm(one_sided, renewal)
    for t, g in enumerate(gradients, 1):
        state = run_single(NUMPY, step(g, state, longest=longest, form=form, t=t, **arguments))
        yield state


@pytest.mark.parametrize("case", AUTHORS)
def test_the_oracle_has_the_authors_numbers(case):
    arguments, expected = AUTHORS[case]
    reference = Soap(START, lr=0.1, **{"wd": 0.01, **arguments})
    np.testing.assert_array_equal(reference.step(GRADIENTS[0]), START)
    for g, after in zip(GRADIENTS[1:], expected, strict=True):
        np.testing.assert_allclose(reference.step(g).ravel(), after, rtol=0, atol=1e-9)


CASES = [
    ((5, 5), {}), ((4, 7), {}), ((7, 4), {}), ((4, 7), {"one_sided": True}),
    ((7, 4), {"one_sided": True}), ((4, 7), {"longest": 5}), ((7, 4), {"longest": 5}),
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
        new = soap(np, g, *state, lr=0.1, t=t, decay=0.3, adapt=False, beta_1=0.8, beta_2=0.9)
        state = run_single(np, new)
        np.testing.assert_allclose(state[0], reference.step(g), rtol=1e-12)


def test_a_renewal_that_is_left_open_is_householders():
    w, gradients = random_steps((6, 4), steps=12)
    assert_same(*([*steps(w, gradients, every=2, renewal=each)][-1] for each in (None, "qr")))


@pytest.mark.parametrize("shape", [(48, 48), (64, 24), (24, 64)])
@pytest.mark.parametrize("rank", [0, 1, 8, 24])
@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e15])
@pytest.mark.parametrize("form", [QR, CHOLESKY])
def test_the_first_bases_are_eigenvectors_of_both_factors(shape, rank, scale, form):
    """In float32, of a gradient of any rank, the largest eigenvalue first."""
    rng = np.random.default_rng(0)
    g = scale * rng.normal(size=(shape[0], rank)) @ rng.normal(size=(rank, shape[1]))
    g = g.astype("float32")
    w = np.zeros(shape, "float32")
    state = run_single(NUMPY, step(g, (w, *(x.astype("float32") for x in slots(w))), form=form))
    assert state[-2] == 0
    exact = g.astype("float64") / (np.linalg.norm(g.astype("float64"), 2) or 1.0)
    for basis, factor in zip(state[4:7:2], (exact @ exact.T, exact.T @ exact), strict=True):
        basis = basis.astype("float64")
        np.testing.assert_allclose(basis.T @ basis, np.eye(len(basis)), atol=1e-5)
        inside = basis.T @ factor @ basis
        np.testing.assert_allclose(inside, np.diag(np.diag(inside)), atol=2e-5)
        assert np.all(np.diff(np.diag(inside)) < 2e-5)


@pytest.mark.parametrize("renewal", ["cholesky", "qr"])
def test_bases_stay_orthogonal_and_in_order(renewal):
    w, gradients = random_steps((6, 4), steps=40)
    *_, state = steps(w, gradients, every=5, renewal=renewal)
    factors, bases = state[3:7:2], state[4:7:2]
    for factor, basis in zip(factors, bases, strict=True):
        np.testing.assert_allclose(basis.T @ basis, np.eye(len(basis)), atol=1e-12)
        along = np.diag(basis.T @ factor @ basis)
        assert np.all(np.diff(along) < 0.1 * along[0]) and along[0] > along[-1]
        assert np.all(basis.sum(0) >= 0)


def test_a_basis_that_is_not_finite_stays_and_is_counted():
    w, gradients = random_steps((4, 4), steps=4)
    for state in steps(w, gradients[:3], every=1):
        before = state
    broken = [*before]
    broken[3] = np.full((4, 4), np.nan)  # L
    with np.errstate(invalid="ignore"):
        after = run_single(np, step(gradients[3], broken, every=1))
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
        state = run_single(np, step(g, state, every=4, t=clock(t)))
    *_, expected = steps(w, gradients, every=4)
    np.testing.assert_array_equal(state[0], expected[0])


@pytest.mark.parametrize("every", [7, 8, 10])
def test_a_counter_in_float32_renews_beyond_2_to_the_24_steps(every):
    """In every f-th step, as an exact counter has it; a stop at 2^24 would renew never, or ever."""
    w, gradients = random_steps((4, 3), steps=63)
    state = tuple(each.astype("float32") for each in (w, *slots(w)))
    first, renewals = 2**24 - 1040, []
    for t, g in enumerate(gradients, -3):
        if t == 0:
            state = (*state[:-1], np.float32(first))
        basis = state[4]
        state = run_single(NUMPY, step(g.astype("float32"), state, every=every, t=9))
        assert state[-1].dtype == "float32"
        if t >= 0 and not np.array_equal(basis, state[4]):
            renewals.append(t)
    assert renewals == [t for t in range(60) if (first + t) % every == 0]


@pytest.mark.parametrize(
    ("shape", "longest", "one_sided", "expected"),
    [((4, 7), 10, False, [0, 1]), ((4, 7), 5, False, [0]), ((7, 4), 5, False, [1]),
     ((7, 7), 5, False, []), ((4, 7), 10, True, [0]), ((7, 4), 10, True, [1]),
     ((4, 4), 10, True, [0]), ((7, 9), 5, True, [])],
)  # fmt: skip
def test_the_sides_that_have_a_basis(shape, longest, one_sided, expected):
    assert sides_of(shape, longest, one_sided) == expected


SPECTRA = {
    "full rank": lambda rng, n: rng.normal(size=(n, n)),
    "steep": lambda rng, n: np.arange(1, n + 1)[:, None] ** -2.5 * rng.normal(size=(n, n)),
    "rank 2": lambda rng, n: rng.normal(size=(n, 2)) @ rng.normal(size=(2, n)),
    "rank 1": lambda rng, n: rng.normal(size=(n, 1)) @ rng.normal(size=(1, n)),
    "rows without a gradient": lambda rng, n: rng.normal(size=(n, n)) * (np.arange(n) < 5)[:, None],
}


@pytest.mark.parametrize("spectrum", SPECTRA)
def test_cholesky_finds_what_householder_finds(spectrum):
    """In float32, over renewals of which none is given up."""
    rng, n = np.random.default_rng(0), 48
    rotation = np.linalg.qr(rng.normal(size=(n, n)))[0]
    gradients = [(rotation @ SPECTRA[spectrum](rng, n)).astype("float32") for _ in range(60)]
    off = {}
    for renewal in ("qr", "cholesky"):
        state = [each.astype("float32") for each in (np.eye(n), *slots(np.eye(n)))]
        for g in gradients:
            made = run_single(
                NUMPY, step(g, state, every=3, lr=1e-3, form=SOAPForm(renewal=renewal))
            )
            state = [np.float32(each) for each in made]
        factor, basis = map(np.float64, state[3:5])
        assert state[-2] == 0
        np.testing.assert_allclose(basis.T @ basis, np.eye(n), atol=1e-5)
        inside = basis.T @ factor @ basis
        off[renewal] = np.linalg.norm(inside - np.diag(np.diag(inside))) / np.linalg.norm(inside)
    assert off["cholesky"] < 1.05 * off["qr"] + 1e-4


@pytest.mark.parametrize("rank", [1, 8])
def test_a_long_side_of_few_gradients_is_renewed(rank):
    """In the basis of the first of two: in float32 many columns are nearly the same."""
    u, v = np.float32(np.random.default_rng(0).normal(size=(2, 1024, rank)) / range(1, rank + 1))
    state = 0.95 * u @ u.T + 0.05 * v @ v.T, np.linalg.eigh(-u @ u.T)[1]
    _, n_failed, renewed = renew_bases(
        NUMPY, v, v, 0.0, False, True, *state, sides=(0,), renewal="cholesky"
    )
    assert n_failed == 0
    np.testing.assert_allclose(renewed.T @ renewed, np.eye(1024), atol=1e-5)


def test_a_side_that_no_gradient_reaches_keeps_its_basis():
    """What a factor does not weigh is of length 0, which divided by itself is no basis."""
    random = np.random.default_rng(0)
    root, factor, basis = random.normal(size=(2, 2)), np.zeros((4, 4)), np.eye(4)
    factor[:2, :2], basis[:2, :2] = root @ root.T, np.linalg.qr(root)[0]
    g = v = np.zeros((4, 3))
    _, n_failed, renewed = renew_bases(
        NUMPY, g, v, 0.0, False, True, factor, basis, sides=(0,), renewal="cholesky"
    )
    assert n_failed == 0
    np.testing.assert_allclose(renewed.T @ renewed, np.eye(4), atol=1e-9)
    np.testing.assert_allclose(np.abs(renewed[2:, 2:]), np.eye(2), atol=1e-9)


@pytest.mark.parametrize("scale", [1e-30, 1e-42, 0.0])
def test_a_factor_that_has_faded_still_has_a_basis(scale):
    """Of a matrix that got no gradient for a thousand steps and more; of nothing, the old one."""
    w, gradients = random_steps((4, 4), steps=5)
    *_, state = steps(w, gradients, every=2, renewal="cholesky")
    faded = [np.float32(x * scale if i in (3, 5) else x) for i, x in enumerate(state)]
    after = run_single(NUMPY, step(np.zeros((4, 4), "float32"), faded, every=1, form=CHOLESKY))
    assert after[-2] == 0
    for position in (4, 6):
        basis = after[position]
        np.testing.assert_allclose(basis.T @ basis, np.eye(4), atol=1e-6)
        if not scale:
            np.testing.assert_allclose(basis, faded[position], atol=1e-6)


def test_a_basis_that_is_not_orthogonal_is_not_taken(monkeypatch):
    w, gradients = random_steps((4, 4), steps=5)
    *_, before = steps(w, gradients, every=1)
    qr = np.linalg.qr
    skew = np.eye(4) + 1e-3 * np.eye(4, k=1)
    monkeypatch.setattr(NUMPY.linalg, "qr", lambda a, mode: (qr(a, mode)[0] @ skew, None))
    after = run_single(NUMPY, step(gradients[0], before, every=1))
    np.testing.assert_array_equal(after[4], before[4])
    np.testing.assert_array_equal(after[6], before[6])
    assert after[-2] == before[-2] + 1


@pytest.mark.parametrize("form", [QR, CHOLESKY])
def test_in_a_stack_each_has_its_own_clock_scale_and_faults(form):
    """One that begins, one that is due, one that is not, and one whose factor is NaN."""
    arguments, states = {"every": 2, "form": form}, []
    for seed, count in enumerate((0, 2, 3, 2)):
        w, gradients = random_steps((5, 5), steps=4, seed=seed)
        of = steps(w * 10**seed, gradients[:count], every=2, renewal=form.renewal)
        states.append((w, *slots(w)) if not count else [*of][-1])
    states[3] = [np.full((5, 5), np.nan) if i == 3 else x for i, x in enumerate(states[3])]
    made = [random_steps((5, 5), steps=1, seed=9 + i)[1][0] for i in range(4)]

    def each():
        rates = (0.1, 0.2, 0.3, 0.4)
        return [
            step(g, state, lr=lr, wd=lr / 2, **arguments)
            for g, state, lr in zip(made, states, rates, strict=True)
        ]

    with np.errstate(invalid="ignore"):
        found = run_batched(NUMPY, each())
        expected = [run_single(NUMPY, one) for one in each()]
    for one, other in zip(found, expected, strict=True):
        for x, y in zip(one, other, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)
    assert [float(state[-2]) for state in found] == [0, 0, 0, 1]


def test_shapes_take_turns():
    """Matrices of one shape together, others in other steps; under "qr" all at once."""
    moved = {"cholesky": [], "qr": []}
    for renewal, shape in itertools.product(moved, [(16, 16), (16, 64), (64, 16)]):
        w, gradients = random_steps(shape, steps=12)
        bases = [state[4] for state in steps(w, gradients, every=10, renewal=renewal)][1:]
        changes = [not np.array_equal(*pair) for pair in itertools.pairwise(bases)]
        moved[renewal].append(changes.index(True))
    assert len(set(moved["cholesky"])) == 3 and len(set(moved["qr"])) == 1
