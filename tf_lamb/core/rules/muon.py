"""The rule Muon: orthogonalized momentum for matrices, and AdamW for all other variables."""

import dataclasses

from tf_lamb.core.rules.lamb import NO_BOUNDS, Bounds, adamw
from tf_lamb.core.rules.rule import Rule
from tf_lamb.core.rules.shared import decayed, in_dtype, norm, trust_ratio, with_norm_of
from tf_lamb.core.stacks import transposed

Triple = tuple[float, float, float]
# The a, b and c of Newton-Schulz steps: a key of `PRESETS`, one triple for every step, or a triple
# for each step.
Coefficients = str | Triple | tuple[Triple, ...]

# The coefficients of the Newton-Schulz steps. The comments give the range in which singular values
# from 0.01 to 1 lie after the five steps of a preset, in float32.
# Jordan's quintic: between 0.68 and 1.14.
JORDAN = (3.4445, -4.7750, 2.0315)
# The first five polynomials of Amsel et al. (arXiv:2505.16932), whose composition is optimal for
# singular values from 0.001 to 1: between 0.87 and 1.13. From singular values between 0.001 and
# 0.01, the result is between 0.84 and 1.13.
_POLAR_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
)
# Huang (arXiv:2606.00371), with the numbers of the author's pull request #217 to NVIDIA's
# Emerging-Optimizers: between 0.81 and 1.3.
_CUBIC5 = (
    (3.3656576, -3.3420992, 0.0),
    (2.5744352, -1.4957376, 0.0),
    (2.5368962, -1.4312570, 0.0),
    (2.4418906, -1.2764040, 0.0),
    (2.2230472, -0.9630650, 0.0),
)


def _with_safety(triples, factor=1.01):
    """Returns coefficients with which each step divides its input by `factor` first.

    Amsel et al. use the factor because rounding may make a singular value larger than 1. This
    package also uses it for "cubic5", whose author does not. There the first step maps a singular
    value of 1 to 0.02. Rounding to bfloat16 has a larger error, so the result might be negative,
    and the update of a matrix of rank one might point along the gradient instead of against it.

    Args:
        triples: a, b and c of each step.
        factor: The factor. Defaults to 1.01 (Amsel et al.).

    Returns:
        For each step its new a, b and c.
    """
    return tuple((a / factor, b / factor**3, c / factor**5) for a, b, c in triples)


PRESETS: dict[str, Triple | tuple[Triple, ...]] = {
    "jordan": JORDAN,
    "polar_express": _with_safety(_POLAR_EXPRESS),
    "cubic5": _with_safety(_CUBIC5),
}


@dataclasses.dataclass(frozen=True)
class MuonForm:
    """Selects one of the forms that go by the name of Muon; `muon` has their equations.

    Attributes:
        newton_schulz_steps: The number of steps that orthogonalize the update. Defaults to None:
            one for each triple of `coefficients`, or 5 if there is one triple for every step.
        update_scale: "rms" or "shape", the scale s of the update.
        fallback_lr_scale: The factor of the learning rate for AdamW, which updates the variables
            that are no matrices.
        coefficients: a, b and c of each step: a key of `PRESETS`, one triple for every step, or a
            tuple with a triple for each step.
        norm: "constant" if a matrix keeps its norm; None if steps change it.
        heads: "each" if each head of an attention kernel is a matrix of its own; None if all heads
            are one matrix. `core/layouts.py` reads this field; the function `muon` does not.

    Raises:
        ValueError: if `coefficients` has a triple for each step, and their number is not
            `newton_schulz_steps`.
    """

    newton_schulz_steps: int | None = None
    update_scale: str = "rms"
    fallback_lr_scale: float = 1.0
    coefficients: Coefficients = "jordan"
    norm: str | None = None
    heads: str | None = None

    def __post_init__(self):
        steps, triples = self.newton_schulz_steps, self._coefficient_numbers()
        if steps is None:
            steps = 5 if _is_triple(triples) else len(triples)
            object.__setattr__(self, "newton_schulz_steps", steps)
        if not _is_triple(triples) and len(triples) != steps:
            raise ValueError(
                f"form has coefficients of {len(triples)} steps, and newton_schulz_steps={steps}: "
                "leave newton_schulz_steps out, or give one triple, or one for each of the steps."
            )

    def _coefficient_numbers(self):
        """Returns `coefficients`; if they are the name of a preset, the numbers of the preset."""
        coefficients = self.coefficients
        return PRESETS[coefficients] if isinstance(coefficients, str) else coefficients

    @property
    def triples(self) -> tuple[Triple, ...]:
        """The coefficients (a, b, c) of each Newton-Schulz step."""
        triples = self._coefficient_numbers()
        if not _is_triple(triples):
            return triples
        return (triples,) * (self.newton_schulz_steps or 5)


def _is_triple(coefficients):
    """Returns whether coefficients are a single triple (a, b, c), which every step uses.

    Otherwise they are a tuple of triples, one for each Newton-Schulz step.
    """
    return not isinstance(coefficients[0], tuple)


HYPER = {
    "momentum": float, "nesterov": bool, "form": MuonForm, "bounds": Bounds, "beta_1": float,
    "beta_2": float, "epsilon": float,
}  # fmt: skip


def muon(
    xp, g, w, m, v=None, *, lr, t, decay, adapt, axes=None, observe=None,
    momentum=0.95, nesterov=True, form=MuonForm(), bounds=NO_BOUNDS, beta_1=0.9, beta_2=0.999,
    epsilon=1e-8, product_dtype=None,
):  # fmt: skip
    """Takes one Muon step.

    If `adapt` is True, w is a matrix, with the inputs of its layer as rows and the outputs as
    columns, or a stack of shape (matrices, rows, columns). The step of each matrix is:

        m <- mu m + g
        u  = g + mu m                                  u = m without nesterov
        O  = NewtonSchulz(u)                           about UV', where u = U S V'
        w <- w - lr s O - lr decay w

    U S V' is the singular value decomposition of u, and ' the transpose. The scale s is
    0.2 sqrt(max(rows, columns)) for the `update_scale` "rms", and for "shape"
    sqrt(max(1, columns/rows)). If `bounds` are given, s O is multiplied by its trust ratio
    phi(|w|)/|s O|, where phi clips |w| to the bounds of the weight norm; the ratio is clipped to
    the bounds of the trust ratio. If `form.norm` is "constant", the new w is scaled to the norm of
    the old one. If `adapt` is False, the variable takes a step of AdamW with the learning rate
    `form.fallback_lr_scale` lr instead.

    Args:
        xp: An array namespace such as NumPy.
        g, w: The gradient and the weight, of one shape.
        m: The momentum, or AdamW's first moment, shaped as the weight; zeros before the first step.
        v: AdamW's second moment; None for a matrix.
        lr: The learning rate, a scalar.
        t: The number of the optimizer step, from 1; a scalar.
        decay: The weight decay: a Python float, or an array.
        adapt: Whether the variable is a matrix.
        axes: The axes over which the norms |w| and |s O| run, so that each row, each column or each
            matrix of a stack has a norm of its own; None is all.
        observe: None, or a function that `trust_ratio` calls with the norms and the ratio.
        momentum: mu.
        nesterov: Whether u has Nesterov momentum, as above.
        form: The coefficients of the Newton-Schulz steps, the scales above, and the `norm`.
        bounds: The bounds of phi and of the ratio, see `trust_ratio`.
        beta_1, beta_2, epsilon: The arguments of AdamW.
        product_dtype: The dtype of the matrix products, as for `orthogonalized`.

    Yields:
        The function `orthogonalized`, its arrays (u,) and its settings. The caller sends back the
        result, which it may compute for several matrices of one shape at once (`core/stacks.py`).

    Returns:
        The new w and m; after a step of AdamW the new w, m and v.

    Source: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024, which has
    the scale "shape"; Liu et al., arXiv:2502.16982, which has the scale "rms" and the weight decay.
    The trust ratio is that of LAMB (arXiv:1904.00962). The constant norm is from Wen et al.,
    Hyperball Optimization, 2025, who also multiply by the trust ratio, without bounds. Unlike this
    rule, they always scale to the norm of the initial weights, which they store.
    """
    if not adapt:
        return adamw(
            xp, g, w, m, v, lr=lr * form.fallback_lr_scale, t=t, decay=decay,
            beta_1=beta_1, beta_2=beta_2, epsilon=epsilon,
        )  # fmt: skip
    m = momentum * m + g
    u = g + momentum * m if nesterov else m
    settings = {"coefficients": form.triples, "product_dtype": product_dtype}
    (o,) = yield orthogonalized, (u,), settings
    rows, columns = w.shape[-2:]
    s = 0.2 * max(rows, columns) ** 0.5
    if form.update_scale == "shape":
        s = max(1.0, columns / rows) ** 0.5
    rate = lr * s
    if bounds.are_set:
        rate = rate * trust_ratio(
            xp, w, s * o, adapt=True, axes=axes, bounds=bounds, observe=observe
        )
    new_w = decayed(w, decay, -lr * w) - rate * o
    return with_norm_of(xp, new_w, w, axes) if form.norm == "constant" else new_w, m


def orthogonalized(xp, u, coefficients, product_dtype=None):
    """Computes a matrix with the singular vectors of u, and singular values about 1.

        X <- u / (|u| + 1e-7)
        A  = X X'
        X <- a X + (b A + c A A) X          for a, b and c of each step

    The last X is the result. Each step takes a singular value x to a x + b x^3 + c x^5. Where c is
    0, the product A A is left out.

    Args:
        xp: An array namespace such as NumPy.
        u: A matrix, or a stack of matrices.
        coefficients: For each step a, b and c.
        product_dtype: The dtype of X and A; None is that of u. The norm |u| is always computed in
            the dtype of u.

    Returns:
        A list with one array, the result, in the shape and dtype of u.

    Source: Jordan et al., 2024. Amsel et al. divide by 1.01 |u|, because rounding may make a
    singular value larger than 1. Here the division by 1.01 is part of the coefficients of the
    presets "polar_express" and "cubic5".
    """
    (x,) = in_dtype(xp, product_dtype, u / (norm(xp, u, axes=(-2, -1)) + 1e-7))
    is_tall = u.shape[-2] > u.shape[-1]
    if is_tall:  # X' X is smaller than X X', so X is transposed
        x = transposed(xp, x)
    for a, b, c in coefficients:
        gram = x @ transposed(xp, x)
        x = a * x + (b * gram + c * (gram @ gram) if c else b * gram) @ x
    x = transposed(xp, x) if is_tall else x
    return in_dtype(xp, u.dtype, x)


RULE = Rule(
    muon,
    ("m", "v"),
    HYPER,
    start_rate=0.01,
    transfer_exponent=0.75,
    takes_gain=False,
    # The ten or fifteen matrix products of a step take longer than to gather its result on all
    # devices.
    gains_by_sharding=True,
    stacks_if_adapt=(False,),
    ratio_needs_bounds=True,
)
