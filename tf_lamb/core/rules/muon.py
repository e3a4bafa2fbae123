"""The rule Muon: orthogonalized momentum for matrices, and AdamW for all other variables."""

import dataclasses

from tf_lamb.core.rules.lamb import adamw
from tf_lamb.core.rules.rule import Rule
from tf_lamb.core.rules.shared import decayed, in_dtype, norm
from tf_lamb.core.stacks import transposed

# Jordan's quintic: five steps take singular values in (0, 1] to about [0.7, 1.2].
_A, _B, _C = 3.4445, -4.7750, 2.0315


@dataclasses.dataclass(frozen=True)
class Form:
    """Selects one of the forms that go by the name of Muon; `muon` has their equations.

    Attributes:
        newton_schulz_steps: The number of steps that orthogonalize the update.
        update_scale: "rms" or "shape", the scale s of the update.
        fallback_lr_scale: The learning rate of AdamW for all that is no matrix, in units of lr.
    """

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
    """Takes one Muon step.

    A matrix (`adapt`), with inputs as rows and outputs as columns, steps as follows:

        m <- mu m + g
        u  = g + mu m                                  u = m without nesterov
        O  = NewtonSchulz(u)                           of UV', where u = U S V'
        w <- w - lr s O - lr decay w

    with s = 0.2 sqrt(max(rows, columns)) for the `update_scale` "rms", and for "shape"
    sqrt(max(1, columns/rows)). Any other variable takes a step of AdamW at the rate
    `fallback_lr_scale` lr.

    Args:
        xp: The array namespace.
        g, w: The gradient and the weight, of one shape.
        m: The momentum, or AdamW's first moment, shaped as the weight; zeros at first.
        v: AdamW's second moment; None for a matrix.
        lr: The learning rate, a scalar.
        t: The number of the step, from 1; a scalar.
        decay: The weight decay: a float, or an array.
        adapt: Whether the variable is a matrix.
        axes: The axes of a norm, which this rule does not use.
        momentum: mu.
        nesterov: Whether u is Nesterov's, as above.
        form: The `newton_schulz_steps`, and the scales above.
        beta_1, beta_2, epsilon: Those of AdamW.
        product_dtype: See `orthogonalized`.

    Yields:
        `orthogonalized`, (u,) and its settings: matrices of one shape are orthogonalized at once
        (`core/stacks.py`).

    Returns:
        The new w and m; of AdamW the new v, too.

    Source: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024, which has
    the scale "shape"; Liu et al., arXiv:2502.16982, which has the scale "rms", and the decay.
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
    """Computes a matrix with the singular vectors of u, and singular values about 1.

        X <- u / (|u| + 1e-7)
        A  = X X'
        X <- a X + (b A + c A A) X          as often as there are steps

    Args:
        xp: The array namespace.
        u: A matrix, or a stack of matrices.
        steps: The number of iterations.
        product_dtype: The dtype of X and A; None is that of u. The norm is always in that of u.

    Returns:
        A list with the one result, in the shape and dtype of u.
    """
    (x,) = in_dtype(xp, product_dtype, u / (norm(xp, u, axes=(-2, -1)) + 1e-7))
    tall = u.shape[-2] > u.shape[-1]
    if tall:  # X X' is smaller with fewer rows than columns
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
    gains_by_dealing=True,  # one result is gathered for fifteen products
)
