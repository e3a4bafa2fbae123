"""SOAP: Adam in the eigenbasis of a matrix's two factors, and AdamW for all that is no matrix."""

from tf_lamb.core.rules.lamb import adamw
from tf_lamb.core.rules.shared import branch, debias, decayed, safe_root

HYPER = {
    "beta_1": float, "beta_2": float, "epsilon": float, "precondition_frequency": int,
    "max_precond_dim": int, "one_sided": bool,
}  # fmt: skip


def soap(
    xp, g, w, m, v, *sides, lr, t, decay, adapt, axes=None,
    beta_1=0.95, beta_2=0.95, epsilon=1e-8, precondition_frequency=10, max_precond_dim=10_000,
    one_sided=False,
):  # fmt: skip
    """One SOAP step. Of a matrix (`adapt`), rows in and columns out:

        m  <- b1 m + (1 - b1) g
        v  <- b2 v + (1 - b2) (QL' g QR)^2
        u   = QL ((QL' m QR) / (sqrt(v) + eps)) QR'
        w  <- w - lr sqrt(1 - b2^s)/(1 - b1^s) u
        w  <- w - lr decay w
        L  <- b2 L + (1 - b2) g g'
        R  <- b2 R + (1 - b2) g' g

    in its own step s, and in every f-th of L, and of R likewise, one power iteration:

        order QL's columns, and v's rows with them, by diag(QL' L QL), the largest first
        QL <- the Q of the QR decomposition of L QL

    In step 0 all else waits: L and R begin, QL and QR are their eigenvectors, the largest first. A
    basis that does not come out finite stays as it was. Of all that is no matrix, a step of AdamW.

    Args:
        g, w, m, v: gradient, weight, first moment, and second moment in the basis, arrays of one
            shape; a matrix if `adapt`.
        sides: of a matrix L, QL, R and QR, or those of one side; how many bases did not come out
            finite; and s. Zeros at first.
        lr, t: scalars; t counts from 1, of what is no matrix. A matrix that rests in every other
            step might never meet an f-th t, so it counts its own steps.
        decay: weight decay, a Python float, or a scalar where it follows a schedule.
        adapt: whether it is a matrix with a basis, a Python bool.
        axes: of no use here.
        precondition_frequency: f.
        max_precond_dim, one_sided: see `sides_of`.

    Returns:
        The new w, m and v, and of a matrix the new sides.

    Source: Vyas et al., arXiv:2409.11321, and the authors' code for what comes when; it keeps m in
    the basis, which is the same. There AdamW waits for a step, too.
    """
    if not adapt:
        return adamw(
            xp, g, w, m, v, lr=lr, t=t, decay=decay, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon
        )
    *pairs, kept, s = sides
    factors, bases = pairs[::2], pairs[1::2]
    sides = sides_of(w.shape, max_precond_dim, one_sided)

    def begin():
        new = _followed(xp, g, sides, factors, beta_2)
        # A decomposition of what is not finite is an error on TensorFlow.
        known = [xp.where(xp.isfinite(each), each, xp.zeros_like(each)) for each in new]
        finite, made = _if_finite(xp, [xp.linalg.eigh(-each)[1] for each in known], bases)
        counts = _counted(xp, finite, kept), xp.where(finite, s + 1, s)
        return [w, m, v, *_alternating(new, made), *counts]

    def advance():
        c = debias(xp, beta_2, s) ** 0.5 / debias(xp, beta_1, s)
        new_m = beta_1 * m + (1 - beta_1) * g
        new_v = beta_2 * v + (1 - beta_2) * xp.square(_turned(xp, g, sides, bases))
        u = _turned(xp, new_m, sides, bases) / (safe_root(xp, new_v) + epsilon)
        u = _turned(xp, u, sides, [xp.transpose(basis) for basis in bases])
        new_w = w - lr * c * u
        new_w = decayed(new_w, decay, -lr * new_w)
        new = _followed(xp, g, sides, factors, beta_2)
        state = branch(
            xp, xp.equal(s % precondition_frequency, 0),
            lambda: _renewed(xp, new_v, sides, new, bases, kept),
            lambda: [new_v, *_alternating(new, bases), kept],
        )  # fmt: skip
        return [new_w, new_m, *state, s + 1]

    return tuple(branch(xp, xp.equal(s, 0), begin, advance))


def sides_of(shape, max_precond_dim, one_sided):
    """The axes of a matrix that have a factor: those of up to `max_precond_dim`; 0 is its rows.

    The shorter alone if `one_sided`.
    """
    if one_sided:
        shorter = int(shape[1] < shape[0])
        return [shorter] if shape[shorter] <= max_precond_dim else []
    return [axis for axis in (0, 1) if shape[axis] <= max_precond_dim]


def _followed(xp, g, sides, factors, beta_2):
    """The factors, with what this gradient adds."""
    products = [g @ xp.transpose(g) if side == 0 else xp.transpose(g) @ g for side in sides]
    return [
        beta_2 * factor + (1 - beta_2) * product
        for factor, product in zip(factors, products, strict=True)
    ]


def _turned(xp, x, sides, bases):
    """A matrix in the basis; with the bases transposed, back out of it."""
    for side, basis in zip(sides, bases, strict=True):
        x = xp.transpose(basis) @ x if side == 0 else x @ basis
    return x


def _renewed(xp, v, sides, factors, bases, kept):
    """The new v, sides and count."""
    ordered, turned = v, []
    for side, factor, basis in zip(sides, factors, bases, strict=True):
        image = factor @ basis
        order = xp.argsort(-xp.sum(basis * image, axis=0))
        ordered = xp.take(ordered, order, axis=side)
        turned.append(xp.linalg.qr(xp.take(image, order, axis=1))[0])
    finite, made = _if_finite(xp, turned, bases)
    v = xp.where(finite, ordered, v)
    return [v, *_alternating(factors, made), _counted(xp, finite, kept)]


def _if_finite(xp, new, old):
    """Whether the new bases are finite, and these if so, else the old ones.

    No column of theirs has a sum below 0, for a decomposition leaves signs open.
    """
    sums = [xp.sum(basis, axis=0) for basis in new]
    finite = xp.isfinite(sum(map(xp.sum, sums)))
    signs = [xp.where(each < 0, -xp.ones_like(each), xp.ones_like(each)) for each in sums]
    return finite, [
        xp.where(finite, basis * sign, before)
        for basis, sign, before in zip(new, signs, old, strict=True)
    ]


def _counted(xp, finite, kept):
    return xp.where(finite, kept, kept + 1)


def _alternating(factors, bases):
    return [each for pair in zip(factors, bases, strict=True) for each in pair]
