"""Muon: momentum orthogonalized for matrices, and AdamW for all that is none."""

import dataclasses

from tf_lamb.core.rules.lamb import adamw
from tf_lamb.core.rules.rule import Rule
from tf_lamb.core.rules.shared import decayed, in_dtype, norm
from tf_lamb.core.stacks import transposed

# Jordan's quintic: five steps take singular values in (0, 1] to about [0.7, 1.2].
_A, _B, _C = 3.4445, -4.7750, 2.0315


@dataclasses.dataclass(frozen=True)
class Form:
    """What goes by the name of Muon, as `muon` documents it."""

    newton_schulz_steps: int = 5
    update_scale: str = "rms"
    fallback_lr_scale: float = 1.0


HYPER = {
    "momentum": float, "nesterov": bool, "form": Form, "beta_1": float, "beta_2": float,
    "epsilon": float,
}  # fmt: skip


def muon(
    xp, g, w, m, v=None, *, lr, t, decay, adapt, axes=None,
    momentum=0.95, nesterov=True, form=Form(), beta_1=0.9, beta_2=0.999, epsilon=1e-8,
    product_dtype=None,
):  # fmt: skip
    """One Muon step. Of a matrix (`adapt`), rows in and columns out:

        m <- mu m + g
        u  = g + mu m                                  u = m without nesterov
        O  = NewtonSchulz(u)                           of UV', where u = U S V'
        w <- w - lr s O - lr decay w

    with s = 0.2 sqrt(max(rows, columns)) for the `update_scale` "rms", and for "shape"
    sqrt(max(1, columns/rows)). Of all else, a step of AdamW at the rate `fallback_lr_scale` lr.

    Args:
        v: the second moment, of what is no matrix.
        form: the `newton_schulz_steps`, and the scales above.
        beta_1, beta_2, epsilon: of AdamW.
        product_dtype: see `orthogonalized`.

    Yields:
        What orthogonalizes u: for matrices of one shape it is done at once (`core/stacks.py`).

    Source: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024, of which
    "shape" is the scale; Liu et al., arXiv:2502.16982, of which "rms" is, and the decay.
    """
    if not adapt:
        return adamw(
            xp, g, w, m, v, lr=lr * form.fallback_lr_scale, t=t, decay=decay,
            beta_1=beta_1, beta_2=beta_2, epsilon=epsilon,
        )  # fmt: skip
    m = momentum * m + g
    u = g + momentum * m if nesterov else m
    iteration = {"steps": form.newton_schulz_steps, "product_dtype": product_dtype}
    (o,) = yield orthogonalized, (u,), iteration
    rows, columns = w.shape
    s = 0.2 * max(rows, columns) ** 0.5
    if form.update_scale == "shape":
        s = max(1.0, columns / rows) ** 0.5
    return decayed(w, decay, -lr * w) - (lr * s) * o, m


def orthogonalized(xp, u, steps, product_dtype=None):
    """In a list the matrix with the singular vectors of u, and singular values about 1; or a stack.

    X <- u / (|u| + 1e-7)
    A  = X X'
    X <- a X + (b A + c A A) X          as often as there are steps

    X and A are in the `product_dtype`; the norm never is.
    """
    (x,) = in_dtype(xp, product_dtype, u / (norm(xp, u, axes=(-2, -1)) + 1e-7))
    tall = u.shape[-2] > u.shape[-1]
    if tall:  # the product X X' is then the smaller one
        x = transposed(xp, x)
    for _ in range(steps):
        a = x @ transposed(xp, x)
        x = _A * x + (_B * a + _C * (a @ a)) @ x
    x = transposed(xp, x) if tall else x
    return in_dtype(xp, u.dtype, x)


RULE = Rule(
    muon,
    ("m", "v"),
    HYPER,
    start_rate=0.01,
    transfer_exponent=0.75,
    takes_gain=False,
    gains_by_dealing=True,  # one result to gather for fifteen products
)
