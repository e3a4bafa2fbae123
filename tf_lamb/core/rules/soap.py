"""SOAP: Adam in the eigenbasis of a matrix's two factors, and AdamW for all that is no matrix."""

import dataclasses
import math

from tf_lamb.core.rules.lamb import adamw
from tf_lamb.core.rules.rule import Rule
from tf_lamb.core.rules.shared import branch, debias, decayed, in_dtype, norm, precise, root
from tf_lamb.core.stacks import transposed


@dataclasses.dataclass(frozen=True)
class Form:
    """How bases come about, as `soap` documents it."""

    one_sided: bool = False
    renewal: str | None = None


HYPER = {
    "beta_1": float, "beta_2": float, "epsilon": float, "precondition_frequency": int,
    "max_precond_dim": int, "form": Form,
}  # fmt: skip


def soap(
    xp, g, w, m, v, *state, lr, t, decay, adapt, axes=None,
    beta_1=0.95, beta_2=0.95, epsilon=1e-8, precondition_frequency=10, max_precond_dim=10_000,
    form=Form(), product_dtype=None,
):  # fmt: skip
    """One SOAP step. Of a matrix (`adapt`), rows in and columns out:

        m  <- b1 m + (1 - b1) g
        v  <- b2 v + (1 - b2) (QL' g QR)^2
        u   = QL ((QL' m QR) / (sqrt(v) + eps)) QR'
        w  <- w - lr sqrt(1 - b2^s)/(1 - b1^s) u
        w  <- w - lr decay w
        L  <- b2 L + (1 - b2) g g'
        R  <- b2 R + (1 - b2) g' g

    in its own step s. In every f-th QL and QR are renewed, see `renewed`. In step 0 all else waits:
    L and R begin, and QL and QR are their eigenvectors. Of all that is no matrix, a step of AdamW.

    Args:
        state: of a matrix L, QL, R and QR, or those of one side; how many renewals left its bases
            as they were; and s. Zeros at first.
        t: of what is no matrix. A matrix that rests in every other step might never meet an f-th
            t, so it counts its own steps.
        precondition_frequency: f.
        max_precond_dim: see `sides_of`.
        form: whether the shorter side alone has a basis; and the `renewal`, "cholesky" or, as for
            None, "qr".
        product_dtype: of the products, but for a renewal's; None is that of the arrays.

    Yields:
        Products and renewals, which are worked out at once for matrices of one shape
        (`core/stacks.py`).

    Source: Vyas et al., arXiv:2409.11321, and the authors' code for what comes when; it keeps m in
    the basis, which is the same. There AdamW waits for a step, too.
    """
    if not adapt:
        return adamw(
            xp, g, w, m, v, lr=lr, t=t, decay=decay, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon
        )
    *pairs, kept, s = state
    factors, bases = pairs[::2], pairs[1::2]
    sides = sides_of(w.shape, max_precond_dim, form.one_sided)
    of = {"sides": tuple(sides)}
    multiplied = of | {"product_dtype": product_dtype}

    begins = xp.equal(s, 0)
    n = xp.where(begins, xp.ones_like(s), s)
    c = debias(xp, beta_2, n) ** 0.5 / debias(xp, beta_1, n)
    new_m = xp.where(begins, m, beta_1 * m + (1 - beta_1) * g)
    g_inside, m_inside, *squares = yield products, (g, new_m, *bases), multiplied
    new_v = xp.where(begins, v, beta_2 * v + (1 - beta_2) * xp.square(g_inside))
    inside = m_inside / (root(xp, new_v) + epsilon)
    (u,) = yield out_of_bases, (inside, *bases), multiplied
    new_w = w - lr * c * u
    new_w = xp.where(begins, w, decayed(new_w, decay, -lr * new_w))

    factors = [
        beta_2 * factor + (1 - beta_2) * square
        for factor, square in zip(factors, squares, strict=True)
    ]
    phase = _phase(w.shape) if form.renewal == "cholesky" else 0
    due = xp.equal((s + phase) % precondition_frequency, 0) & xp.logical_not(begins)
    new_v, new_kept, *bases = yield (
        renewed, (new_v, kept, begins, due, *factors, *bases), of | {"renewal": form.renewal}
    )  # fmt: skip
    stays = begins & (new_kept > kept)
    pairs = [each for pair in zip(factors, bases, strict=True) for each in pair]
    new_s = xp.where(stays, s, _after(xp, s, precondition_frequency))
    return new_w, new_m, new_v, *pairs, new_kept, new_s


def _after(xp, s, f):
    """The step after s. Before 2^24, where float32 counts no further, about 2^23 are taken off.

    They are a multiple of f, so renewals come when they would, and 1 - b^s is 1 there.
    """
    period = float(f * max(1, 2**23 // f))
    return xp.where(s + 1 >= 2.0**24 - 1024, s + 1 - period, s + 1)


def sides_of(shape, max_precond_dim, one_sided):
    """The axes of a matrix that have a factor: those of up to `max_precond_dim`; 0 is its rows.

    The shorter alone if `one_sided`.
    """
    if one_sided:
        shorter = int(shape[1] < shape[0])
        return [shorter] if shape[shorter] <= max_precond_dim else []
    return [axis for axis in (0, 1) if shape[axis] <= max_precond_dim]


def _phase(shape):
    """By how many steps a shape is renewed before others, so that no step pays for all.

    Sides that differ by the root of 2 or more have another whole number here.
    """
    rows, columns = (round(2 * math.log2(n)) for n in shape)
    return rows + 3 * columns


# -- of a matrix, or of each of a stack -----------------------------------------------------------


def products(xp, g, m, *bases, sides, product_dtype):
    """QL' g QR and QL' m QR, then g g' and g' g; or with the basis and the square of one side."""
    dtype = g.dtype
    g, m, *bases = in_dtype(xp, product_dtype, g, m, *bases)
    turned = transposed(xp, g)
    squares = [g @ turned if side == 0 else turned @ g for side in sides]
    made = _into_bases(xp, g, bases, sides), _into_bases(xp, m, bases, sides), *squares
    return in_dtype(xp, dtype, *made)


def _into_bases(xp, x, bases, sides):
    for side, basis in zip(sides, bases, strict=True):
        x = transposed(xp, basis) @ x if side == 0 else x @ basis
    return x


def out_of_bases(xp, x, *bases, sides, product_dtype):
    """QL x QR', or with the basis of one side."""
    dtype = x.dtype
    x, *bases = in_dtype(xp, product_dtype, x, *bases)
    for side, basis in zip(sides, bases, strict=True):
        x = basis @ x if side == 0 else x @ transposed(xp, basis)
    return in_dtype(xp, dtype, x)


def renewed(xp, v, kept, begins, due, *state, sides, renewal):
    """The new v, count and bases, of the factors and bases in `state`. Of L, and of R likewise:

        order QL's columns, and v's rows with them, by diag(QL' L QL), the largest first
        QL <- the Q of the QR decomposition of L QL

    where it is `due`, one power iteration; the eigenvectors of L, the largest first, where it
    `begins`. A basis that does not come out finite and orthogonal stays as it was, and counts.
    """
    factors, bases = state[: len(sides)], state[len(sides) :]
    old = [v, kept, *bases]

    def begin():
        # A decomposition of what is not finite is an error on TensorFlow.
        known = [xp.where(xp.isfinite(each), each, xp.zeros_like(each)) for each in factors]
        made = [xp.linalg.eigh(-each)[1] for each in known]
        return _taken(xp, begins, [v, *made], *old)

    def renew():
        ordered, made = v, []
        for side, factor, basis in zip(sides, factors, bases, strict=True):
            image = factor @ basis
            order = xp.argsort(-xp.sum(basis * image, axis=-2))
            across, along = xp.expand_dims(order, -2), xp.expand_dims(order, -1)
            ordered = xp.take_along_axis(ordered, *((along, -2) if side == 0 else (across, -1)))
            if renewal == "cholesky":
                mean = _mean_eigenvalue(xp, factor)
                image = image / xp.where(mean > 0, mean, 1.0) + 1e-4 * basis
            made.append(_orthonormal(xp, xp.take_along_axis(image, across, -1), renewal))
        return _taken(xp, due, [ordered, *made], *old)

    v, kept, *bases = old = branch(xp, xp.any(begins), begin, lambda: old)
    return branch(xp, xp.any(due), renew, lambda: old)


def _mean_eigenvalue(xp, factor):
    n = factor.shape[-1]
    return xp.sum(factor * xp.eye(n, dtype=factor.dtype), axis=(-2, -1), keepdims=True) / n


def _orthonormal(xp, a, renewal):
    """An orthonormal basis of the first i columns of a, for every i.

    By shifted Cholesky QR in four passes, of columns of length 1:

        A <- A C'^-1,    C C' = A'A, in the first pass A'A + 3e-7 n, in the second A'A + 1e-5

    Products and solutions of triangles are all it takes, where Householder's decomposition takes a
    column after the other.

    Source: Fukaya et al., arXiv:1809.11085.
    """
    if renewal != "cholesky":
        if len(a.shape) == 2:
            return xp.linalg.qr(a)[0]
        return xp.stack([xp.linalg.qr(a[i])[0] for i in range(a.shape[0])])
    a = a / norm(xp, a, axes=(-2,))
    for shift in (3e-7 * a.shape[-1], 1e-5, 0.0, 0.0):
        gram = precise(xp, transposed(xp, a), a) + shift * xp.eye(a.shape[-1], dtype=a.dtype)
        c = xp.linalg.cholesky(gram)
        solved = xp.linalg.solve_triangular(c, transposed(xp, a), lower=True)
        a = transposed(xp, solved)
    return a


def _taken(xp, when, new, old_v, kept, *old_bases):
    """v, the count and the bases: new ones where they are due and right, else the old ones.

    No column has a sum below 0, for a decomposition leaves signs open.
    """
    v, *bases = new
    right = when
    for basis in bases:
        off = precise(xp, transposed(xp, basis), basis) - xp.eye(basis.shape[-1], dtype=basis.dtype)
        # Each by itself: a maximum of many on a CPU of JAX (0.10.2) forgets a NaN.
        right = right & xp.all(xp.abs(off) < 1e-4, axis=(-2, -1))

    takes = xp.reshape(right, (*right.shape, 1, 1))
    taken = [xp.where(takes, v, old_v), xp.where(when & xp.logical_not(right), kept + 1, kept)]
    for basis, before in zip(bases, old_bases, strict=True):
        sums = xp.sum(basis, axis=-2, keepdims=True)
        sign = xp.where(sums < 0, -xp.ones_like(sums), xp.ones_like(sums))
        taken.append(xp.where(takes, basis * sign, before))
    return taken


RULE = Rule(
    soap,
    ("m", "v"),
    HYPER,
    start_rate=0.003,
    transfer_exponent=0.75,
    takes_gain=False,
    gains_by_xla=False,
)
