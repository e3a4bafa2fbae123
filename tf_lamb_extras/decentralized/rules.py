"""Defines the update rules of decentralized training, its topologies, and their convergence.

Each worker averages its weights with those of its neighbours, and not with those of all workers. A
rule reads the arrays of other workers only through the function `mix`. If every worker j has an
array x_j, `mix` returns the weighted mean sum_j w_ij x_j to worker i.

The velocity includes the learning rate, as that of `keras.optimizers.SGD` does: it is the momentum
buffer m of the papers, multiplied by lr. At a constant rate both forms give the same weights. A
change of the rate leaves the velocity as it is, which in the papers' form would multiply m by the
old rate over the new one. If `mix` is the mean of all workers, the mean of their weights moves as
with SGD, for every schedule of the rate.

Every mixing matrix W = (w_ij) here is doubly stochastic. Its rows sum to 1, so that mixing does not
change workers that are equal. Its columns sum to 1, so that mixing does not change the mean of all
workers. In this list of the topologies, each line has a weight w_ij, and the workers j that have
this weight in the mean of worker i:

    ring                    1/3: itself and both neighbours; 1/2 if there are two workers
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
the differences shrink for every b < 1. They may grow if the eigenvalue is complex, or if steps use
several matrices in turn. At b = 0.9 they grow for `one_sided_ring` with three workers or more, and
for `exponential` and `one_peer_exponential` with four or more. With the other update rules, the
differences shrink for every W for which mixing alone makes the workers equal in the long run
(`averages`). If two workers only swap their weights, for example, they never become equal.
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
        mix: A function that takes an array of this worker, and returns the weighted mean of it and
            the neighbours' arrays.

    Returns:
        The new w, in a tuple.

    Source: Yuan et al., arXiv:2104.11981; the form that they call adapt-then-combine.
    """
    return (mix(w - lr * decayed(g, decay, w)),)


def dmsgd(xp, g, w, v, *, lr, decay=0.0, momentum=0.9, mix, order="adapt_then_combine"):
    """Takes one step of decentralized momentum SGD.

        v <- b v + lr (g + decay w)
        w <- mix(w - v)                 adapt-then-combine
        w <- mix(w) - v                 adapt-with-combine: `mix` need not wait for g

    Args:
        xp: A namespace of array functions.
        g: The gradient of this worker.
        w: The weight of this worker, of the shape of g.
        v: The velocity of this worker, of the shape of g.
        lr: The learning rate, a scalar.
        decay: The weight decay, a Python float. Defaults to 0.
        momentum: b. Defaults to 0.9.
        mix: A function that takes an array of this worker, and returns the weighted mean of it and
            the neighbours' arrays.
        order: "adapt_then_combine", the default, or "adapt_with_combine".

    Returns:
        The new w and v.

    Source: Yuan et al., arXiv:2104.11981; the names of the orders are those of the library BlueFog.
    """
    v = momentum * v + lr * decayed(g, decay, w)
    w = mix(w - v) if order == "adapt_then_combine" else mix(w) - v
    return w, v


def decentlam(xp, g, w, v, *, lr, decay=0.0, momentum=0.9, mix):
    """Takes one step of DecentLaM, whose velocity accumulates the steps that DSGD would take.

        s  = w - mix(w - lr (g + decay w))
        v <- b v + s
        w <- w - v

    For every b, its fixed point is the same as that of decentralized SGD (DSGD) at the learning
    rate lr. The fixed point of `dmsgd` is that of DSGD at lr/(1 - b). If lr is 0, neither w nor v
    changes.

    Args:
        xp: A namespace of array functions.
        g: The gradient of this worker.
        w: The weight of this worker, of the shape of g.
        v: The velocity of this worker, of the shape of g.
        lr: The learning rate, a scalar.
        decay: The weight decay, a Python float. Defaults to 0.
        momentum: b. Defaults to 0.9.
        mix: A function that takes an array of this worker, and returns the weighted mean of it and
            the neighbours' arrays.

    Returns:
        The new w and v.

    Source: Yuan et al., arXiv:2104.11981. In place of s the paper has s/lr, as the gradient of
    momentum SGD, which is undefined at lr = 0.
    """
    s = w - mix(w - lr * decayed(g, decay, w))
    new_v = momentum * v + s
    return xp.where(lr > 0, w - new_v, w), xp.where(lr > 0, new_v, v)


# A mixing matrix, as a tuple of rows. Row i has the weights by which worker i averages the workers.
Matrix = tuple[tuple[float, ...], ...]


@dataclasses.dataclass(frozen=True)
class Term:
    """Holds one exchange of arrays between workers, which computes a term of their weighted means.

    Worker i multiplies the array that it receives by weights[i], and adds it to its mean.

    Attributes:
        pairs: The pairs (sender, receiver), as `jax.lax.ppermute` takes them.
        weights: The weight for each worker's received array; 0 for a worker that receives none.
    """

    pairs: tuple[tuple[int, int], ...]
    weights: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Mixing:
    """Holds the mixing matrix of one step as exchanges of arrays between workers.

    Attributes:
        own: For each worker, the weight of its own array in its mean.
        terms: The exchanges, one for each difference between the numbers of sender and receiver.
    """

    own: tuple[float, ...]
    terms: tuple[Term, ...]

    @classmethod
    def of(cls, matrix: Matrix) -> "Mixing":
        """Returns the exchanges for a mixing matrix.

        Each cyclic diagonal of the matrix, apart from the main one and those that are 0, becomes
        one exchange.
        """
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
        """Whether mixing gives the mean of all workers, so that an all-reduce can compute it."""
        n = len(self.own)
        weights = [*self.own, *(w for term in self.terms for w in term.weights)]
        return len(self.terms) == n - 1 and all(math.isclose(w, 1 / n) for w in weights)


def matrices(topology: object, workers: int) -> tuple[Matrix, ...]:
    """Returns the mixing matrices of a topology, of which each step uses the next one in turn.

    There is one matrix, unless the topology is "one_peer_exponential".

    Args:
        topology: The name of a topology, or a doubly stochastic matrix as a sequence of rows.
        workers: The number of workers.

    Raises:
        ValueError: If the name is unknown. Also if the matrix does not have a row and a column for
            each worker, is not doubly stochastic, has a negative weight, or does not connect all
            workers.
    """
    if isinstance(topology, str):
        if topology not in TOPOLOGIES:
            names = ", ".join(map(repr, TOPOLOGIES))
            raise ValueError(f"topology must be one of {names}, or a matrix, not {topology!r}.")
        return TOPOLOGIES[topology](workers)
    return (_parse_matrix(topology, workers),)


def _parse_matrix(topology, workers):
    """Checks a user's topology, a matrix of mixing weights, and returns it as a tuple of rows.

    Raises ValueError if it is not a doubly stochastic matrix with one row for each worker, if a
    weight is negative, or if some workers are not connected with the others.
    """
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
    """Raises ValueError if a weight is negative, or if a worker never depends on worker 0.

    A worker may depend on worker 0 through other workers.
    """
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
    """Returns a mixing matrix by which each worker averages itself and others with equal weights.

    Args:
        workers: The number of workers.
        offsets: Worker i averages with the workers i + offset, modulo `workers`, for each offset.
    """
    hops = {0, *(offset % workers for offset in offsets)}
    return tuple(
        tuple(1 / len(hops) if (j - i) % workers in hops else 0.0 for j in range(workers))
        for i in range(workers)
    )


def _powers(base: int, below: int) -> list[int]:
    """Returns the powers [1, base, base^2, ...] that are below `below`, and always the 1."""
    powers = [1]
    while powers[-1] * base < below:
        powers.append(powers[-1] * base)
    return powers


def _grid(workers: int) -> Matrix:
    """Returns the mixing matrix of the workers on a grid that is as square as possible.

    Its weights are Metropolis weights. If i and j are neighbours with n_i and n_j neighbours,
    w_ij = 1/(1 + max(n_i, n_j)). w_ii is chosen so that each row sums to 1.
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


# For each name of a topology, a function from the number of workers to the mixing matrices. If
# there are several, each step uses the next one in turn.
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

    It does if, after some number of turns of all matrices, the weights of each worker depend on
    those of every other worker. If they do not after (n - 1)^2 + 1 turns, where n is the number of
    workers, they never do.

    Args:
        matrices: The mixing matrices. One turn uses each of them once.
    """
    import numpy as np

    # has_heard[i, j]: whether the weights of worker i depend on those of worker j
    has_heard = np.eye(workers := len(matrices[0]), dtype=bool)
    for matrix in matrices:
        has_heard = (np.array(matrix) > 0) @ has_heard
    for _ in range(2 * workers.bit_length()):
        has_heard = has_heard @ has_heard  # the dependence after twice as many turns
    return bool(has_heard.all())


def growth(matrices: Sequence[Matrix], momentum: float) -> float | None:
    """Returns the factor by which DecentLaM makes differences between workers grow, in a step.

    It is the factor in the long run and without gradients.

    Args:
        matrices: The mixing matrices, of which each step uses the next one in turn.
        momentum: The momentum of DecentLaM, in [0, 1).

    Returns:
        The factor; below 1 if the differences vanish. None if it is unknown: it is known only if
        all matrices are circulant, or if there is a single matrix and it is symmetric.
    """
    modes = _modes(matrices)
    return None if modes is None else _growth(modes, momentum)


def largest_momentum(matrices: Sequence[Matrix]) -> float:
    """Returns the largest momentum with which DecentLaM makes differences between workers shrink.

    Only multiples of 0.01 from 0.01 to 0.99 are tried. The result is 0 if none of them does, or if
    `growth` returns None for these matrices.

    Args:
        matrices: The mixing matrices, of which each step uses the next one in turn.
    """
    modes = _modes(matrices)
    return 0.0 if modes is None else next((b for b in _MOMENTA if _growth(modes, b) < 1), 0.0)


def _modes(matrices):
    """Returns the eigenvalues of the mixing matrices for each mode in which workers differ.

    A mode is an eigenvector that all matrices have in common. The eigenvector of equal workers is
    left out. Circulant matrices commute, so they have all eigenvectors in common.

    Args:
        matrices: The mixing matrices.

    Returns:
        A list with a tuple for each mode, which has the eigenvalue of every matrix. None unless all
        matrices are circulant, or there is a single matrix and it is symmetric.
    """
    if all(map(_is_circulant, matrices)):
        workers = len(matrices[0])
        return [tuple(_eigenvalue(matrix, k) for matrix in matrices) for k in range(1, workers)]
    if len(matrices) == 1 and _is_symmetric(matrices[0]):
        import numpy as np

        # The eigenvalues are in ascending order. The last one, 1, is that of equal workers.
        return [(value,) for value in np.linalg.eigvalsh(matrices[0])[:-1].tolist()]
    return None


def _eigenvalue(matrix, k):
    """Returns the k-th eigenvalue of a circulant matrix, which follows from its first row."""
    angle = 2j * math.pi * k / len(matrix)
    return sum(weight * cmath.exp(angle * j) for j, weight in enumerate(matrix[0]) if weight)


def _growth(modes, b):
    """Returns the largest factor, over all modes, by which differences between workers grow a step.

    A mode is an eigenvector that the mixing matrices have in common, and stands for one pattern of
    differences between the workers' weights.

    Args:
        modes: For each mode, its eigenvalues: one of each mixing matrix, in the order of the steps.
        b: The momentum.
    """
    return max((_radius(mode, b) for mode in modes), default=0.0)


def _radius(eigenvalues, b):
    """Returns the factor by which the differences of one mode grow per step, at momentum b.

    A mode is an eigenvector of the mixing matrices. If its eigenvalue is w, a step multiplies the
    mode's weights and velocity by the 2 x 2 matrix ((w, -b), (1 - w, b)). If steps use n mixing
    matrices in turn, the factor is the spectral radius of the product of the n 2 x 2 matrices, to
    the power of 1/n.

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
    """Returns whether every row is the row before it, shifted cyclically by one, up to rounding."""
    return _is(matrix, lambda i, j: matrix[0][(j - i) % len(matrix)])


def _is_symmetric(matrix):
    """Returns whether the matrix equals its transpose, up to rounding."""
    return _is(matrix, lambda i, j: matrix[j][i])


def _is(matrix, expected):
    """Returns whether each weight w_ij of a matrix is `expected(i, j)`, up to rounding."""
    return all(
        math.isclose(weight, expected(i, j), abs_tol=1e-9)
        for i, row in enumerate(matrix) for j, weight in enumerate(row)
    )  # fmt: skip
