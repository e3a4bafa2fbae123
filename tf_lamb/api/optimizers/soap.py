"""Defines the base class of SOAP for all frameworks: signature, docstring, settings and rule."""

import dataclasses
import math
from typing import Unpack

from tf_lamb.api.optimizers import settings
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.api.variables import value_of
from tf_lamb.core.messages import warn
from tf_lamb.core.plan import Treatment
from tf_lamb.core.rules.soap import RULE, sides_of
from tf_lamb.core.stored import Slot

# The names of the slots with Shampoo's factor and with its basis: of the rows, then of the columns.
_SLOTS_BY_SIDE = ("L", "L_basis"), ("R", "R_basis")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SOAPSettings(settings.MatrixSettings):
    """Checks and holds SOAP's arguments, and adds the memory of the matrices' bases to the plan."""

    def sides_of(self, view):
        """Returns which sides of a matrix have a basis: 0 is the rows, 1 the columns.

        Args:
            view: The shape in which the rule sees a variable: that of a matrix, or of a stack of
                matrices whose last two axes are rows and columns.
        """
        hyperparameters, shape = self.hyperparameters, view[-2:]
        return sides_of(
            shape, hyperparameters["max_precond_dim"], hyperparameters["form"].one_sided
        )

    def rule_arguments(self, accelerated):
        """See base class; on an accelerator `form` has "cholesky" as its default of "renewal"."""
        arguments = super().rule_arguments(accelerated)
        if accelerated and arguments["form"].renewal is None:
            arguments["form"] = dataclasses.replace(arguments["form"], renewal="cholesky")
        return arguments

    def checked_plan(self, plan):
        """See base class.

        Raises:
            ValueError: as in the base class, and if no side of a matrix is short enough for a
                basis.
        """
        plan = super().checked_plan(plan)
        treatments = tuple(map(self._with_bases_size, plan.names, plan.treatments))
        return dataclasses.replace(plan, treatments=treatments)

    def _with_bases_size(self, path, treatment):
        """Returns a treatment whose description also says how many bytes its matrix's bases take.

        Raises ValueError if no side of the matrix is short enough for a basis.
        """
        if not treatment.adapt:
            return treatment
        sides, (*heads, rows, columns) = self.sides_of(treatment.view), treatment.view
        if not sides:
            max_side = self.hyperparameters["max_precond_dim"]
            raise ValueError(
                f"{self.name} keeps bases of up to max_precond_dim={max_side:,}, and {path} is a "
                f"matrix of {rows:,} x {columns:,}: put {path!r} into "
                "exclude_from_layer_adaptation, which leaves it to AdamW, or raise "
                f"max_precond_dim to {min(rows, columns):,}."
            )
        byte_count = math.prod(heads) * sum(2 * 4 * (rows, columns)[side] ** 2 for side in sides)
        return dataclasses.replace(
            treatment, description=f"{treatment.description}, {byte_count:,} bytes of bases"
        )


@settings.documented
class SOAP(Layerwise):
    """SOAP, Adam in the eigenbasis of Shampoo's factors for matrices; AdamW for everything else.

    Per matrix, with the layer's inputs as rows and its outputs as columns, at every step:

        m  <- beta_1 m + (1 - beta_1) g
        v  <- beta_2 v + (1 - beta_2) (QL' g QR)^2
        u   = QL ((QL' m QR) / (sqrt(v) + epsilon)) QR'
        w  <- w - learning_rate sqrt(1 - beta_2^s)/(1 - beta_1^s) u
        w  <- w - learning_rate weight_decay w
        L  <- beta_2 L + (1 - beta_2) g g'
        R  <- beta_2 R + (1 - beta_2) g' g

    QL and QR are orthogonal matrices. Their columns approach the eigenvectors of L and R by one
    power iteration every `precondition_frequency` steps, in a branch of the program that other
    steps do not run. With the renewal "cholesky", matrices of different shapes are renewed in
    different steps. The first gradient of a matrix makes L, R, QL and QR, and leaves w, m and v as
    they are; s counts the steps that the matrix has taken since, without those in which it had no
    gradient.

    Matrices, and which of their axes are rows, are recognized as by `Muon`. AdamW updates all other
    variables, such as embeddings, biases, normalizations and what `exclude_from_layer_adaptation`
    matches, at the same learning rate and betas. SOAP's rates are about those of AdamW, too. An
    output layer as wide as a vocabulary has a basis of its short side alone.

    L, R, QL and QR of an r x c matrix take 8 (r^2 + c^2) bytes beside m and v; `tf_lamb.describe`
    shows them. They are always in float32, and so is m of a matrix: rounding to bfloat16 would give
    m components in directions in which gradients have none, and v would divide them by nearly 0. A
    step takes six products of matrices for the update, and two for L and R; with
    `dtypes={"products": "bfloat16"}` these are in bfloat16. QL is renewed by a Householder QR
    decomposition on a CPU, and elsewhere by Cholesky QR in four passes of (L + 1e-4 mean) QL, with
    `mean` the mean eigenvalue of L; QR likewise. If a renewal fails, the basis stays as it was, and
    `kept_bases` counts it. On GPUs and TPUs matrices of one shape are worked on as one array. With
    `shard_update` each device keeps its share of the slots.

    While the gradients so far do not span a side, its basis is not unique, and neither are the
    steps: another version of a library may find another basis.

    On TensorFlow, XLA takes 6 seconds for the first basis of 512 rows on a CPU, and longer for more
    rows. Pass `jit_compile=False` to `compile` (and, with several replicas, to this optimizer), or
    train on JAX. The compiler for TPUs takes minutes for the decomposition of a long side. On TPUs
    pass `max_precond_dim`, exclude matrices whose shorter side is longer than that, and compile one
    step before you train.

    Args:
        learning_rate: A float, a `LearningRateSchedule` or a callable without arguments.
            Defaults to 0.003 (Vyas et al.).
        beta_1: Decay of the first moment, in [0, 1). Defaults to 0.95 (Vyas et al.).
        beta_2: Decay of the second moment and of L and R, in [0, 1). Defaults to 0.95 (Vyas et
            al.).
        epsilon: Added to the root of the second moment. Defaults to 1e-8.
        weight_decay: Decoupled decay, a float or a schedule; None is 0. Defaults to 0.0; Vyas et
            al. have 0.01.
        exclude_from_layer_adaptation: List of regexes of variables that AdamW updates.
            Defaults to None: ["embedding"], without a warning where nothing matches.
        precondition_frequency: Steps between two renewals. Defaults to 10 (Vyas et al.).
        max_precond_dim: The longest side that has a basis. Defaults to 10,000 (Vyas et al.).
        form: Dict of how bases are computed, what a step keeps, and what a matrix is; None is
            {"one_sided": False, "renewal": None, "norm": None, "heads": None}.
            "one_sided": whether the shorter side alone has a basis. "renewal": "qr", of all
            matrices in the same step (Vyas et al.); "cholesky", as above; None is "qr" on a CPU,
            "cholesky" elsewhere.
            "norm": "constant" scales each matrix, or each of its slices, after every step to the
            norm that it had before, and refuses weight decay of matrices. With bounds
            {"trust_ratio": (None, None)}, which make a step learning_rate |w| long, it is Hyperball
            (Wen et al.), except that Hyperball stores the norm of the first weights. Here no norm
            is stored, so any other change of |w| stays: that by averages that replace weights at
            the end of `fit`, or by the rounding of bfloat16 weights without masters. A matrix near
            zero stays near zero. None, the default, lets steps change the norm.
            "heads": "each" makes each head of an attention layer's query, key and value kernel a
            matrix of model x head size with its own bases, as in `Muon`; no published SOAP has it.
            Every head then has an L of model^2 numbers; with "one_sided" it has none if the head
            size is less than model. Each head has its own trust ratio and constant norm. Other
            kernels stay one matrix. None, the default: all heads together are one matrix. A saved
            state can be loaded only with the "heads" that it was saved with.
        bounds: Dict of "trust_ratio" and "weight_norm", each a pair of the smallest and the largest
            value: of the ratio, and of |w| in it. None in a pair is no bound. Any bounds give each
            matrix LAMB's trust ratio: d, which is u with both bias corrections, is multiplied by
            |w|/|d|, within the bounds. Weight decay is not multiplied, and AdamW's variables have
            no ratio. {"trust_ratio": (None, None)} is the ratio without bounds; "slices" in
            `treatments` gives each row or column a ratio. The "u/w floor" of other implementations
            is not this: it bounds |d|/|w|. Defaults to None: no trust ratio.
        {{shared_arguments}}

    Raises:
        ValueError, TypeError: at construction, for a hyper-parameter out of its range, a pattern
            that is no regex, an unknown argument, a constant norm beside averages that overwrite
            weights.
        ValueError: at the first step, if no side of a matrix is short enough for a basis, if
            `treatments` names axes that a variable does not have, if no variable is a matrix, if
            none has the heads that `form` asks for, or if a matrix of constant norm has weight
            decay.

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
        """See base class; a matrix has slots for Shampoo's factors and their bases as well."""
        m, v = super().slots_of(treatment, shape)
        if not treatment.view:
            return [m, v]
        *heads, rows, columns = treatment.view
        shapes: dict[str, tuple[int, ...]] = {}
        for side in self._settings.sides_of(treatment.view):
            shapes |= dict.fromkeys(_SLOTS_BY_SIDE[side], (*heads, *((rows, columns)[side],) * 2))
        shapes |= dict.fromkeys(("kept_bases", "steps"), tuple(heads))
        extra_slots = [Slot(name, shape, dtype="float32") for name, shape in shapes.items()]
        return [m._replace(dtype="float32"), v, *extra_slots]

    @property
    def kept_bases(self) -> int:
        """The number of failed renewals, after which a matrix kept its old bases.

        A renewal fails if the new bases are not finite, or not orthogonal.
        """
        plan = self.plan
        if plan is None or self._storage is None:
            return 0
        matrices = (
            position for position, treatment in enumerate(plan.treatments) if treatment.adapt
        )
        counts = (value_of(self.state_of(position)["kept_bases"]) for position in matrices)
        return sum(int(count.sum()) for count in counts)

    def _warn_at_end(self):
        """Warns, at the end of training, if new eigenbases could not be used.

        A new basis is not used if it is not finite and orthogonal. The matrix then keeps its old
        basis.
        """
        if count := self.kept_bases:
            warn(
                f"{self.name}: {count:,} times the bases of a matrix did not come out finite and "
                "orthogonal, and stayed as they were. Look for weights that are not finite, or for "
                "gradients beyond 1e9: on_nonfinite='skip' and clipping keep both out. Else take "
                "form={'renewal': 'qr'}."
            )
