"""Decentralized training: its rules, who averages with whom, and whether the workers agree.

Each worker averages with its neighbours instead of with everyone. What is known of the other
workers comes through `mix`, which gives a worker sum_j w_ij x_j of an array x that every worker j
has. Only that communicates.

The velocity holds the learning rate, as that of `keras.optimizers.SGD` does: it is the papers' m
times lr. At a constant rate that is the same. After a change of it, the papers' m is so multiplied
by the old rate over the new one, and what DecentLaM's holds of the workers' differences stays what
it was. With `mix` the mean of all, the mean of the workers moves as SGD's, whatever the schedule.

Every mixing matrix W here is doubly stochastic: its rows sum to 1, so that workers who agree stay
as they are, and so do its columns, so that mixing leaves the mean of all workers alone.

    ring                    1/3: itself and both neighbours
    one_sided_ring          1/2: itself and the next
    exponential             1/(1 + hops): itself and those 1, 2, 4, ... further on
    symmetric_exponential   likewise, those 1, 4, 16, ... away on either side
    one_peer_exponential    1/2: itself and, in turn, the one 1, 2, 4, ... further on
    grid                    Metropolis weights: the neighbours in the most square rectangle
    full                    1/n: everyone

DecentLaM's momentum is of the workers' differences, too. Without gradients its step, in weights x
and velocity v of all workers, is

    x <- W x - b v        v <- (I - W) x + b v

For an eigenvalue of W that is a 2 x 2 matrix. With a real one, as all of a symmetric W are, it
shrinks whatever b < 1 is. With a complex one it may grow, and so it may where matrices take turns:
at b = 0.9 it does for `one_sided_ring` from three workers on, and for `exponential` and
`one_peer_exponential` from four on. The other methods only ever shrink differences.
"""

import cmath
import dataclasses
import math
from collections.abc import Callable, Sequence

from tf_lamb.core.rules.shared import decayed


def dsgd(xp, g, w, *, lr, decay=0.0, mix):
    """One step of decentralized SGD.

        w <- mix(w - lr (g + decay w))

    Args:
        g, w: gradient and weight of this worker, arrays of one shape.
        lr: a scalar.
        decay: weight decay, a Python float.
        mix: array -> the neighbourhood's weighted mean of it.

    Returns:
        The new w, in a tuple.

    Source: Yuan et al., arXiv:2104.11981; adapt-then-combine.
    """
    return (mix(w - lr * decayed(g, decay, w)),)


def dmsgd(xp, g, w, v, *, lr, decay=0.0, momentum=0.9, mix, order="adapt_then_combine"):
    """One step of decentralized momentum SGD.

        v <- b v + lr (g + decay w)
        w <- mix(w - v)                 adapt, then combine (ATC)
        w <- mix(w) - v                 adapt with combine (AWC): `mix` need not wait for g

    Args:
        g, w, v: gradient, weight and velocity of this worker, arrays of one shape.
        momentum: b.
        order: "adapt_then_combine" or "adapt_with_combine".
        lr, decay, mix: see `dsgd`.

    Returns:
        The new w and v.

    Source: Yuan et al., arXiv:2104.11981; the orders go by BlueFog's names.
    """
    v = momentum * v + lr * decayed(g, decay, w)
    w = mix(w - v) if order == "adapt_then_combine" else mix(w) - v
    return w, v


def decentlam(xp, g, w, v, *, lr, decay=0.0, momentum=0.9, mix):
    """One step of DecentLaM: momentum of what DSGD would have moved w by.

        s  = w - mix(w - lr (g + decay w))
        v <- b v + s
        w <- w - v

    Its fixed point is DSGD's, whatever b is; that of `dmsgd` is DSGD's at lr/(1 - b). Where lr is
    0, neither w nor v changes.

    Returns the new w and v; the arguments are those of `dmsgd`.

    Source: Yuan et al., arXiv:2104.11981, where s/lr is the gradient, which lr = 0 leaves
    undefined.
    """
    s = w - mix(w - lr * decayed(g, decay, w))
    new_v = momentum * v + s
    return xp.where(lr > 0, w - new_v, w), xp.where(lr > 0, new_v, v)


Matrix = tuple[tuple[float, ...], ...]


@dataclasses.dataclass(frozen=True)
class Term:
    """The term that one exchange adds to every worker: weights[i] times what worker i receives."""

    pairs: tuple[tuple[int, int], ...]  # (sender, receiver), as `jax.lax.ppermute` takes them
    weights: tuple[float, ...]  # by receiver; 0 for one who receives nothing


@dataclasses.dataclass(frozen=True)
class Mixing:
    """One step's mixing matrix: the weight of what each worker has itself, and the exchanges."""

    own: tuple[float, ...]
    terms: tuple[Term, ...]

    @classmethod
    def of(cls, matrix: Matrix) -> "Mixing":
        """The matrix split by how far its weights reach: one exchange for each distance."""
        n = len(matrix)
        terms = []
        for distance in range(1, n):
            weights = tuple(matrix[i][(i + distance) % n] for i in range(n))
            pairs = tuple(((i + distance) % n, i) for i in range(n) if weights[i])
            if pairs:
                terms.append(Term(pairs, weights))
        return cls(tuple(matrix[i][i] for i in range(n)), tuple(terms))

    @property
    def is_mean(self) -> bool:
        """Whether it is the mean of all workers, for which there are better ways than exchanges."""
        n = len(self.own)
        weights = [*self.own, *(w for term in self.terms for w in term.weights)]
        return len(self.terms) == n - 1 and all(math.isclose(w, 1 / n) for w in weights)


def matrices(topology: object, workers: int) -> tuple[Matrix, ...]:
    """The mixing matrices that take turns, step after step; one, unless the name says one_peer.

    A topology is a name of those above, or a doubly stochastic matrix as a sequence of rows.
    """
    if isinstance(topology, str):
        if topology not in TOPOLOGIES:
            known = ", ".join(map(repr, TOPOLOGIES))
            raise ValueError(f"topology must be one of {known}, or a matrix, not {topology!r}.")
        return TOPOLOGIES[topology](workers)
    return (_given(topology, workers),)


def _given(topology, workers):
    try:
        matrix = tuple(tuple(float(weight) for weight in row) for row in topology)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"topology must be a name such as 'ring' or a matrix of numbers, not {topology!r:.200}."
        ) from error
    shape = sorted({len(matrix), *map(len, matrix)})
    if shape != [workers]:
        raise ValueError(
            f"topology is a matrix for {' x '.join(map(str, shape))} workers, but there are "
            f"{workers}, one a device. Give a {workers} x {workers} matrix, or devices=."
        )
    for kind, lines in (("row", matrix), ("column", tuple(zip(*matrix, strict=True)))):
        for i, line in enumerate(lines):
            if not math.isclose(sum(line), 1, abs_tol=1e-6):
                raise ValueError(
                    f"topology must be doubly stochastic, but {kind} {i} of the matrix sums to "
                    f"{sum(line):g}. Every row and every column must sum to 1."
                )
    _check_weights(matrix)
    return matrix


def _check_weights(matrix):
    """Raises where a weight is negative, or what one worker knows does not come to all."""
    for i, row in enumerate(matrix):
        if min(row) < 0:
            raise ValueError(
                f"topology gives worker {i} the weight {min(row):g}. Use none below 0."
            )
    reached, waiting = {0}, [0]
    while waiting:
        sender = waiting.pop()
        new = {i for i, row in enumerate(matrix) if row[sender]} - reached
        reached |= new
        waiting += new
    if len(reached) < len(matrix):
        lost = min(set(range(len(matrix))) - reached)
        raise ValueError(
            f"topology leaves worker {lost} without a way from worker 0, so that they never agree. "
            "Give some worker on each side a weight above 0 for one on the other."
        )


def _uniform(workers: int, offsets: Sequence[int]) -> Matrix:
    """Each worker's mean of itself and of those that many further on."""
    hops = {0, *(offset % workers for offset in offsets)}
    return tuple(
        tuple(1 / len(hops) if (j - i) % workers in hops else 0.0 for j in range(workers))
        for i in range(workers)
    )


def _powers(base: int, below: int) -> list[int]:
    """1, base, base squared, ... as far as they are smaller than that."""
    powers = [1]
    while powers[-1] * base < below:
        powers.append(powers[-1] * base)
    return powers


def _grid(workers: int) -> Matrix:
    """w_ij = 1/(1 + the larger number of neighbours of i and j), and i keeps the rest."""
    columns = next(c for c in range(math.isqrt(workers), 0, -1) if workers % c == 0)
    place = [divmod(i, columns) for i in range(workers)]

    def joined(i, j):
        return abs(place[i][0] - place[j][0]) + abs(place[i][1] - place[j][1]) == 1

    neighbours = [[j for j in range(workers) if joined(i, j)] for i in range(workers)]
    matrix = [[0.0] * workers for _ in range(workers)]
    for i, near in enumerate(neighbours):
        for j in near:
            matrix[i][j] = 1 / (1 + max(len(near), len(neighbours[j])))
        matrix[i][i] = 1 - sum(matrix[i])
    return tuple(map(tuple, matrix))


# name -> the matrices that take turns, of n workers
TOPOLOGIES: dict[str, Callable[[int], tuple[Matrix, ...]]] = {
    "ring": lambda n: (_uniform(n, [1, -1]),),
    "one_sided_ring": lambda n: (_uniform(n, [1]),),
    "exponential": lambda n: (_uniform(n, _powers(2, n)),),
    "symmetric_exponential": lambda n: (
        _uniform(n, [sign * hops for hops in _powers(4, n // 2 + 1) for sign in (1, -1)]),
    ),
    "one_peer_exponential": lambda n: tuple(_uniform(n, [hops]) for hops in _powers(2, n)),
    "grid": lambda n: (_grid(n),),
    "full": lambda n: (_uniform(n, range(n)),),
}


_MOMENTA = [i / 100 for i in range(99, 0, -1)]


def growth(matrices: Sequence[Matrix], momentum: float) -> float | None:
    """The factor by which the workers' differences grow a step, in the long run.

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
    """The spectral radius of a product of one mode's 2 x 2 matrices, as a mean of its factors."""
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
