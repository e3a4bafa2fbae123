"""The rule SOAP: Adam in the eigenbases of Shampoo's factors for matrices, AdamW for the rest."""

import dataclasses
import math

from tf_lamb.core.rules.lamb import NO_BOUNDS, Bounds, adamw
from tf_lamb.core.rules.rule import Rule
from tf_lamb.core.rules.shared import (
    branch,
    debias,
    decayed,
    in_dtype,
    norm,
    precise_matmul,
    root,
    trust_ratio,
    with_norm_of,
)
from tf_lamb.core.stacks import transposed


@dataclasses.dataclass(frozen=True)
class Form:
    """Selects how the bases are computed, and whether norms stay; `soap` has the equations.

    Attributes:
        one_sided: Whether only the shorter axis of a matrix, its rows or its columns, has a basis.
        renewal: The decomposition by which bases are renewed: "cholesky", or "qr", as for None.
        norm: "constant" if a matrix keeps its norm; None if steps change it.
        heads: "each" if each head of an attention's kernel is a matrix, which `core/layouts.py`
            reads and not the rule; None if all heads are one matrix.
    """

    one_sided: bool = False
    renewal: str | None = None
    norm: str | None = None
    heads: str | None = None


# Near 2^24 the counter of steps goes back by a multiple of the frequency: see `_next_step`.
HYPER = {
    "beta_1": float, "beta_2": float, "epsilon": float,
    "precondition_frequency": range(1, 2**23 + 1), "max_precond_dim": int, "form": Form,
    "bounds": Bounds,
}  # fmt: skip


def soap(
    xp, g, w, m, v, *state, lr, t, decay, adapt, axes=None, observe=None,
    beta_1=0.95, beta_2=0.95, epsilon=1e-8, precondition_frequency=10, max_precond_dim=10_000,
    form=Form(), bounds=NO_BOUNDS, product_dtype=None,
):  # fmt: skip
    """Takes one SOAP step.

    A matrix (`adapt`), with inputs as rows and outputs as columns, steps as follows, and so does
    each matrix of a stack, (matrices, rows, columns), whose state has that first axis, too, and
    whose norms run over `axes`:

        m  <- b1 m + (1 - b1) g
        v  <- b2 v + (1 - b2) (QL' g QR)^2
        u   = QL ((QL' m QR) / (sqrt(v) + eps)) QR'
        w  <- w - lr sqrt(1 - b2^s)/(1 - b1^s) u
        w  <- w - lr decay w
        L  <- b2 L + (1 - b2) g g'
        R  <- b2 R + (1 - b2) g' g

    where s counts the steps of this matrix, from 0, and ' is the transpose. L and R are Shampoo's
    factors of the rows and of the columns, and QL and QR hold their eigenvectors. In every f-th
    step QL and QR are renewed, see `renew_bases`. In step 0 w, m and v stay as they are: L and R
    take in their first gradient, and QL and QR become their eigenvectors. Any other variable takes
    a step of AdamW.

    If `bounds` are given, the step that lr multiplies, sqrt(1 - b2^s)/(1 - b1^s) u, is multiplied
    by its trust ratio, within the bounds. If `form.norm` is "constant", w is then scaled to the
    norm it had before the step.

    Args:
        xp: The array namespace.
        g, w: The gradient and the weight, of one shape.
        m, v: The moments, shaped as the weight; zeros at first.
        *state: For a matrix L, QL, R and QR, or only the pairs of the axes that have a basis; then
            the number of failed renewals, which left the bases as they were; then s. Zeros at
            first. Empty for any other variable.
        lr: The learning rate, a scalar.
        t: The number of the step, from 1, for variables that are no matrix. A matrix counts its own
            steps s: if it has a gradient in every other step only, t might never be a multiple of f
            in these.
        decay: The weight decay: a float, or an array.
        adapt: Whether the variable is a matrix.
        axes: The axes over which a norm runs, for a norm of each row, of each column or of each
            matrix of a stack; None is all.
        observe: None, or a function that `trust_ratio` calls.
        beta_1, beta_2, epsilon: b1, b2 and eps.
        precondition_frequency: f, in steps.
        max_precond_dim: See `sides_of`.
        form: Which axes have a basis, how bases are renewed, and whether norms stay.
        bounds: The bounds of |w| in the trust ratio, and of the ratio, see `trust_ratio`.
        product_dtype: The dtype of the products, except those of a renewal; None is that of the
            arrays.

    Yields:
        Products and renewals, each as a function, its arrays and its settings; they are computed at
        once for matrices of one shape (`core/stacks.py`).

    Returns:
        The new w, m, v and state.

    Source: Vyas et al., arXiv:2409.11321, and the authors' code for the order of the parts. That
    code keeps m in the basis, which is the same, and its AdamW, unlike this one, skips the first
    step, too. The trust ratio is LAMB's (arXiv:1904.00962); the constant norm is from Wen et al.,
    Hyperball Optimization, 2025, who, unlike this rule, store the norm of the first weights.
    """
    if not adapt:
        return adamw(
            xp, g, w, m, v, lr=lr, t=t, decay=decay, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon
        )
    *pairs, n_failed, s = state
    factors, bases = pairs[::2], pairs[1::2]
    sides = sides_of(w.shape[-2:], max_precond_dim, form.one_sided)
    settings = {"sides": tuple(sides)}
    product_settings = settings | {"product_dtype": product_dtype}

    is_first = xp.equal(s, 0)
    is_first_wide = _broadcast_to_matrices(xp, is_first)
    n = _broadcast_to_matrices(xp, xp.where(is_first, xp.ones_like(s), s))
    c = debias(xp, beta_2, n) ** 0.5 / debias(xp, beta_1, n)
    new_m = xp.where(is_first_wide, m, beta_1 * m + (1 - beta_1) * g)
    g_inside, m_inside, *squares = yield products, (g, new_m, *bases), product_settings
    new_v = xp.where(is_first_wide, v, beta_2 * v + (1 - beta_2) * xp.square(g_inside))
    u_inside = m_inside / (root(xp, new_v) + epsilon)
    (u,) = yield out_of_bases, (u_inside, *bases), product_settings
    rate = lr * c
    if bounds.are_set:
        rate = rate * trust_ratio(
            xp, w, c * u, adapt=True, axes=axes, bounds=bounds, observe=observe
        )
    new_w = w - rate * u
    new_w = decayed(new_w, decay, -lr * new_w)
    if form.norm == "constant":
        new_w = with_norm_of(xp, new_w, w, axes)
    new_w = xp.where(is_first_wide, w, new_w)

    factors = [
        beta_2 * factor + (1 - beta_2) * square
        for factor, square in zip(factors, squares, strict=True)
    ]
    phase = _phase(w.shape[-2:]) if form.renewal == "cholesky" else 0
    is_due = xp.equal((s + phase) % precondition_frequency, 0) & xp.logical_not(is_first)
    new_v, new_n_failed, *bases = yield (
        renew_bases,
        (new_v, n_failed, is_first, is_due, *factors, *bases),
        settings | {"renewal": form.renewal},
    )
    start_failed = is_first & (new_n_failed > n_failed)
    pairs = [array for pair in zip(factors, bases, strict=True) for array in pair]
    new_s = xp.where(start_failed, s, _next_step(xp, s, precondition_frequency))
    return new_w, new_m, new_v, *pairs, new_n_failed, new_s


def _broadcast_to_matrices(xp, x):
    """Reshapes one number, or one for each matrix of a stack, to broadcast with the matrices."""
    return xp.reshape(x, (*x.shape, 1, 1))


def _next_step(xp, s, f):
    """Returns s + 1; shortly before 2^24, where float32 stops counting, about 2^23 less than that.

    The difference is a multiple of f, so that renewals keep their rhythm, and 1 - b^s is 1 for such
    s.

    Args:
        xp: The array namespace.
        s: The number of the step.
        f: The steps between two renewals.
    """
    period = float(f * max(1, 2**23 // f))
    return xp.where(s + 1 >= 2.0**24 - 1024, s + 1 - period, s + 1)


def sides_of(shape, max_precond_dim, one_sided):
    """Returns the axes of a matrix that have a factor; 0 is its rows, 1 its columns.

    Args:
        shape: The shape of the matrix.
        max_precond_dim: The largest length of an axis that has a factor.
        one_sided: Whether the shorter axis alone may have one.
    """
    if one_sided:
        shorter = int(shape[1] < shape[0])
        return [shorter] if shape[shorter] <= max_precond_dim else []
    return [axis for axis in (0, 1) if shape[axis] <= max_precond_dim]


def _phase(shape):
    """Returns by how many steps the renewals of matrices of this shape come earlier.

    So the matrices of all shapes are not renewed in one step, which would be slow. Lengths of an
    axis that differ by a factor of the root of 2 or more have different whole numbers here.
    """
    rows, columns = (round(2 * math.log2(n)) for n in shape)
    return rows + 3 * columns


# -- for a matrix, or for each matrix of a stack --------------------------------------------------


def products(xp, g, m, *bases, sides, product_dtype):
    """Computes QL' g QR and QL' m QR, then g g' and g' g.

    Args:
        xp: The array namespace.
        g, m: The gradient and the momentum.
        *bases: QL and QR, or the one basis that there is; then only g g' or g' g of its axis is
            computed.
        sides: The axes that have a basis, from `sides_of`.
        product_dtype: The dtype of the products; None is that of the arrays.

    Returns:
        A list of the products, in the dtype of g.
    """
    dtype = g.dtype
    g, m, *bases = in_dtype(xp, product_dtype, g, m, *bases)
    g_transposed = transposed(xp, g)
    squares = [g @ g_transposed if side == 0 else g_transposed @ g for side in sides]
    results = _into_bases(xp, g, bases, sides), _into_bases(xp, m, bases, sides), *squares
    return in_dtype(xp, dtype, *results)


def _into_bases(xp, x, bases, sides):
    """Returns QL' x QR, or the product with the one basis that there is."""
    for side, basis in zip(sides, bases, strict=True):
        x = transposed(xp, basis) @ x if side == 0 else x @ basis
    return x


def out_of_bases(xp, x, *bases, sides, product_dtype):
    """Computes QL x QR', or the product with the one basis that there is.

    Args:
        xp: The array namespace.
        x: A matrix in the bases.
        *bases: QL and QR, or the one basis that there is.
        sides: The axes that have a basis, from `sides_of`.
        product_dtype: The dtype of the products; None is that of the arrays.

    Returns:
        A list with the one product, in the dtype of x.
    """
    dtype = x.dtype
    x, *bases = in_dtype(xp, product_dtype, x, *bases)
    for side, basis in zip(sides, bases, strict=True):
        x = basis @ x if side == 0 else x @ transposed(xp, basis)
    return in_dtype(xp, dtype, x)


def renew_bases(xp, v, n_failed, is_first, is_due, *state, sides, renewal):
    """Renews the bases where that is due. For L, and for R likewise:

        order QL's columns, and v's rows with them, by diag(QL' L QL), the largest first
        QL <- the Q of the QR decomposition of L QL

    That is one power iteration. In the first step of a matrix, QL becomes the eigenvectors of L
    instead, the largest eigenvalue first. If a new basis of a matrix is not finite and orthogonal,
    v and both bases stay as they were, and the renewal counts as failed.

    Args:
        xp: The array namespace.
        v: The second moment, in the bases.
        n_failed: The number of failed renewals so far.
        is_first: Whether this is the first step of the matrix.
        is_due: Whether the bases are to be renewed.
        *state: The factors, then their bases.
        sides: The axes that have a basis, from `sides_of`.
        renewal: "cholesky", or else QR.

    Returns:
        A list of v, the count and the bases.
    """
    factors, bases = state[: len(sides)], state[len(sides) :]
    current = [v, n_failed, *bases]

    def compute_first_bases():
        # TensorFlow raises for a decomposition of a matrix that is not finite.
        finite_factors = [
            xp.where(xp.isfinite(matrix), matrix, xp.zeros_like(matrix)) for matrix in factors
        ]
        new_bases = [xp.linalg.eigh(-matrix)[1] for matrix in finite_factors]
        return _accept_if_valid(xp, is_first, [v, *new_bases], *current)

    def compute_next_bases():
        ordered_v, new_bases = v, []
        for side, factor, basis in zip(sides, factors, bases, strict=True):
            image = factor @ basis
            column_order = xp.argsort(-xp.sum(basis * image, axis=-2))
            column_indices = xp.expand_dims(column_order, -2)
            row_indices = xp.expand_dims(column_order, -1)
            ordered_v = xp.take_along_axis(
                ordered_v, *((row_indices, -2) if side == 0 else (column_indices, -1))
            )
            if renewal == "cholesky":
                mean = _mean_eigenvalue(xp, factor)
                image = image / xp.where(mean > 0, mean, 1.0) + 1e-4 * basis
            new_bases.append(
                _orthonormal(xp, xp.take_along_axis(image, column_indices, -1), renewal)
            )
        return _accept_if_valid(xp, is_due, [ordered_v, *new_bases], *current)

    v, n_failed, *bases = current = branch(
        xp, xp.any(is_first), compute_first_bases, lambda: current
    )
    return branch(xp, xp.any(is_due), compute_next_bases, lambda: current)


def _mean_eigenvalue(xp, factor):
    """Returns the mean of the diagonal; its two axes stay, with length 1."""
    n = factor.shape[-1]
    return xp.sum(factor * xp.eye(n, dtype=factor.dtype), axis=(-2, -1), keepdims=True) / n


def _orthonormal(xp, a, renewal):
    """Returns an orthonormal basis of the first i columns of a, for every i.

    The method "cholesky" is shifted Cholesky QR in four passes, on columns of length 1:

        A <- A C'^-1,    C C' = A'A, in the first pass A'A + 3e-7 n, in the second A'A + 1e-5

    C is a Cholesky factor, n the number of columns, and a number is added to the diagonal. It takes
    only products and triangular solves, whereas Householder's decomposition works on one column
    after the other.

    Source: Fukaya et al., arXiv:1809.11085.
    """
    if renewal != "cholesky":
        if len(a.shape) == 2:
            return xp.linalg.qr(a)[0]
        return xp.stack([_orthonormal(xp, a[i], renewal) for i in range(a.shape[0])])
    a = a / norm(xp, a, axes=(-2,))
    for shift in (3e-7 * a.shape[-1], 1e-5, 0.0, 0.0):
        gram = precise_matmul(xp, transposed(xp, a), a) + shift * xp.eye(a.shape[-1], dtype=a.dtype)
        c = xp.linalg.cholesky(gram)
        solution = xp.linalg.solve_triangular(c, transposed(xp, a), lower=True)
        a = transposed(xp, solution)
    return a


def _accept_if_valid(xp, is_due, new, old_v, n_failed, *old_bases):
    """Returns v, the count of failed renewals, and the bases: new where due and valid, else old.

    A basis is valid if its columns are orthonormal. The count grows by 1 where new bases are due
    and one of them is not valid. A decomposition leaves the sign of each column open; the sign is
    chosen here so that the sum of the column is not negative.

    Args:
        xp: The array namespace.
        is_due: Whether new bases are due, for each matrix.
        new: The new v and the new bases.
        old_v: The old v.
        n_failed: The count of failed renewals so far.
        *old_bases: The old bases.
    """
    v, *bases = new
    is_valid = is_due
    for basis in bases:
        deviation = precise_matmul(xp, transposed(xp, basis), basis) - xp.eye(
            basis.shape[-1], dtype=basis.dtype
        )
        # Elements are compared one by one: JAX's maximum of many on a CPU (0.10.2) forgets a NaN.
        is_valid = is_valid & xp.all(xp.abs(deviation) < 1e-4, axis=(-2, -1))

    is_accepted = _broadcast_to_matrices(xp, is_valid)
    results = [
        xp.where(is_accepted, v, old_v),
        xp.where(is_due & xp.logical_not(is_valid), n_failed + 1, n_failed),
    ]
    for basis, old_basis in zip(bases, old_bases, strict=True):
        column_sums = xp.sum(basis, axis=-2, keepdims=True)
        ones = xp.ones_like(column_sums)
        column_signs = xp.where(column_sums < 0, -ones, ones)
        results.append(xp.where(is_accepted, basis * column_signs, old_basis))
    return results


RULE = Rule(
    soap,
    ("m", "v"),
    HYPER,
    start_rate=0.003,
    transfer_exponent=0.75,
    takes_gain=False,
    gains_by_xla=False,
    ratio_needs_bounds=True,
)
