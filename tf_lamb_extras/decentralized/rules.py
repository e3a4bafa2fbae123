"""Defines the update rules of decentralized training, its topologies, and their convergence.

Each worker averages with its neighbours instead of with everyone. A rule reads the other workers
only through `mix`. For an array x of which every worker j has its own x_j, `mix` gives worker i the
weighted mean sum_j w_ij x_j. Nothing else communicates.

The velocity includes the learning rate, as that of `keras.optimizers.SGD` does: it is the papers' m
times lr. At a constant rate both forms are the same. After a change of the rate, this form is the
papers' with m multiplied by the old rate over the new one. DecentLaM's velocity contains
differences between the workers, and these stay as they were. If `mix` is the mean of all workers,
the mean of their weights moves as with SGD, for every schedule.

Every mixing matrix W = (w_ij) here is doubly stochastic. Its rows sum to 1, so that mixing does not
change equal workers. Its columns sum to 1, so that mixing does not change the mean of all workers.
The topologies, with the weights w_ij of worker i and the workers j that have them:

    ring                    1/3: itself and both neighbours
    one_sided_ring          1/2: itself and the next worker
    exponential             equal: itself and the workers i + 1, i + 2, i + 4, ...
    symmetric_exponential   equal: itself and the workers i + 1, i - 1, i + 4, i - 4, i + 16, ...
    one_peer_exponential    1/2: itself and, in turn, worker i + 1, i + 2, i + 4, ...
    grid                    Metropolis weights: itself and its neighbours in a rectangle that is as
                            square as possible
    full                    1/n: all n workers

DecentLaM's momentum b also acts on the differences between workers. Without gradients, a step is

    x <- W x - b v        v <- (I - W) x + b v

for the weights x and velocities v of all workers. For each eigenvector of W this is a
multiplication by a 2 x 2 matrix (`_radius`). If the eigenvalue is real, as for every symmetric W,
differences shrink for every b < 1. If it is complex, or if matrices take turns, they may grow: at
b = 0.9 they grow for `one_sided_ring` from three workers on, and for `exponential` and
`one_peer_exponential` from four on. With the other methods differences shrink for every W with
which mixing alone makes workers equal (`averages`). Two workers who only swap their weights never
become equal.
"""

import cmath
import dataclasses
import math
from collections.abc import Callable, Sequence

from tf_lamb.core.rules.shared import decayed


def dsgd(xp, g, w, *, lr, decay=0.0, mix):
    """Takes one step of decentralized SGD.

        w <- mix(w - lr (g + decay w))

    Args:
        xp: A namespace of array functions.
        g: The gradient of this worker.
        w: The weight of this worker, of the shape of g.
        lr: The learning rate, a scalar.
        decay: The weight decay, a Python float. Defaults to 0.
        mix: A function from an array to the weighted mean of it over the neighbourhood.

    Returns:
        The new w, in a tuple.

    Source: Yuan et al., arXiv:2104.11981; adapt-then-combine.
    """
    return (mix(w - lr * decayed(g, decay, w)),)


def dmsgd(xp, g, w, v, *, lr, decay=0.0, momentum=0.9, mix, order="adapt_then_combine"):
    """Takes one step of decentralized momentum SGD.

        v <- b v + lr (g + decay w)
        w <- mix(w - v)                 adapt, then combine (ATC)
        w <- mix(w) - v                 adapt with combine (AWC): `mix` need not wait for g

    Args:
        xp: A namespace of array functions.
        g: The gradient of this worker.
        w: The weight of this worker, of the shape of g.
        v: The velocity of this worker, of the shape of g.
        lr: The learning rate, a scalar.
        decay: The weight decay, a Python float. Defaults to 0.
        momentum: b. Defaults to 0.9.
        mix: A function from an array to the weighted mean of it over the neighbourhood.
        order: "adapt_then_combine", the default, or "adapt_with_combine".

    Returns:
        The new w and v.

    Source: Yuan et al., arXiv:2104.11981; the names of the orders are BlueFog's.
    """
    v = momentum * v + lr * decayed(g, decay, w)
    w = mix(w - v) if order == "adapt_then_combine" else mix(w) - v
    return w, v


def decentlam(xp, g, w, v, *, lr, decay=0.0, momentum=0.9, mix):
    """Takes one step of DecentLaM, whose velocity accumulates the steps that DSGD would take.

        s  = w - mix(w - lr (g + decay w))
        v <- b v + s
        w <- w - v

    Its fixed point is that of DSGD for every b, while `dmsgd` has the fixed point of DSGD at
    lr/(1 - b). If lr is 0, neither w nor v changes.

    Args:
        xp: A namespace of array functions.
        g: The gradient of this worker.
        w: The weight of this worker, of the shape of g.
        v: The velocity of this worker, of the shape of g.
        lr: The learning rate, a scalar.
        decay: The weight decay, a Python float. Defaults to 0.
        momentum: b. Defaults to 0.9.
        mix: A function from an array to the weighted mean of it over the neighbourhood.

    Returns:
        The new w and v.

    Source: Yuan et al., arXiv:2104.11981. It uses s/lr as the gradient, which is undefined at
    lr = 0.
    """
    s = w - mix(w - lr * decayed(g, decay, w))
    new_v = momentum * v + s
    return xp.where(lr > 0, w - new_v, w), xp.where(lr > 0, new_v, v)


# A mixing matrix by rows: row i has the weights with which worker i averages.
Matrix = tuple[tuple[float, ...], ...]


@dataclasses.dataclass(frozen=True)
class Term:
    """Holds one exchange of arrays between workers, a term of their weighted mean.

    Worker i adds weights[i] times the array that it receives.

    Attributes:
        pairs: The pairs (sender, receiver), as `jax.lax.ppermute` takes them.
        weights: The weight of each receiver; 0 for one that receives nothing.
    """

    pairs: tuple[tuple[int, int], ...]
    weights: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Mixing:
    """Holds the mixing matrix of one step as exchanges between workers.

    Attributes:
        own: The weight of each worker's own array.
        terms: The exchanges, one for each distance between sender and receiver.
    """

    own: tuple[float, ...]
    terms: tuple[Term, ...]

    @classmethod
    def of(cls, matrix: Matrix) -> "Mixing":
        """Converts a mixing matrix, with an exchange for each cyclic diagonal that is not 0."""
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
        """Whether mixing gives the mean of all workers, for which an all-reduce is used instead."""
        n = len(self.own)
        weights = [*self.own, *(w for term in self.terms for w in term.weights)]
        return len(self.terms) == n - 1 and all(math.isclose(w, 1 / n) for w in weights)


def matrices(topology: object, workers: int) -> tuple[Matrix, ...]:
    """Returns the mixing matrices that take turns, step after step.

    There is one, unless the topology is "one_peer_exponential".

    Args:
        topology: The name of a topology, or a doubly stochastic matrix as a sequence of rows.
        workers: The number of workers.

    Raises:
        ValueError: If the name is unknown, or the matrix has another size, is not doubly
            stochastic, has a negative weight, or does not connect all workers.
    """
    if isinstance(topology, str):
        if topology not in TOPOLOGIES:
            names = ", ".join(map(repr, TOPOLOGIES))
            raise ValueError(f"topology must be one of {names}, or a matrix, not {topology!r}.")
        return TOPOLOGIES[topology](workers)
    return (_given(topology, workers),)


def _given(topology, workers):
    """Checks the user's matrix, and returns it as a `Matrix`; raises ValueError for a bad one."""
    try:
        matrix = tuple(tuple(float(weight) for weight in row) for row in topology)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"topology must be a name such as 'ring' or a matrix of numbers, not {topology!r:.200}."
        ) from error
    lengths = sorted({len(matrix), *map(len, matrix)})
    if lengths != [workers]:
        raise ValueError(
            f"topology is a matrix for {' x '.join(map(str, lengths))} workers, but there are "
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
    """Raises ValueError if a weight is negative, or worker 0 does not reach every worker."""
    for i, row in enumerate(matrix):
        if min(row) < 0:
            raise ValueError(
                f"topology gives worker {i} the weight {min(row):g}. Use none below 0."
            )
    reached, pending = {0}, [0]
    while pending:
        sender = pending.pop()
        newly_reached = {i for i, row in enumerate(matrix) if row[sender]} - reached
        reached |= newly_reached
        pending += newly_reached
    if len(reached) < len(matrix):
        unreached = min(set(range(len(matrix))) - reached)
        raise ValueError(
            f"topology leaves worker {unreached} without a way from worker 0, so that they never "
            "agree. Give some worker on each side a weight above 0 for one on the other."
        )


def _uniform(workers: int, offsets: Sequence[int]) -> Matrix:
    """Returns a matrix by which each worker averages, with equal weights, with some others.

    Args:
        workers: The number of workers.
        offsets: The numbers of these others minus that of the worker, modulo `workers`.
    """
    hops = {0, *(offset % workers for offset in offsets)}
    return tuple(
        tuple(1 / len(hops) if (j - i) % workers in hops else 0.0 for j in range(workers))
        for i in range(workers)
    )


def _powers(base: int, below: int) -> list[int]:
    """Returns [1, base, base^2, ...] up to the last power below `below`; never less than [1]."""
    powers = [1]
    while powers[-1] * base < below:
        powers.append(powers[-1] * base)
    return powers


def _grid(workers: int) -> Matrix:
    """Returns the Metropolis weights of the most square grid of all workers.

    w_ij = 1/(1 + the larger number of neighbours of i and j) for neighbours; w_ii is the remainder.
    """
    columns = next(c for c in range(math.isqrt(workers), 0, -1) if workers % c == 0)
    position = [divmod(i, columns) for i in range(workers)]

    def are_neighbours(i, j):
        return abs(position[i][0] - position[j][0]) + abs(position[i][1] - position[j][1]) == 1

    neighbours = [[j for j in range(workers) if are_neighbours(i, j)] for i in range(workers)]
    matrix = [[0.0] * workers for _ in range(workers)]
    for i, adjacent in enumerate(neighbours):
        for j in adjacent:
            matrix[i][j] = 1 / (1 + max(len(adjacent), len(neighbours[j])))
        matrix[i][i] = 1 - sum(matrix[i])
    return tuple(map(tuple, matrix))


# For each name, a function from the number of workers to the matrices that take turns.
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


# The momenta that `largest_momentum` tries, in descending order.
_MOMENTA = [i / 100 for i in range(99, 0, -1)]


def averages(matrices: Sequence[Matrix]) -> bool:
    """Returns whether mixing alone makes all workers equal, in the long run.

    It does if, after enough turns of all matrices, the weights of each worker depend on those of
    every other. If (n - 1)^2 + 1 turns of n workers do not suffice, no number of turns does.

    Args:
        matrices: The mixing matrices, which take turns.
    """
    import numpy as np

    has_heard = np.eye(workers := len(matrices[0]), dtype=bool)  # [i, j]: worker i of worker j
    for matrix in matrices:
        has_heard = (np.array(matrix) > 0) @ has_heard
    for _ in range(2 * workers.bit_length()):
        has_heard = has_heard @ has_heard  # after twice as many turns
    return bool(has_heard.all())


def growth(matrices: Sequence[Matrix], momentum: float) -> float | None:
    """Returns the factor per step by which differences grow with DecentLaM, in the long run.

    Args:
        matrices: The mixing matrices, which take turns.
        momentum: The momentum of DecentLaM, in [0, 1).

    Returns:
        A number, below 1 if the differences vanish. None for matrices that are neither all
        circulant, nor a single symmetric one.
    """
    modes = _modes(matrices)
    return None if modes is None else _growth(modes, momentum)


def largest_momentum(matrices: Sequence[Matrix]) -> float:
    """Returns the largest multiple of 0.01 that, as momentum of DecentLaM, lets differences shrink.

    Returns 0 if there is none, or if `growth` is None for these matrices.
    """
    modes = _modes(matrices)
    return 0.0 if modes is None else next((b for b in _MOMENTA if _growth(modes, b) < 1), 0.0)


def _modes(matrices):
    """Returns the modes in which workers differ, as eigenvalues of the mixing matrices.

    A mode is an eigenvector that all matrices have in common, other than that of equal workers.
    Circulant matrices commute, so they have all eigenvectors in common.

    Returns:
        For each mode, its eigenvalue of every matrix; None for matrices that are neither all
        circulant, nor a single symmetric one.
    """
    if all(map(_is_circulant, matrices)):
        workers = len(matrices[0])
        return [tuple(_eigenvalue(matrix, k) for matrix in matrices) for k in range(1, workers)]
    if len(matrices) == 1 and _is_symmetric(matrices[0]):
        import numpy as np

        # The eigenvalues ascend; the last is 1, that of equal workers.
        return [(value,) for value in np.linalg.eigvalsh(matrices[0])[:-1].tolist()]
    return None


def _eigenvalue(matrix, k):
    """Returns the k-th eigenvalue of a circulant matrix."""
    angle = 2j * math.pi * k / len(matrix)
    return sum(weight * cmath.exp(angle * j) for j, weight in enumerate(matrix[0]) if weight)


def _growth(modes, b):
    """Returns the largest growth factor per step of all modes, at momentum b; see `_radius`."""
    return max((_radius(mode, b) for mode in modes), default=0.0)


def _radius(eigenvalues, b):
    """Returns the factor by which the differences of one mode grow per step, at momentum b.

    In a step with mixing eigenvalue w, a mode's weights and velocity are multiplied by the 2 x 2
    matrix ((w, -b), (1 - w, b)). The factor is the geometric mean over one turn of the matrices:
    the spectral radius of their product, to the power of 1/their number.

    Args:
        eigenvalues: The mode's eigenvalue of each mixing matrix.
        b: The momentum.
    """
    p, q, r, s = 1.0, 0.0, 0.0, 1.0
    for w in eigenvalues:
        p, q, r, s = w * p - b * r, w * q - b * s, (1 - w) * p + b * r, (1 - w) * q + b * s
    half = (p + s) / 2
    root = cmath.sqrt(half * half - (p * s - q * r))
    return max(abs(half + root), abs(half - root)) ** (1 / len(eigenvalues))


def _is_circulant(matrix):
    """Returns whether every row is the one before it, shifted by one."""
    return _is(matrix, lambda i, j: matrix[0][(j - i) % len(matrix)])


def _is_symmetric(matrix):
    """Returns whether the matrix equals its transpose, up to rounding."""
    return _is(matrix, lambda i, j: matrix[j][i])


def _is(matrix, expected):
    """Returns whether every weight equals `expected(i, j)`, up to rounding."""
    return all(
        math.isclose(weight, expected(i, j), abs_tol=1e-9)
        for i, row in enumerate(matrix) for j, weight in enumerate(row)
    )  # fmt: skip
