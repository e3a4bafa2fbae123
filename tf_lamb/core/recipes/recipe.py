"""What a recipe is, and how it prints."""

import dataclasses
from collections.abc import Iterator

from tf_lamb.core import checks
from tf_lamb.core.messages import warn
from tf_lamb.core.patterns import PRESETS
from tf_lamb.core.recipes.arithmetic import positive, whole
from tf_lamb.core.recipes.picture import Drawable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe(Drawable):
    """Hyperparameters for one batch size, and the arithmetic that made them.

    The learning rate at step s = 0, 1, ..., with W = `warmup_steps` and T = `train_steps`:

        s < W:   initial + (learning_rate - initial) s/W
        s >= W:  end + (learning_rate - end) (1 - p)^power            polynomial
                 learning_rate decay_rate^(boundaries <= s)           multi_step
                 learning_rate                                        constant

    where p = (s - W)/(T - W) if `handover` is "continuous", and p = s/T if it is "drop": then the
    rate falls as warmup ends, because decay has counted from step 0. None means that the source
    does not say, so that the baseline's own value, or the optimizer's default, stays.

    Attributes:
        title: What this is a recipe for.
        batch_size: Examples in one optimizer step, over all replicas and micro-batches.
        learning_rate: The peak.
        warmup_steps: Optimizer steps of linear warmup.
        train_steps: Optimizer steps in all, warmup included.
        arithmetic: How the numbers above came about, a line each.
        source: Where they come from.
        optimizer: The name of the optimizer, such as "LAMB"; None is the baseline's own.
        model: The model that the recipe was made for; an empty string is any.
        initial_learning_rate: The rate at step 0 where there is warmup.
        end_learning_rate: The rate at the last step of a polynomial decay.
        decay: "polynomial", "multi_step" or "constant".
        power: Of a polynomial decay.
        boundaries: The steps at which a multi-step decay multiplies the rate by `decay_rate`.
        decay_rate: That factor.
        handover: "continuous" or "drop", as above.
        weight_decay, exclude_from_weight_decay, exclude_from_layer_adaptation, beta_1, beta_2,
        epsilon, momentum, nesterov, trust_coefficient, global_clipnorm: The optimizer's arguments
            of that name. `exclude_from_layer_adaptation=None`: as for weight decay.
        label_smoothing: Of the loss.
        batch_norm_span: Examples that share one batch-norm statistic.
        sequence_length: In tokens.
        examples: The size of the training set, where steps were counted in epochs.
        epochs: Passes over it.
        warmup_epochs: Warmup before it was rounded to steps.

    Raises:
        ValueError: where a number is out of range, or warmup is longer than training.
    """

    title: str
    batch_size: int
    learning_rate: float
    warmup_steps: int
    train_steps: int
    arithmetic: tuple[str, ...] = ()
    source: str = ""
    optimizer: str | None = None
    model: str = ""
    initial_learning_rate: float = 0.0
    end_learning_rate: float = 0.0
    decay: str = "polynomial"
    power: float = 1.0
    boundaries: tuple[int, ...] = ()
    decay_rate: float = 1.0
    handover: str = "continuous"
    weight_decay: float | None = None
    exclude_from_weight_decay: tuple[str, ...] | None = None
    exclude_from_layer_adaptation: tuple[str, ...] | None = None
    beta_1: float | None = None
    beta_2: float | None = None
    epsilon: float | None = None
    momentum: float | None = None
    nesterov: bool | None = None
    trust_coefficient: float | None = None
    global_clipnorm: float | None = None
    label_smoothing: float | None = None
    batch_norm_span: int | None = None
    sequence_length: int | None = None
    examples: int | None = None
    epochs: float | None = None
    warmup_epochs: float | None = None

    def __post_init__(self):
        for name, least in (("batch_size", 1), ("train_steps", 1), ("warmup_steps", 0)):
            object.__setattr__(self, name, whole(name, getattr(self, name), least))
        object.__setattr__(self, "learning_rate", positive("learning_rate", self.learning_rate))
        if self.examples is not None:
            object.__setattr__(self, "examples", whole("examples", self.examples))
        for name in ("decay", "handover"):
            checks.choice(name, getattr(self, name))
        if self.decay == "multi_step" and not self.boundaries:
            raise ValueError("decay='multi_step' needs boundaries, the steps at which to decay.")
        if self.warmup_steps > self.train_steps:
            raise ValueError(
                f"{self.title}: warmup is longer than training, {self.warmup_steps:,} > "
                f"{self.train_steps:,} steps ({'; '.join(self.arithmetic)}). Train for longer, or "
                "take a smaller batch."
            )
        if 2 * self.warmup_steps > self.train_steps:
            warn(
                f"{self.title}: warmup takes {self.warmup_steps:,} of {self.train_steps:,} steps, "
                "so that most of training is below the learning rate that it leads to. Train for "
                "longer, or take a smaller batch."
            )

    @property
    def stages(self) -> tuple["Recipe", ...]:
        """This recipe alone, as a `StagedRecipe` has several."""
        return (self,)

    @property
    def examples_seen(self) -> int:
        """Examples in all of training: steps times batch, the short last one of an epoch too."""
        return self.train_steps * self.batch_size

    def __str__(self):
        lines = [*self.arithmetic, self._decay_line()]
        if self.weight_decay is not None:
            excluded = " or ".join(
                f"for {pattern}" if pattern in PRESETS else f"where a name matches {pattern!r}"
                for pattern in self.exclude_from_weight_decay or ()
            )
            but = f", but not {excluded}" if excluded else ""
            lines.append(f"weight decay = {self.weight_decay:g}{but}")
        names = (
            "beta_1", "beta_2", "epsilon", "momentum", "nesterov", "trust_coefficient",
            "global_clipnorm", "label_smoothing", "batch_norm_span",
        )  # fmt: skip
        given = [f"{n}={getattr(self, n)}" for n in names if getattr(self, n) is not None]
        if given:
            lines.append("with " + ", ".join(given))
        lines.append(
            f"examples = {self.train_steps:,} steps x {self.batch_size:,} = {self.examples_seen:,}"
        )
        length = f", sequence length {self.sequence_length}" if self.sequence_length else ""
        head = f"{self.title}: {self.optimizer or 'your optimizer'} at batch {self.batch_size:,}"
        return "\n  ".join([head + length, *lines, f"source: {self.source}"])

    def _decay_line(self) -> str:
        if self.decay == "constant":
            return "then constant"
        if self.decay == "multi_step":
            steps = ", ".join(f"{step:,}" for step in self.boundaries)
            return f"then x {self.decay_rate:g} at steps {steps}"
        shape = f"polynomial, power {self.power:g}, to {self.end_learning_rate:g}"
        if self.handover == "continuous" or not self.warmup_steps:
            return f"then {shape} at step {self.train_steps:,}"
        return (
            f"then {shape} at step {self.train_steps:,}, counted from step 0: the rate drops as "
            "warmup ends"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagedRecipe(Drawable):
    """Recipes that are trained one after the other, each warmed up again from its own step 0.

    Attributes:
        title: What this is a recipe for.
        stages: One recipe each, in order; iterating over this object gives them.
        arithmetic: What holds for all of them, a line each.
        source: Where the numbers come from.
    """

    title: str
    stages: tuple[Recipe, ...]
    arithmetic: tuple[str, ...] = ()
    source: str = ""

    @property
    def train_steps(self) -> int:
        """Optimizer steps of all stages."""
        return sum(stage.train_steps for stage in self.stages)

    @property
    def examples_seen(self) -> int:
        """Examples in all of training."""
        return sum(stage.examples_seen for stage in self.stages)

    def __iter__(self) -> Iterator[Recipe]:
        return iter(self.stages)

    def __str__(self):
        sums = " + ".join(f"{stage.train_steps:,}" for stage in self.stages)
        head = [f"{self.title}: {sums} = {self.train_steps:,} steps", *self.arithmetic]
        return "\n".join(["\n  ".join([*head, f"source: {self.source}"]), *map(str, self.stages)])
