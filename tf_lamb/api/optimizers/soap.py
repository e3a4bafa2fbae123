"""The framework-independent half of SOAP: its signature, docstring, settings and rule."""

import dataclasses
import math
from typing import Unpack

from tf_lamb.api.optimizers import settings
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.api.variables import value_of
from tf_lamb.core import checks
from tf_lamb.core.messages import warn
from tf_lamb.core.plan import Treatment
from tf_lamb.core.rules.soap import RULE, sides_of
from tf_lamb.core.stored import Slot

_BASES = ("L", "L_basis"), ("R", "R_basis")  # names of the slots of rows, and of columns


@dataclasses.dataclass(frozen=True, kw_only=True)
class SOAPSettings(settings.MatrixSettings):
    """The settings of SOAP, which add the memory of a matrix's bases to the plan."""

    def __post_init__(self):
        super().__post_init__()
        # The counter of steps is float32, and goes back by a multiple of the frequency near 2^24.
        frequency = self.hyperparameters["precondition_frequency"]
        checks.integer("precondition_frequency", frequency, most=2**23)

    def sides_of(self, view):
        """Returns the axes of the matrices of a view that have a factor: 0 rows, 1 columns."""
        hyperparameters, shape = self.hyperparameters, view[-2:]
        return sides_of(
            shape, hyperparameters["max_precond_dim"], hyperparameters["form"].one_sided
        )

    def for_rule(self, accelerated):
        """See base class; an accelerator renews bases by Cholesky unless the user chooses."""
        rule_arguments = super().for_rule(accelerated)
        if accelerated and rule_arguments["form"].renewal is None:
            rule_arguments["form"] = dataclasses.replace(rule_arguments["form"], renewal="cholesky")
        return rule_arguments

    def planned(self, plan):
        """See base class.

        Raises:
            ValueError: also if no side of a matrix is short enough for a basis.
        """
        plan = super().planned(plan)
        treatments = tuple(map(self._treated, plan.names, plan.treatments))
        return dataclasses.replace(plan, treatments=treatments)

    def _treated(self, path, treatment):
        """Returns a treatment that says how many bytes the bases of its matrix take."""
        if not treatment.adapt:
            return treatment
        sides, (*heads, rows, columns) = self.sides_of(treatment.view), treatment.view
        if not sides:
            longest = self.hyperparameters["max_precond_dim"]
            raise ValueError(
                f"{self.name} keeps bases of up to max_precond_dim={longest:,}, and {path} is a "
                f"matrix of {rows:,} x {columns:,}: put {path!r} into "
                "exclude_from_layer_adaptation, which leaves it to AdamW, or raise "
                f"max_precond_dim to {min(rows, columns):,}."
            )
        size = math.prod(heads) * sum(2 * 4 * (rows, columns)[side] ** 2 for side in sides)
        return dataclasses.replace(treatment, words=f"{treatment.words}, {size:,} bytes of bases")


@settings.documented
class SOAP(Layerwise):
    """SOAP, Adam in the eigenbasis of Shampoo's factors for matrices; AdamW for all that is none.

    Per matrix, rows in and columns out, at every step:

        m  <- beta_1 m + (1 - beta_1) g
        v  <- beta_2 v + (1 - beta_2) (QL' g QR)^2
        u   = QL ((QL' m QR) / (sqrt(v) + epsilon)) QR'
        w  <- w - learning_rate sqrt(1 - beta_2^s)/(1 - beta_1^s) u
        w  <- w - learning_rate weight_decay w
        L  <- beta_2 L + (1 - beta_2) g g'
        R  <- beta_2 R + (1 - beta_2) g' g

    QL and QR are orthogonal. They come near the eigenvectors of L and R by one power iteration
    every `precondition_frequency` steps, in a branch of the program that other steps do not enter;
    by Cholesky, matrices of other shapes take turns. The first gradient makes the bases, and moves
    no matrix; s counts the steps that the matrix has made since, and not those in which it rests.

    What is a matrix, and which of its axes are rows, is found as by `Muon`, LoRA's two factors
    alike; embeddings, biases, normalizations and what `exclude_from_layer_adaptation` names are
    AdamW's, by the same learning rate and betas. Its rate is about AdamW's, too. An output layer as
    wide as a vocabulary has a basis of its short side alone.

    A matrix of r x c takes 8 (r^2 + c^2) bytes beside m and v; `tf_lamb.describe` shows them. They
    are always in float32, and so is m: rounded to bfloat16, it would have parts where gradients
    have none, and v would divide them by nearly 0. The two sides take six products of matrices a
    step for the update and two for L and R; `dtypes={"products": "bfloat16"}` has these in
    bfloat16. A renewal is a Householder QR on a CPU, and elsewhere Cholesky QR in four passes of
    (L + 1e-4 mean) QL, with `mean` the mean eigenvalue. Where it fails, the basis stays as it was,
    which `kept_bases` counts. On GPUs and TPUs matrices of one shape are worked on as one array.
    `shard_update` keeps on each device its share of the state.

    As long as gradients do not span it, the basis of a side is not determined, nor are the steps
    in it: another version of a library may find another one.

    XLA on TensorFlow takes 6 seconds for the first basis of 512 rows on a CPU, and ever longer:
    pass `jit_compile=False` to `compile`, with replicas to this optimizer, too, or train on JAX.
    The TPU's compiler takes minutes for a decomposition of a long side: there give
    `max_precond_dim`, exclude matrices whose shorter side is above it, and compile a step first.

    Args:
        learning_rate: A float, a `LearningRateSchedule` or a callable without arguments.
            Defaults to 0.003 (Vyas et al.).
        beta_1: Decay of the first moment, in [0, 1). Defaults to 0.95 (Vyas et al.).
        beta_2: Decay of the second moment and of L and R, in [0, 1). Defaults to 0.95 (Vyas et
            al.).
        epsilon: Added to the root of the second moment. Defaults to 1e-8.
        weight_decay: Decoupled decay, a float or a schedule; None is 0. Defaults to 0.0; Vyas et
            al. have 0.01.
        exclude_from_layer_adaptation: List of regexes of variables that AdamW steps.
            Defaults to None: ["embedding"], without a warning where nothing matches.
        precondition_frequency: Steps between two renewals. Defaults to 10 (Vyas et al.).
        max_precond_dim: The longest side that has a basis. Defaults to 10,000 (Vyas et al.).
        form: Dict of how bases come about, and of what a step keeps; None is
            {"one_sided": False, "renewal": None, "norm": None, "heads": None}.
            "one_sided": whether the shorter side alone has one. "renewal": "qr", of all matrices in
            the same step (Vyas et al.); "cholesky"; None is "qr" on a CPU, "cholesky" elsewhere.
            "norm": "constant" scales each matrix, or each of its slices, after a step to the norm
            it had, and refuses weight decay of matrices (Wen et al., Hyperball, with bounds
            {"trust_ratio": (None, None)}, by which a step is lr |w| long). No norm is stored, as
            theirs at the start is: what else changes |w|, averages at the end of `fit` or bfloat16
            weights without masters, is kept. A matrix that is near zero stays short.
            "heads": "each" makes each head of an attention's query, key and value, model x size, a
            matrix with bases of its own, as Muon's form does; no published SOAP has it. L then has
            model^2 numbers for every head, which "one_sided" spares where the size is shorter. A
            ratio and a constant norm are those of each head. All else stays one matrix, as with
            None, the default. A saved state goes on under the form alone that it was saved with.
        bounds: Dict of a smallest and a largest value of "trust_ratio" and of "weight_norm", |w| in
            it; None in a pair is open. It gives each matrix LAMB's trust ratio: the step that the
            learning rate multiplies, d = u with both corrections, is multiplied by |w|/|d| within
            the bounds; decay stays outside, and AdamW's variables have none. {"trust_ratio": (None,
            None)} is the ratio as it is; `treatments` can give each row or column its own. A "u/w
            floor" bounds |d|/|w| instead, and is another thing. Defaults to None: no ratio.
        {{shared_arguments}}

    Raises:
        ValueError, TypeError: at construction, for a hyper-parameter out of its range, a pattern
            that is no regex, an unknown argument, a constant norm beside averages that overwrite
            weights.
        ValueError: at the first step, for a matrix of which no side is short enough, where
            `treatments` names axes that a variable does not have, where nothing is a matrix, or has
            the heads that `form` asks for, and where a matrix of constant norm decays.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    >>> optimizer = tf_lamb.SOAP(
    ...     1e-3, weight_decay=0.01, exclude_from_weight_decay=["bias"])
    >>> model.compile(optimizer=optimizer, loss="mse")
    >>> optimizer.build(model.trainable_variables)
    >>> optimizer.describe(lambda table: print(table.splitlines()[1].split("yes")[1].strip()))
    matrix of 4 x 2, 160 bytes of bases

    References:
        - Vyas et al., SOAP: Improving and Stabilizing Shampoo using Adam,
          https://arxiv.org/abs/2409.11321
    """

    rule = RULE
    settings_class = SOAPSettings
    _settings: SOAPSettings

    def __init__(
        self,
        learning_rate: settings.LearningRate = 0.003,
        beta_1: float = 0.95,
        beta_2: float = 0.95,
        epsilon: float = 1e-8,
        weight_decay: settings.WeightDecay = 0.0,
        exclude_from_weight_decay: settings.Patterns = None,
        exclude_from_layer_adaptation: settings.Patterns = None,
        *,
        precondition_frequency: int = 10,
        max_precond_dim: int = 10_000,
        form: settings.Form = None,
        bounds: settings.Bounds = None,
        name: str | None = "SOAP",
        **shared: Unpack[settings.Shared],
    ):
        super().__init__(**settings.constructor_arguments(locals()))

    def slots_of(self, treatment: Treatment, shape: tuple[int, ...]) -> list[Slot]:
        """See base class; a matrix has factors and bases as well."""
        m, v = super().slots_of(treatment, shape)
        if not treatment.view:
            return [m, v]
        *heads, rows, columns = treatment.view
        shapes: dict[str, tuple[int, ...]] = {}
        for side in self._settings.sides_of(treatment.view):
            shapes |= dict.fromkeys(_BASES[side], (*heads, *((rows, columns)[side],) * 2))
        shapes |= dict.fromkeys(("kept_bases", "steps"), tuple(heads))
        extra_slots = [Slot(name, shape, dtype="float32") for name, shape in shapes.items()]
        return [m._replace(dtype="float32"), v, *extra_slots]

    @property
    def kept_bases(self) -> int:
        """How often the new bases of a matrix were not finite and orthogonal, and not taken."""
        plan = self.plan
        if plan is None or self._storage is None:
            return 0
        matrices = (
            position for position, treatment in enumerate(plan.treatments) if treatment.adapt
        )
        counts = (value_of(self.state_of(position)["kept_bases"]) for position in matrices)
        return sum(int(count.sum()) for count in counts)

    def _warn_at_end(self):
        """See base class; warns of bases that were not renewed."""
        if count := self.kept_bases:
            warn(
                f"{self.name}: {count:,} times the bases of a matrix did not come out finite and "
                "orthogonal, and stayed as they were. Look for weights that are not finite, or for "
                "gradients beyond 1e9: on_nonfinite='skip' and clipping keep both out. Else take "
                "form={'renewal': 'qr'}."
            )
