"""Topologies: doubly stochastic matrices, what is exchanged, and whether workers come together."""

import functools

import numpy as np
import pytest
from support.decentralized import matrix_of

from tf_lamb_extras.decentralized import rules

pytestmark = pytest.mark.once

WORKERS = 8


def test_the_worked_matrices():
    third = 1 / 3
    ring = [[third, third, 0, third], [third, third, third, 0], [0, third, third, third],
            [third, 0, third, third]]  # fmt: skip
    np.testing.assert_array_equal(matrix_of("ring"), ring)
    eigenvalues = np.linalg.eigvalsh(matrix_of("ring"))
    np.testing.assert_allclose(eigenvalues, [-third, third, third, 1], atol=1e-15)
    static = [[third, third, third, 0], [0, third, third, third], [third, 0, third, third],
              [third, third, 0, third]]  # fmt: skip
    np.testing.assert_array_equal(matrix_of("exponential"), static)
    first, second = rules.matrices("one_peer_exponential", 4)
    assert first == ((.5, .5, 0, 0), (0, .5, .5, 0), (0, 0, .5, .5), (.5, 0, 0, .5))  # fmt: skip
    assert second == ((.5, 0, .5, 0), (0, .5, 0, .5), (.5, 0, .5, 0), (0, .5, 0, .5))  # fmt: skip
    assert matrix_of("one_sided_ring")[3].tolist() == [0.5, 0, 0, 0.5]
    symmetric = matrix_of("symmetric_exponential", 8)
    assert np.flatnonzero(symmetric[0]).tolist() == [0, 1, 4, 7] and symmetric[0, 4] == 0.25
    np.testing.assert_array_equal(matrix_of("full"), np.full((4, 4), 0.25))
    assert matrix_of("ring", 2).tolist() == [[0.5, 0.5], [0.5, 0.5]]


every_topology = pytest.mark.parametrize("name", rules.TOPOLOGIES)
every_number = pytest.mark.parametrize("workers", [1, 2, 3, 4, 6, 7, 8, 12, 16, 17])


@every_number
@every_topology
def test_every_matrix_is_doubly_stochastic(name, workers):
    for rows in rules.matrices(name, workers):
        matrix = np.array(rows)
        np.testing.assert_allclose(matrix.sum(axis=0), 1, rtol=1e-14)
        np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=1e-14)
        assert matrix.min() >= 0 and np.diag(matrix).min() > 0


@every_number
@every_topology
def test_every_matrix_is_what_is_exchanged(name, workers):
    x = np.random.default_rng(0).normal(size=(workers, 3))
    for rows in rules.matrices(name, workers):
        matrix, mixing = np.array(rows), rules.Mixing.of(rows)
        total = np.array(mixing.own)[:, None] * x
        for term in mixing.terms:
            for places in zip(*term.pairs, strict=True):
                assert len(set(places)) == len(places)
            received = np.zeros_like(x)
            for sender, receiver in term.pairs:
                received[receiver] = x[sender]
            total += np.array(term.weights)[:, None] * received
        np.testing.assert_allclose(total, matrix @ x, atol=1e-14)
        assert mixing.is_mean == np.allclose(matrix, 1 / workers)


@every_number
@every_topology
def test_after_enough_turns_everyone_has_heard_of_everyone(name, workers):
    product = functools.reduce(np.matmul, map(np.array, rules.matrices(name, workers)))
    if name == "one_peer_exponential" and workers & (workers - 1) == 0:
        np.testing.assert_array_equal(product, np.full((workers, workers), 1 / workers))
    assert np.linalg.matrix_power(product, workers).min() > 0


@every_number
@pytest.mark.parametrize("name", ["ring", "symmetric_exponential", "grid", "full"])
def test_whoever_sends_to_another_hears_of_it(name, workers):
    np.testing.assert_array_equal(matrix_of(name, workers), matrix_of(name, workers).T)


BAD_TOPOLOGIES = {
    "name": ("rings", "topology must be one of 'ring', .* or a matrix, not 'rings'"),
    "other number": (np.full((4, 4), 0.25), "a matrix for 4 workers, but there are 8, one a dev"),
    "rows": (np.eye(8) + np.eye(8)[0], "row 0 of the matrix sums to 2"),
    "columns": (np.eye(8)[[0] * 8], "column 0 of the matrix sums to 8"),
    "negative": (
        np.full((8, 8), 0.2) - 0.6 * np.eye(8),
        "gives worker 0 the weight -0.4. Use none below 0",
    ),
    "no matrix": (3, "a name such as 'ring' or a matrix of numbers, not 3"),
}


@pytest.mark.parametrize("case", BAD_TOPOLOGIES)
def test_what_is_no_topology_is_one_error(case):
    topology, message = BAD_TOPOLOGIES[case]
    with pytest.raises(ValueError, match=message):
        rules.matrices(topology, WORKERS)


def growth_by_eigenvalues(matrices, b):
    """Of what is orthogonal to agreement, by the eigenvalues of the whole recursion."""
    n = len(matrices[0])
    whole = np.eye(2 * n)
    for rows in matrices:
        w = np.array(rows)
        whole = np.block([[w, -b * np.eye(n)], [np.eye(n) - w, b * np.eye(n)]]) @ whole
    apart = np.kron(np.eye(2), np.eye(n) - 1 / n)
    return np.abs(np.linalg.eigvals(apart @ whole @ apart)).max() ** (1 / len(matrices))


@pytest.mark.parametrize("b", [0.3, 0.9])
@pytest.mark.parametrize("workers", [2, 3, 4, 8, 12])
@every_topology
def test_whether_decentlam_comes_together_by_eigenvalues(name, workers, b):
    found = rules.matrices(name, workers)
    assert rules.growth(found, b) == pytest.approx(growth_by_eigenvalues(found, b), abs=1e-6)


@pytest.mark.parametrize("workers", [2, 3, 4, 8, 12])
@every_topology
def test_the_largest_momentum_by_eigenvalues(name, workers):
    found = rules.matrices(name, workers)
    most = rules.largest_momentum(found)
    assert growth_by_eigenvalues(found, most) < 1
    assert most == 0.99 or growth_by_eigenvalues(found, most + 0.011) >= 1
    if name in ("ring", "symmetric_exponential", "grid", "full"):
        assert most == 0.99


STAR = np.diag([0.25, 0.75, 0.75, 0.75]) + 0.25 * np.array([[0, 1, 1, 1]] + 3 * [[1, 0, 0, 0]])
# In a line, the ends alone keep a part of their own.
LINE = np.array([[0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5], [0, 0, 0.5, 0.5]])
BIPARTITE = np.array([[0, 0, 0.9, 0.1], [0, 0, 0.1, 0.9], [0.9, 0.1, 0, 0], [0.1, 0.9, 0, 0]])


@pytest.mark.parametrize("b", [0.05, 0.3, 0.9, 0.99])
@pytest.mark.parametrize("matrix", [STAR, LINE, BIPARTITE, np.eye(2)[::-1]])
def test_the_growth_of_a_symmetric_matrix_is_that_of_its_eigenvalues(matrix, b):
    assert np.allclose(matrix, matrix.T) and np.allclose(matrix.sum(0), 1)
    found = rules.matrices(matrix, len(matrix))
    growth = rules.growth(found, b)
    assert growth == pytest.approx(growth_by_eigenvalues(found, b), abs=1e-6)
    assert growth < 1


def test_of_matrices_with_unknown_growth_no_momentum_is_known_to_work():
    found = rules.matrices((np.eye(8) + np.eye(8)[[1, 2, 4, 0, 5, 6, 7, 3]]) / 2, 8)
    assert rules.growth(found, 0.1) is None and rules.largest_momentum(found) == 0


def moves(*orders):
    """The mean of the matrices by which worker i takes over the weights of worker order[i]."""
    return np.mean([np.eye(len(order))[[*order]] for order in orders], axis=0)


# Matrices that take turns, and whether they make all workers equal.
TURNS = {
    "swap": ([moves((1, 0))], False),
    "a circle of three": ([moves((1, 2, 0))], False),
    "two halves": ([BIPARTITE], False),
    "a swap and a rest": ([moves((1, 0)), moves((0, 1))], False),
    "half a swap": ([moves((0, 1), (1, 0))], True),
    "a circle with a shorter one": ([moves((1, 2, 3, 4, 0), (1, 2, 3, 0, 4))], True),
    "pairs that stay": ([moves((0, 1, 2, 3), (1, 0, 3, 2)), moves((0, 1, 2, 3))], False),
    "pairs that change": (
        [moves((0, 1, 2, 3), (1, 0, 3, 2)), moves((0, 1, 2, 3), (3, 2, 1, 0))], True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TURNS)
def test_mixing_makes_workers_equal_as_the_eigenvalues_say(case):
    matrices, expected = TURNS[case]
    n = len(matrices[0])
    turn = functools.reduce(np.matmul, matrices)
    assert (np.abs(np.linalg.eigvals(turn - 1 / n)).max() < 1 - 1e-9) == expected
    assert rules.averages([tuple(map(tuple, matrix)) for matrix in matrices]) == expected


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8, 12, 17])
@every_topology
def test_every_topology_makes_workers_equal(name, workers):
    assert rules.averages(rules.matrices(name, workers))
