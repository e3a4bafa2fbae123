"""Whether DecentLaM's workers come together: its momentum is of their differences, too.

Without gradients its step, in weights x and velocity v of all workers, is

    x <- W x - b v        v <- (I - W) x + b v

For an eigenvalue of W that is a 2 x 2 matrix. With a real one, as all of a symmetric W are, it
shrinks whatever b < 1 is. With a complex one it may grow, and so it may where matrices take turns:
at b = 0.9 it does for `one_sided_ring` from three workers on, and for `exponential` and
`one_peer_exponential` from four on. The other methods only ever shrink differences.
"""

import cmath
import math
from collections.abc import Sequence

from tf_lamb.core.decentralized.topologies import Matrix

_MOMENTA = [i / 100 for i in range(99, 0, -1)]


def growth(matrices: Sequence[Matrix], momentum: float) -> float | None:
    """By how much the workers' differences are multiplied a step, in the long run.

    Returns:
        A number below 1 where they vanish. None where that takes an eigenvalue solver: for
        matrices that are neither all circulant, nor a single symmetric one.
    """
    modes = _modes(matrices)
    return None if modes is None else _growth(modes, momentum)


def largest_momentum(matrices: Sequence[Matrix]) -> float:
    """The largest momentum, in hundredths, with which the workers come together; or 0."""
    modes = _modes(matrices)
    return 0.0 if modes is None else next((b for b in _MOMENTA if _growth(modes, b) < 1), 0.0)


def _modes(matrices):
    """Each way to differ, as its eigenvalue of each matrix: those that are circulant commute."""
    if all(map(_is_circulant, matrices)):
        workers = len(matrices[0])
        return [tuple(_eigenvalue(matrix, k) for matrix in matrices) for k in range(1, workers)]
    if len(matrices) == 1 and _is_symmetric(matrices[0]):
        return [(0.0,)]  # any real eigenvalue will do: whether it shrinks is the same for all
    return None


def _eigenvalue(matrix, k):
    """The k-th of a circulant matrix."""
    turn = 2j * math.pi * k / len(matrix)
    return sum(weight * cmath.exp(turn * j) for j, weight in enumerate(matrix[0]) if weight)


def _growth(modes, b):
    return max((_radius(mode, b) for mode in modes), default=0.0)


def _radius(eigenvalues, b):
    """Of the product of the 2 x 2 matrices of one mode, as a mean of its factors."""
    p, q, r, s = 1.0, 0.0, 0.0, 1.0
    for w in eigenvalues:
        p, q, r, s = w * p - b * r, w * q - b * s, (1 - w) * p + b * r, (1 - w) * q + b * s
    half = (p + s) / 2
    root = cmath.sqrt(half * half - (p * s - q * r))
    return max(abs(half + root), abs(half - root)) ** (1 / len(eigenvalues))


def _is_circulant(matrix):
    return _is(matrix, lambda i, j: matrix[0][(j - i) % len(matrix)])


def _is_symmetric(matrix):
    return _is(matrix, lambda i, j: matrix[j][i])


def _is(matrix, expected):
    return all(
        math.isclose(weight, expected(i, j), abs_tol=1e-9)
        for i, row in enumerate(matrix) for j, weight in enumerate(row)
    )  # fmt: skip
