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
`one_peer_exponential` from four on. So it takes one symmetric W alone. The other methods only ever
shrink differences.
"""

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


def dmsgd(xp, g, w, v, *, lr, decay=0.0, momentum=0.9, mix):
    """One step of decentralized momentum SGD.

        v <- b v + lr (g + decay w)
        w <- mix(w - v)

    Returns the new w and v; the arguments are those of `dsgd`, and b is the momentum.

    Source: Yuan et al., arXiv:2104.11981; adapt-then-combine.
    """
    v = momentum * v + lr * decayed(g, decay, w)
    return mix(w - v), v


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
    for i, row in enumerate(matrix):
        if min(row) < 0:
            raise ValueError(
                f"topology gives worker {i} the weight {min(row):g}. Use none below 0."
            )
    return matrix


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


def is_symmetric(matrices: Sequence[Matrix]) -> bool:
    """Whether it is one matrix, and equal to its transpose."""
    return len(matrices) == 1 and all(
        math.isclose(weight, matrices[0][j][i], abs_tol=1e-9)
        for i, row in enumerate(matrices[0])
        for j, weight in enumerate(row)
    )
