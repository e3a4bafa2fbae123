"""Defines the classes of recipes, which hold and print the hyper-parameters for a batch size."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from tf_lamb import core
from tf_lamb.core import checks, rules
from tf_lamb.core.messages import warn
from tf_lamb.core.patterns import PRESETS

# The fields of a `Recipe` that are arguments of an optimizer.
ARGUMENTS = (
    "weight_decay", "exclude_from_weight_decay", "exclude_from_layer_adaptation", "beta_1",
    "beta_2", "epsilon", "momentum", "nesterov", "trust_coefficient", "global_clipnorm",
    "ema_momentum",
)  # fmt: skip


def check_recipe(value: Any) -> "Recipe | StagedRecipe":
    """Returns `value` if it is a recipe.

    Raises:
        TypeError: if it is not. The message names the functions that make recipes.
    """
    if isinstance(value, Recipe | StagedRecipe):
        return value
    raise TypeError(
        "A recipe is what tf_lamb.recipes makes for a batch size, such as "
        f'tf_lamb.recipes.published("untuned_lamb_bert", 32768), and not {value!r}. There are '
        "scale, transfer, growing and published."
    )


def micro_batches(batch_size: int, largest_micro_batch: int) -> int:
    """Returns the smallest number of equal micro-batches of at most `largest_micro_batch` examples.

    Args:
        batch_size: The batch to split, in examples.
        largest_micro_batch: The largest micro-batch, in examples.
    """
    fewest = -(-batch_size // largest_micro_batch)
    return next(count for count in range(fewest, batch_size + 1) if batch_size % count == 0)


def _constructor_hint(recipe) -> str:
    """Returns the code with which a user makes the optimizer of a recipe, such as LAMB.from_recipe.

    For Keras's SGD, the code sets weight decay as an L2 penalty in the layers.
    """
    if recipe.optimizer in rules.ALL:
        return f"{recipe.optimizer}.from_recipe(...)"
    is_sgd = recipe.optimizer == "SGD"
    names = ("momentum", "nesterov") if is_sgd else ("beta_2", "weight_decay")
    arguments = [(name, value) for name in names if (value := getattr(recipe, name)) is not None]
    if recipe.ema_momentum is not None:
        arguments += [("use_ema", True), ("ema_momentum", recipe.ema_momentum)]
    keywords = "".join(f", {name}={_value_text(value)}" for name, value in arguments)
    call = f"keras.optimizers.{recipe.optimizer}(recipe.schedule(){keywords})"
    if is_sgd and recipe.weight_decay:
        penalty = f"keras.regularizers.L2({recipe.weight_decay / 2:g})"
        return f"{call}, and for its weight decay kernel_regularizer={penalty} in the layers"
    return call


class AnyRecipe:
    """Base class of `Recipe` and `StagedRecipe`, with the methods that both classes share."""

    def schedule(self: Any, schedules: Any = None) -> Any:
        """Returns the learning-rate schedule, for any optimizer of Keras.

        Args:
            schedules: The module whose class the schedule shall have: `tf_lamb.keras.schedules` for
                Keras 3, `tf_lamb.tf_keras.schedules` for tf_keras, or `tf_lamb.core.schedules` for
                a schedule that needs neither. Defaults to None: the module for the Keras that
                `tf.keras` is, Keras 3 or tf_keras.

        Example:
            >>> from tf_lamb.core import recipes, schedules
            >>> recipes.published("linear_resnet50_sgd", 8192).schedule(schedules).steps
            782
        """
        return self._schedule_from(
            core.provided_module("schedules") if schedules is None else schedules
        )

    def arguments(self: Any, optimizer: str) -> dict[str, Any]:
        """Returns the arguments of an optimizer that the recipe sets, except the learning rate.

        Args:
            optimizer: The name of the optimizer, such as "LAMB".

        Returns:
            Argument name -> value, without those that the recipe leaves at None.

        Raises:
            ValueError: if the recipe is for another optimizer, or its stages differ in an argument.
        """
        stage_arguments = []
        for stage in self.stages:
            if stage.optimizer not in (None, optimizer):
                raise ValueError(
                    f"{stage.title} is a recipe for {stage.optimizer}, not for {optimizer}: "
                    f"write {_constructor_hint(stage)}."
                )
            settings = {name: getattr(stage, name) for name in ARGUMENTS}
            stage_arguments.append(
                {name: value for name, value in settings.items() if value is not None}
            )
            if stage_arguments[-1] != stage_arguments[0]:
                raise ValueError(
                    f"The stages of {self.title} need optimizers of their own: {stage.title} has "
                    f"{stage_arguments[-1]}, the first stage {stage_arguments[0]}. Make one "
                    "optimizer for each stage."
                )
        return stage_arguments[0]

    def plot(self, *others: "AnyRecipe", over: str = "steps", ax: Any = None) -> Any:
        """Draws the learning rate, and that of other recipes in the same figure.

        If one has more than 20 times the steps (or examples) of another, the horizontal axis is
        logarithmic.

        Args:
            *others: Recipes to compare with, for example for other batch sizes.
            over: The horizontal axis: "steps" of the optimizer or "examples" seen. Defaults to
                "steps".
            ax: The matplotlib `Axes` to draw into. Defaults to None: that of a new figure.

        Returns:
            The matplotlib `Axes`.

        Raises:
            ValueError: if `over` is neither "steps" nor "examples".
            TypeError: if `others` contains anything except recipes.
            ModuleNotFoundError: if matplotlib is not installed.

        Example:
            >>> from tf_lamb.core.recipes import published
            >>> small, large = (published("untuned_lamb_bert", batch) for batch in (512, 32768))
            >>> ax = large.plot(small)
            >>> [line.get_label() for line in ax.lines]
            ['batch 32,768', 'batch 512']
        """
        return core.provided_module("plots").recipes(self, *others, over=over, ax=ax)

    def _repr_html_(self) -> str:
        """Returns what a notebook shows: text, and the plot if matplotlib is installed."""
        return core.provided_module("plots").notebook_html(self)


def _patterns_text(patterns):
    """Describes a list of patterns in words, for the printed recipe.

    The patterns are those of variables that are excluded from weight decay or from layer
    adaptation. A regex becomes "where a name matches 'bias'", a preset "for norm_and_bias".
    """
    return " or ".join(
        f"for {pattern}" if pattern in PRESETS else f"where a name matches {pattern!r}"
        for pattern in patterns
    )


def _value_text(value) -> str:
    """Formats a value. A float is rounded to six significant digits."""
    return str(float(f"{value:.6g}") if isinstance(value, float) else value)


def batch_label(recipe) -> str:
    """Formats the batch sizes of the stages of a recipe, such as "batch 512, then 1,024"."""
    sizes = dict.fromkeys(stage.batch_size for stage in recipe.stages)
    return "batch " + ", then ".join(f"{size:,}" for size in sizes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe(AnyRecipe):
    """Hyperparameters for one batch size, and the arithmetic that made them.

    The learning rate at step s = 0, 1, ..., with W = `warmup_steps` and T = `train_steps`:

        s < W:   initial + (learning_rate - initial) s/W
        s >= W:  end + (learning_rate - end) (1 - p)^power            polynomial
                 learning_rate decay_rate^(boundaries <= s)           multi_step
                 learning_rate                                        constant

    where (boundaries <= s) is the number of `boundaries` up to s; p = (s - W)/(T - W) if `handover`
    is "continuous", and p = s/T if it is "drop", so that the rate falls when warmup ends. If
    `decay_steps` is set, it replaces the divisor T - W, or T, because the decay then goes on after
    this stage of a training. A field that is None was not given by the source. The argument of the
    optimizer then keeps its default.

    Attributes:
        title: The name of the recipe.
        batch_size: The number of examples in one optimizer step, over all replicas and
            micro-batches.
        learning_rate: The peak of the learning rate.
        warmup_steps: Optimizer steps of linear warmup; 0 for none.
        train_steps: All optimizer steps, warmup included.
        arithmetic: The calculation of the numbers above, one line each. Defaults to none.
        source: Where the numbers are from. Defaults to an empty string.
        optimizer: The name of the optimizer, such as "LAMB". Defaults to None: that of the
            baseline.
        model: The name of the model, such as "BERT". Defaults to an empty string: any model.
        initial_learning_rate: The rate at step 0 if there is warmup. Defaults to 0.0.
        end_learning_rate: The rate that a polynomial decay reaches at its end, one step past the
            last one. Defaults to 0.0.
        decay: "polynomial", "multi_step" or "constant". Defaults to "polynomial".
        power: The power of a polynomial decay. Defaults to 1.0, which is linear.
        boundaries: The steps, counted from 0, at which a multi-step decay multiplies the rate by
            `decay_rate`. Defaults to none.
        decay_rate: The factor at each boundary. Defaults to 1.0.
        decay_steps: The length of the decay in steps, for a stage of a training whose decay goes on
            after the stage. Defaults to None: the decay ends with training.
        handover: "continuous" or "drop", as above. Defaults to "continuous".
        weight_decay: The optimizer's argument of that name. Defaults to None, like all that follow.
        exclude_from_weight_decay: The optimizer's argument of that name: patterns of variables.
        exclude_from_layer_adaptation: The optimizer's argument of that name: patterns of variables.
            None: the same as for weight decay.
        beta_1: The optimizer's argument of that name.
        beta_2: The optimizer's argument of that name.
        epsilon: The optimizer's argument of that name.
        momentum: The optimizer's argument of that name.
        nesterov: The optimizer's argument of that name.
        trust_coefficient: The optimizer's argument of that name, for LARS.
        global_clipnorm: The optimizer's argument of that name.
        label_smoothing: The label smoothing of the loss.
        batch_norm_span: Examples that share one statistic of batch normalization.
        batch_norm_momentum: The momentum of the running averages of batch normalization.
        ema_momentum: The optimizer's argument of that name.
        sequence_length: The length of a sequence, in tokens.
        examples: The number of examples of the training set, if steps were computed from epochs.
        epochs: The length of training in epochs, if steps were computed from epochs.
        warmup_epochs: The length of warmup in epochs, if steps were computed from epochs.

    Raises:
        TypeError: if one of the arguments that set the batch, the steps or the learning rate is not
            a number. The optimizer checks its own arguments.
        ValueError: if one of these numbers is out of range, if "multi_step" has no boundaries, or
            if warmup is longer than training.
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
    decay_steps: int | None = None
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
    batch_norm_momentum: float | None = None
    ema_momentum: float | None = None
    sequence_length: int | None = None
    examples: int | None = None
    epochs: float | None = None
    warmup_epochs: float | None = None

    def __post_init__(self):
        for name, minimum in (("batch_size", 1), ("train_steps", 1), ("warmup_steps", 0)):
            object.__setattr__(self, name, checks.integer(name, getattr(self, name), minimum))
        for name, interval in (
            ("learning_rate", "(0, inf)"), ("initial_learning_rate", "[0, inf)"),
            ("end_learning_rate", "[0, inf)"), ("power", "[0, inf)"), ("decay_rate", "(0, inf)"),
        ):  # fmt: skip
            object.__setattr__(self, name, checks.number(name, getattr(self, name), interval))
        if self.decay_steps is not None:
            checks.integer("decay_steps", self.decay_steps)
        if self.examples is not None:
            examples = checks.integer("examples", self.examples, maximum=math.inf)
            object.__setattr__(self, "examples", examples)
        for name in ("decay", "handover"):
            checks.choice(name, getattr(self, name))
        if self.decay == "multi_step" and not self.boundaries:
            raise ValueError("decay='multi_step' needs boundaries, the steps at which to decay.")
        if self.warmup_steps > self.train_steps:
            raise ValueError(
                f"{self.title}: warmup is longer than training, {self.warmup_steps:,} > "
                f"{self.train_steps:,} steps. Train for longer, or take a smaller batch or a "
                "shorter warmup." + "".join(f"\n  {line}" for line in self.arithmetic)
            )
        if 2 * self.warmup_steps > self.train_steps and self.decay_steps is None:
            warn(
                f"{self.title}: warmup takes {self.warmup_steps:,} of {self.train_steps:,} steps, "
                "so that most of training is below the learning rate that it leads to. Train for "
                "longer, or take a smaller batch."
            )

    @property
    def stages(self) -> tuple["Recipe", ...]:
        """A tuple of this recipe only, so that code can loop over the stages of any recipe."""
        return (self,)

    def _schedule_from(self, schedules) -> Any:
        """Returns the learning-rate schedule, an instance of a class in the module `schedules`."""
        peak, warmup, handover = self.learning_rate, self.warmup_steps, self.handover
        decay_schedule: Any
        if self.decay == "multi_step":
            rates = [peak * self.decay_rate**i for i in range(len(self.boundaries) + 1)]
            # "drop", because boundaries count from step 0 and not from the end of warmup.
            decay_schedule, handover = schedules._MultiStep(self.boundaries, rates), "drop"
        elif self.decay == "constant" or warmup == self.train_steps:
            decay_schedule = schedules._Constant(peak)
        else:
            steps_to_end = self.train_steps - (warmup if handover == "continuous" else 0)
            steps = self.decay_steps or steps_to_end
            decay_schedule = schedules._Polynomial(peak, steps, self.end_learning_rate, self.power)
        if not warmup:
            return decay_schedule
        start = self.initial_learning_rate
        return schedules.Warmup(warmup, decay_schedule, start=start, handover=handover)

    @property
    def examples_seen(self) -> int:
        """The examples in all of training: steps x batch; a smaller last batch counts in full."""
        return self.train_steps * self.batch_size

    def __str__(self):
        lines = [*self.arithmetic, self._decay_line(), *self.settings()]
        lines.append(
            f"examples = {self.train_steps:,} steps x {self.batch_size:,} = {self.examples_seen:,}"
        )
        length_text = f", sequence length {self.sequence_length}" if self.sequence_length else ""
        headline = (
            f"{self.title}: {self.optimizer or 'your optimizer'} at batch {self.batch_size:,}"
        )
        return "\n  ".join([headline + length_text, *lines, f"source: {self.source}"])

    def settings(self) -> list[str]:
        """Returns the lines of the printed recipe with the arguments of optimizer and layers."""
        lines = []
        if self.weight_decay is not None:
            excluded = _patterns_text(self.exclude_from_weight_decay or ())
            exception_text = f", but not {excluded}" if excluded else ""
            lines.append(f"weight decay = {self.weight_decay:g}{exception_text}")
        elif self.optimizer in (None, "SGD"):
            lines.append("weight decay and exclusions: the baseline's, not set by this recipe")
        if (patterns := self.exclude_from_layer_adaptation) is not None:
            exception_text = f", but not {_patterns_text(patterns)}" if patterns else ""
            lines.append(f"layer adaptation everywhere{exception_text}")
        names = (
            "beta_1", "beta_2", "epsilon", "momentum", "nesterov", "trust_coefficient",
            "global_clipnorm", "ema_momentum", "label_smoothing", "batch_norm_span",
            "batch_norm_momentum",
        )  # fmt: skip
        setting_texts = [
            f"{name}={_value_text(getattr(self, name))}"
            for name in names
            if getattr(self, name) is not None
        ]
        if setting_texts:
            lines.append("with " + ", ".join(setting_texts))
        return lines

    def _decay_line(self) -> str:
        """Returns the line of the printed recipe that describes the decay after warmup."""
        if self.decay == "constant":
            return "then constant"
        if self.decay == "multi_step":
            steps_text = ", ".join(f"{step:,}" for step in self.boundaries)
            return f"then x {self.decay_rate:g} at steps {steps_text}"
        shape_text = f"polynomial, power {self.power:g}, to {self.end_learning_rate:g}"
        if self.handover == "continuous" or not self.warmup_steps:
            decay_end = self.warmup_steps + (self.decay_steps or 0)
            end_step = self.train_steps if self.decay_steps is None else decay_end
            return f"then {shape_text} at step {end_step:,}"
        return (
            f"then {shape_text} at step {self.decay_steps or self.train_steps:,}, counted from "
            "step 0: the rate drops as warmup ends"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagedRecipe(AnyRecipe):
    """Recipes for successive stages of training, each counted from its own step 0.

    Attributes:
        title: The name of the recipe.
        stages: One recipe per stage, in order; iteration over this object yields them.
        arithmetic: The calculation of the numbers of all stages, one line each. Defaults to none.
        source: Where the numbers are from. Defaults to an empty string.
    """

    title: str
    stages: tuple[Recipe, ...]
    arithmetic: tuple[str, ...] = ()
    source: str = ""

    @property
    def train_steps(self) -> int:
        """The optimizer steps of all stages."""
        return sum(stage.train_steps for stage in self.stages)

    @property
    def examples_seen(self) -> int:
        """The examples in all of training."""
        return sum(stage.examples_seen for stage in self.stages)

    def accumulation(self, micro_batch_size: int) -> dict[int, int]:
        """Returns `gradient_accumulation_steps` for the optimizer, given the largest micro-batch.

        In each stage, a batch is split into equal micro-batches, and into no fewer of them than in
        the stage before.

        Args:
            micro_batch_size: The largest micro-batch, in examples.

        Returns:
            Optimizer step -> the number of micro-batches of each step from this one on.

        Example:
            >>> from tf_lamb.core.recipes import growing, scale
            >>> recipe = scale(1024, 256, 1e-3, 0, examples=65536, epochs=10)
            >>> growing(recipe, 4096).accumulation(1024)
            {0: 1, 320: 2, 400: 4}
        """
        largest_micro_batch = checks.integer("micro_batch_size", micro_batch_size)
        counts: dict[int, int] = {}
        first_step = previous_count = 0
        for stage in self.stages:
            batch_size = stage.batch_size
            count = micro_batches(
                batch_size, min(largest_micro_batch, max(1, batch_size // max(previous_count, 1)))
            )
            if count != previous_count:
                counts[first_step] = previous_count = count
            first_step += stage.train_steps
        return counts

    def _schedule_from(self, schedules) -> Any:
        """Returns the learning-rate schedule, an instance of a class in the module `schedules`."""
        lengths = [stage.train_steps for stage in self.stages]
        return schedules.Stages(lengths, [stage._schedule_from(schedules) for stage in self.stages])

    def __iter__(self) -> Iterator[Recipe]:
        return iter(self.stages)

    def __str__(self):
        steps_text = " + ".join(f"{stage.train_steps:,}" for stage in self.stages)
        head_lines = [f"{self.title}: {steps_text} = {self.train_steps:,} steps", *self.arithmetic]
        summary = "\n  ".join([*head_lines, f"source: {self.source}"])
        # A stage with an empty `arithmetic` is not printed, because `self.arithmetic` covers it.
        return "\n".join([summary, *(str(stage) for stage in self.stages if stage.arithmetic)])
