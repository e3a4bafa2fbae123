"""Who averages with whom, and with what weight: the mixing matrices of decentralized training.

Worker i replaces x_i by sum_j w_ij x_j. Every matrix W here is doubly stochastic: its rows sum to
1, so that workers who agree stay as they are, and so do its columns, so that mixing leaves the
mean of all workers alone.

    ring                    1/3: itself and both neighbours
    one_sided_ring          1/2: itself and the next
    exponential             1/(1 + hops): itself and those 1, 2, 4, ... further on
    symmetric_exponential   likewise, those 1, 4, 16, ... away on either side
    one_peer_exponential    1/2: itself and, in turn, the one 1, 2, 4, ... further on
    grid                    Metropolis weights: the neighbours in the most square rectangle
    full                    1/n: everyone
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

Matrix = tuple[tuple[float, ...], ...]


@dataclasses.dataclass(frozen=True)
class Term:
    """What one exchange adds to every worker: weights[i] times what worker i receives.

    Attributes:
        pairs: (sender, receiver), in which no worker sends twice or receives twice, as
            `jax.lax.ppermute` takes it.
        weights: by receiver; 0 for one who receives nothing.
    """

    pairs: tuple[tuple[int, int], ...]
    weights: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Mixing:
    """One step's mixing matrix, as what each worker keeps and the exchanges.

    Attributes:
        own: by worker, the weight of what it has itself.
        terms: the exchanges.
    """

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


def matrices(topology: object, workers: int, *, lazy: bool = False) -> tuple[Matrix, ...]:
    """The mixing matrices that take turns, step after step; one, unless the name says one_peer.

    Args:
        topology: a name of those above, or a doubly stochastic matrix as a sequence of rows.
        workers: n, how many there are.
        lazy: whether W is (I + W)/2 instead, which has no negative eigenvalue if W is symmetric.

    Raises:
        ValueError: for a name that is none of these, which it lists, and for a matrix of another
            number of workers or one that is not doubly stochastic.
    """
    if isinstance(topology, str):
        if topology not in TOPOLOGIES:
            known = ", ".join(map(repr, TOPOLOGIES))
            raise ValueError(f"topology must be one of {known}, or a matrix, not {topology!r}.")
        found = TOPOLOGIES[topology](workers)
    else:
        found = (_given(topology, workers),)
    return tuple(_lazy(matrix) for matrix in found) if lazy else found


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
    """No weight is negative, and what one worker knows comes to all."""
    for i, row in enumerate(matrix):
        if min(row) < 0:
            raise ValueError(
                f"topology gives worker {i} the weight {min(row):g}. Use none below 0."
            )
    reached, found = {0}, [0]
    while found:
        j = found.pop()
        new = {i for i, row in enumerate(matrix) if row[j]} - reached
        reached |= new
        found += new
    if len(reached) < len(matrix):
        lost = next(i for i in range(len(matrix)) if i not in reached)
        raise ValueError(
            f"topology leaves worker {lost} without a way from worker 0, so that they never agree."
        )


def _lazy(matrix):
    return tuple(
        tuple((weight + (i == j)) / 2 for j, weight in enumerate(row))
        for i, row in enumerate(matrix)
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
