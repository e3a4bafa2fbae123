"""The rule SOAP: Adam in the eigenbases of Shampoo's preconditioners; AdamW for non-matrices."""

import dataclasses
import math

from tf_lamb.core.rules.lamb import NO_BOUNDS, Bounds, adamw
from tf_lamb.core.rules.rule import Rule
from tf_lamb.core.rules.shared import (
    bias_divisor,
    branch,
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
class SOAPForm:
    """Selects how the bases are computed, and whether norms stay; `soap` has the equations.

    Attributes:
        one_sided: Whether only the shorter axis of a matrix, its rows or its columns, has a basis.
        renewal: The decomposition by which bases are renewed: "cholesky" or "qr". None is "qr".
        norm: "constant" if a matrix keeps its norm; None if steps change it.
        heads: "each" if each head of an attention kernel is a matrix of its own; None if all heads
            are one matrix. `core/layouts.py` reads this field; the function `soap` does not.
    """

    one_sided: bool = False
    renewal: str | None = None
    norm: str | None = None
    heads: str | None = None


# `precondition_frequency` is at most 2^23, because `_next_step` subtracts a multiple of it, about
# 2^23, from the counter of steps when the counter comes near 2^24.
HYPER = {
    "beta_1": float, "beta_2": float, "epsilon": float,
    "precondition_frequency": range(1, 2**23 + 1), "max_precond_dim": int, "form": SOAPForm,
    "bounds": Bounds,
}  # fmt: skip


def soap(
    xp, g, w, m, v, *state, lr, t, decay, adapt, axes=None, observe=None,
    beta_1=0.95, beta_2=0.95, epsilon=1e-8, precondition_frequency=10, max_precond_dim=10_000,
    form=SOAPForm(), bounds=NO_BOUNDS, product_dtype=None,
):  # fmt: skip
    """Takes one SOAP step.

    If `adapt` is True, w is a matrix, with the inputs of its layer as rows and the outputs as
    columns, or a stack of shape (matrices, rows, columns), and then each array of `state` has this
    first axis, too. The step of each matrix is:

        m  <- b1 m + (1 - b1) g
        v  <- b2 v + (1 - b2) (QL' g QR)^2
        u   = QL ((QL' m QR) / (sqrt(v) + eps)) QR'
        w  <- w - lr sqrt(1 - b2^s)/(1 - b1^s) u
        w  <- w - lr decay w
        L  <- b2 L + (1 - b2) g g'
        R  <- b2 R + (1 - b2) g' g

    where s counts the steps of this matrix, from 0, and ' is the transpose. L and R are Shampoo's
    preconditioners of the rows and of the columns, called factors here. QL and QR hold their
    eigenvectors. In every f-th step QL and QR are renewed, see `renew_bases`. Step 0 leaves w, m
    and v as they are. It only adds the first gradient to L and R and sets QL and QR to their
    eigenvectors. If `adapt` is False, the variable takes a step of AdamW instead.

    If `bounds` are given, the vector that lr multiplies, sqrt(1 - b2^s)/(1 - b1^s) u, is multiplied
    by its trust ratio, which is clipped to the bounds. If `form.norm` is "constant", the new w is
    scaled to the norm of the old one.

    Args:
        xp: An array namespace such as NumPy.
        g, w: The gradient and the weight, of one shape.
        m, v: The first and second moment, shaped as the weight; zeros before the first step.
        *state: For a matrix L, QL, R and QR, without the pair of an axis that has no basis; then
            the number of failed renewals, which left the bases as they were; then s. All
            are zeros before the first step. Empty if `adapt` is False.
        lr: The learning rate, a scalar.
        t: The number of the optimizer step, from 1, for variables that are no matrices. A matrix
            has its own counter s, because it may have a gradient only in some steps, such as the
            odd ones, of which none may be a multiple of f.
        decay: The weight decay: a Python float, or an array.
        adapt: Whether the variable is a matrix.
        axes: The axes over which the norms of the trust ratio and of a constant norm run, so that
            each row, each column or each matrix of a stack has a norm of its own; None is all.
        observe: None, or a function that `trust_ratio` calls with the norms and the ratio.
        beta_1, beta_2, epsilon: b1, b2 and eps.
        precondition_frequency: f, in steps.
        max_precond_dim: The largest length of an axis that has a basis.
        form: Which axes have a basis, how bases are renewed, and whether norms stay.
        bounds: The bounds of |w| in the trust ratio, and of the ratio, see `trust_ratio`.
        product_dtype: The dtype of the products, except those of a renewal; None is that of the
            arrays.

    Yields:
        The functions for products and renewals, each with its arrays and its settings. The caller
        sends back the result, which it may compute for several matrices of one shape at once
        (`core/stacks.py`).

    Returns:
        The new w, m, v and state.

    Source: Vyas et al., arXiv:2409.11321; the order of the equations is that of the authors' code.
    Their code stores m in the basis, which is equivalent. Unlike this rule, it also skips the first
    step of AdamW. The trust ratio is that of LAMB (arXiv:1904.00962). The constant norm is from Wen
    et al., Hyperball Optimization, 2025, who, unlike this rule, always scale to the norm of the
    initial weights.
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
    c = bias_divisor(xp, beta_2, n) ** 0.5 / bias_divisor(xp, beta_1, n)
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
        (g, new_v, n_failed, is_first, is_due, *factors, *bases),
        settings | {"renewal": form.renewal},
    )
    start_failed = is_first & (new_n_failed > n_failed)
    pairs = [array for pair in zip(factors, bases, strict=True) for array in pair]
    new_s = xp.where(start_failed, s, _next_step(xp, s, precondition_frequency))
    return new_w, new_m, new_v, *pairs, new_n_failed, new_s


def _broadcast_to_matrices(xp, x):
    """Adds two axes of length 1 to x, so that x can be multiplied with a matrix or a stack of them.

    x is one number, or has one number for each matrix of the stack.
    """
    return xp.reshape(x, (*x.shape, 1, 1))


def _next_step(xp, s, f):
    """Returns s + 1 or, shortly before 2^24, a number that is smaller by about 2^23.

    From 2^24 on, float32 does not hold every integer. The number that is subtracted is a multiple
    of f, so that renewals stay f steps apart. Bias correction does not change, because 1 - b^s is 1
    for such large s.

    Args:
        xp: An array namespace such as NumPy.
        s: The number of the step.
        f: The steps between two renewals.
    """
    period = float(f * max(1, 2**23 // f))
    return xp.where(s + 1 >= 2.0**24 - 1024, s + 1 - period, s + 1)


def sides_of(shape, max_precond_dim, one_sided):
    """Returns the axes of a matrix that have a preconditioner and its basis; 0 is rows, 1 columns.

    Args:
        shape: The shape of the matrix, (rows, columns).
        max_precond_dim: The largest length of an axis that has a preconditioner.
        one_sided: Whether only the shorter axis may have one.
    """
    if one_sided:
        shorter = int(shape[1] < shape[0])
        return [shorter] if shape[shorter] <= max_precond_dim else []
    return [axis for axis in (0, 1) if shape[axis] <= max_precond_dim]


def _phase(shape):
    """Returns a number of steps by which the renewals of matrices of this shape come earlier.

    The number depends on the shape, so that not all matrices of a model are renewed in the same
    step, which would be slow. It differs between most shapes: rounding 2 log2(n) gives different
    numbers to lengths n that differ by a factor of at least sqrt(2).

    Args:
        shape: The shape of the matrix, (rows, columns).
    """
    rows, columns = (round(2 * math.log2(n)) for n in shape)
    return rows + 3 * columns


# -- functions of one matrix, or of each matrix of a stack -----------------------------------------


def products(xp, g, m, *bases, sides, product_dtype):
    """Computes QL' g QR and QL' m QR, then g g' and g' g.

    QL and QR are the bases of the rows and of the columns, and ' is the transpose.

    Args:
        xp: An array namespace such as NumPy.
        g, m: The gradient and the momentum.
        *bases: QL and QR, or one of them if only one axis has a basis. Only that axis's product,
            g g' for rows or g' g for columns, is then computed.
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
    """Returns QL' x QR, where QL and QR are the bases of rows and columns; ' is the transpose.

    If only one axis of the matrix x has a basis, the result is QL' x or x QR.
    """
    for side, basis in zip(sides, bases, strict=True):
        x = transposed(xp, basis) @ x if side == 0 else x @ basis
    return x


def out_of_bases(xp, x, *bases, sides, product_dtype):
    """Computes QL x QR', where QL and QR are the bases of rows and columns; ' is the transpose.

    If only one axis of the matrix has a basis, the result is QL x or x QR'.

    Args:
        xp: An array namespace such as NumPy.
        x: A matrix in the coordinates of the bases.
        *bases: QL and QR, or one of them.
        sides: The axes that have a basis, from `sides_of`.
        product_dtype: The dtype of the products; None is that of the arrays.

    Returns:
        A list with one array, the product, in the dtype of x.
    """
    dtype = x.dtype
    x, *bases = in_dtype(xp, product_dtype, x, *bases)
    for side, basis in zip(sides, bases, strict=True):
        x = basis @ x if side == 0 else x @ transposed(xp, basis)
    return in_dtype(xp, dtype, x)


def renew_bases(xp, g, v, n_failed, is_first, is_due, *state, sides, renewal):
    """Renews the bases of the matrices for which this is due.

    L and R are Shampoo's preconditioners of the rows and of the columns of a matrix, called factors
    here. QL and QR are their bases. For L, and in the same way for R:

        order QL's columns, and v's rows with them, by diag(QL' L QL), the largest first
        QL <- the Q of the QR decomposition of L QL

    This is one power iteration. In the first step of a matrix, QL is set to the eigenvectors of L
    instead, the largest eigenvalue first; see `_first_bases`. If a new basis of a matrix is not
    finite and orthogonal, v and both bases stay as they were, and the renewal counts as failed.

    Args:
        xp: An array namespace such as NumPy.
        g: The gradient, which is read in the first step.
        v: The second moment, in the coordinates of the bases.
        n_failed: The number of failed renewals so far.
        is_first: Whether this is the first step of the matrix.
        is_due: Whether the bases are to be renewed.
        *state: The factors L and R, then their bases QL and QR.
        sides: The axes that have a basis, from `sides_of`.
        renewal: The decomposition: "cholesky" for `_orthonormal`'s Cholesky QR, anything else for
            the usual QR.

    Returns:
        A list: v, the number of failed renewals, and the bases.
    """
    factors, bases = state[: len(sides)], state[len(sides) :]
    current = [v, n_failed, *bases]

    def compute_first_bases():
        new_bases = _first_bases(xp, g, factors, sides, renewal)
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


def _first_bases(xp, g, factors, sides, renewal):
    """Returns eigenvectors of the factors of a first gradient, the largest eigenvalue first.

    If both axes have a basis, only the factor of the shorter axis is decomposed, which is faster.
    The gradient maps its eigenvectors to those of the other factor: if g'g q = x q, then
    gg'(g q) = x (g q). A QR decomposition scales them to norm 1, and adds the eigenvectors of the
    eigenvalue 0. With renewal="cholesky", the default on accelerators, both factors are decomposed,
    because QR decompositions take long to compile on a TPU.

    Args:
        xp: An array namespace such as NumPy.
        g: The first gradient of the matrix.
        factors: The factors L and R, which are multiples of gg' and g'g; or one of them.
        sides: The axes that have a factor.
        renewal: The decomposition of renewals, "cholesky" or "qr".
    """
    # TensorFlow raises an error for a decomposition of a matrix that is not finite.
    g, *factors = [xp.where(xp.isfinite(x), x, xp.zeros_like(x)) for x in (g, *factors)]
    if len(sides) < 2 or renewal == "cholesky":
        return [xp.linalg.eigh(-factor)[1] for factor in factors]
    rows, columns = g.shape[-2:]
    if rows <= columns:
        row_basis = xp.linalg.eigh(-factors[0])[1]
        return [row_basis, _complete_q(xp, precise_matmul(xp, transposed(xp, g), row_basis))]
    column_basis = xp.linalg.eigh(-factors[1])[1]
    return [_complete_q(xp, precise_matmul(xp, g, column_basis)), column_basis]


def _complete_q(xp, a):
    """Returns the square Q of the QR decomposition of a, by Householder's reflections.

    Args:
        xp: An array namespace such as NumPy.
        a: A matrix with as many columns as rows, or fewer; or a stack of such matrices.
    """
    if len(a.shape) == 2:
        return xp.linalg.qr(a, mode="complete")[0]
    return xp.stack([_complete_q(xp, a[i]) for i in range(a.shape[0])])


def _mean_eigenvalue(xp, factor):
    """Returns the mean eigenvalue of a matrix, the mean of its diagonal, as a 1 x 1 matrix."""
    n = factor.shape[-1]
    return xp.sum(factor * xp.eye(n, dtype=factor.dtype), axis=(-2, -1), keepdims=True) / n


def _orthonormal(xp, a, renewal):
    """Returns the Q of a QR decomposition of a.

    The columns of Q are orthonormal. For every i, the first i of them span the same space as the
    first i columns of a.

    With renewal="cholesky", the method is shifted Cholesky QR in four passes. Each column is scaled
    to norm 1 first. A pass is

        A <- A C'^-1,    where C C' = A'A + shift I is a Cholesky decomposition

    The shift is 3e-7 times the number of columns in the first pass, 1e-5 in the second, then 0. The
    passes consist of products and triangular solves, which are faster than the usual Householder
    QR, because that works on one column after the other.

    Args:
        xp: An array namespace such as NumPy.
        a: A matrix, or a stack of matrices.
        renewal: "cholesky", or anything else for the usual QR.

    Source: Fukaya et al., arXiv:1809.11085.
    """
    if renewal != "cholesky":
        return _complete_q(xp, a)
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
    and one of them is not valid. Decompositions do not determine the sign of a column; here it is
    chosen so that the sum of the column is not negative.

    Args:
        xp: An array namespace such as NumPy.
        is_due: Whether new bases are due, for each matrix.
        new: The new v, which is the second moment, and the new bases.
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
        # Each element is compared by itself, because the maximum of an array ignores a NaN in JAX
        # 0.10.2 on a CPU.
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
    stacks_if_adapt=(False,),
    ratio_needs_bounds=True,
)
