"""The arguments that the optimizers share in Keras 3 and tf_keras: their checks and their docs."""

import ctypes
import dataclasses
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypedDict, TypeVar

from tf_lamb.api.keras_schedules import check_host
from tf_lamb.api.optimizers import arguments
from tf_lamb.core import checks, layouts
from tf_lamb.core.accumulation import Stages
from tf_lamb.core.plan import Plan

# The types of the constructors' arguments. A schedule is a callable in Keras 3 and in tf_keras.
LearningRate = float | Callable[..., Any]
WeightDecay = float | Callable[..., Any] | None
Patterns = Sequence[str] | str | None
Treatments = Mapping[str, Mapping[str, Any]] | None
Bounds = Mapping[str, Sequence[float | None] | None] | None
Dtypes = Mapping[str, str | None] | None
Form = Mapping[str, str | float | Sequence | None] | None
Accumulation = int | Mapping[int, int] | None
Spikes = Sequence[float] | str | None


class Shared(TypedDict, total=False):
    """The arguments that every constructor takes by keyword alone, with their types.

    Their defaults are in `DEFAULTS`. `_SHARED_DOCS` in this module describes them.
    """

    treatments: Treatments
    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    use_ema: bool
    ema_momentum: float
    ema_overwrite_frequency: int | None
    loss_scale_factor: float | None
    gradient_accumulation_steps: Accumulation
    dtypes: Dtypes
    shard_update: bool
    on_nonfinite: str
    on_spike: Spikes
    jit_compile: bool


DEFAULTS: Shared = {
    "treatments": None,
    "clipnorm": None,
    "clipvalue": None,
    "global_clipnorm": None,
    "use_ema": False,
    "ema_momentum": 0.99,
    "ema_overwrite_frequency": None,
    "loss_scale_factor": None,
    "gradient_accumulation_steps": None,
    "dtypes": None,
    "shard_update": False,
    "on_nonfinite": "skip",
    "on_spike": None,
    "jit_compile": True,
}


def shared_parameters() -> list[inspect.Parameter]:
    """Returns the arguments in `Shared` as parameters with their types and defaults."""
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Shared.__annotations__[name],
        )
        for name, default in DEFAULTS.items()
    ]


_CLIPPING_ARGUMENTS = ("clipnorm", "clipvalue", "global_clipnorm")
_OPTIONAL_CHECKS: dict[str, Callable] = {
    **dict.fromkeys((*_CLIPPING_ARGUMENTS, "loss_scale_factor"), checks.number),
    "ema_overwrite_frequency": checks.integer,
    "gradient_accumulation_steps": checks.accumulation,
}
# Keras stores these arguments as attributes of the optimizer, and reads them in each step, so a
# user may change them later. tf_keras does not have `loss_scale_factor`.
HOST_ARGUMENTS = (
    *_CLIPPING_ARGUMENTS, "use_ema", "ema_momentum", "ema_overwrite_frequency", "loss_scale_factor",
)  # fmt: skip
EXCLUSIONS = ("exclude_from_weight_decay", "exclude_from_layer_adaptation")


def constructor_arguments(constructor: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all arguments of a constructor by name, given its `locals()`.

    Args:
        constructor: The local variables of the constructor. `shared` among them has those
            arguments of `Shared` that were passed; the others get their defaults.
    """
    no_arguments = ("self", "__class__", "shared")
    arguments = {name: value for name, value in constructor.items() if name not in no_arguments}
    return {**DEFAULTS, **arguments, **constructor.get("shared", {})}


def _explicit_signature(constructor: Callable) -> inspect.Signature:
    """Returns the signature of a constructor, with the arguments of `Shared` spelt out.

    They take the place of `**shared`, which stands for them in the code, so that `help()` shows
    them.
    """
    signature = inspect.signature(constructor)
    *explicit, last = signature.parameters.values()
    if last.kind is not last.VAR_KEYWORD:
        return signature
    *explicit, name = explicit  # `name` has to stay the last argument
    return signature.replace(parameters=[*explicit, *shared_parameters(), name])


@dataclasses.dataclass(frozen=True)
class StateDtypes:
    """Holds the argument `dtypes`: the dtypes of the arrays that are kept for each variable.

    Attributes:
        slots: "float32" or "bfloat16", the dtype of the slots of the rule. Defaults to "float32".
        masters: "float32" if half-precision variables have a master copy, else None, the default.
    """

    slots: str = "float32"
    masters: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Checks and holds the constructor's arguments, except the learning rate.

    The constructor takes all arguments by keyword, and raises TypeError or ValueError for one that
    is not valid. Each field has the value that its check returns: patterns are tuples, stages of
    accumulation are sorted, and so on. `_SHARED_DOCS` in this module describes each argument.

    Attributes:
        keys: The keys that this optimizer's `treatments` may have.
        layout: The function that decides in which shape the rule sees a variable; see
            `core/layouts.py`.
        dtypes_class: The dataclass whose fields are the keys that `dtypes` may have.
        default_exclusions: The patterns to use if `exclude_from_layer_adaptation` is None. If this
            is None, too, those of `exclude_from_weight_decay` are used.
        hyperparameters: The arguments that belong to the rule, by name.
    """

    keys: ClassVar[tuple[str, ...]] = ("rate",)
    layout = staticmethod(layouts.slices)
    dtypes_class: ClassVar[type] = StateDtypes
    default_exclusions: ClassVar[tuple[str, ...] | None] = None

    hyperparameters: Mapping[str, Any]
    weight_decay: float | Callable[..., Any]
    exclude_from_weight_decay: tuple[str, ...] | None
    exclude_from_layer_adaptation: tuple[str, ...] | None
    treatments: Mapping[str, Mapping[str, Any]] | None
    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    use_ema: bool
    ema_momentum: float
    ema_overwrite_frequency: int | None
    loss_scale_factor: float | None
    gradient_accumulation_steps: int | Stages | None
    dtypes: Any
    shard_update: bool
    on_nonfinite: str
    on_spike: tuple[int, float] | None
    jit_compile: bool
    name: str | None

    def __post_init__(self):
        self._freeze(
            dtypes=checks.hyperparameter("dtypes", self.dtypes, self.dtypes_class),
            treatments=checks.treatments("treatments", self.treatments, self.keys),
            ema_momentum=checks.number("ema_momentum", self.ema_momentum),
            **{name: checks.patterns(name, getattr(self, name)) for name in EXCLUSIONS},
        )
        for name, check in _OPTIONAL_CHECKS.items():
            if (value := getattr(self, name)) is not None:
                self._freeze(**{name: check(name, value)})
        checks.at_most_one({name: getattr(self, name) for name in _CLIPPING_ARGUMENTS})
        for name in ("use_ema", "shard_update", "jit_compile"):
            checks.flag(name, getattr(self, name))
        checks.choice("on_nonfinite", self.on_nonfinite)
        self._freeze(on_spike=checks.spikes("on_spike", self.on_spike))
        if self.on_spike and self.on_nonfinite == "propagate":
            raise ValueError(
                f"on_spike={self.on_spike} looks at every gradient, and on_nonfinite='propagate' "
                "at none: a NaN is above no mean. Leave one of the two out."
            )
        if self.name is not None:
            checks.text("name", self.name)

    def _freeze(self, **values):
        """Sets fields of this object, although its dataclass is frozen.

        The constructor does so to store the values that its checks return.
        """
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def has_ratio(self) -> bool:
        """Whether the optimizer has trust ratios, given that its update rule can have them."""
        return True

    @property
    def keeps_norm(self) -> bool:
        """Whether a step leaves the norm of every matrix as it is.

        Only Muon and SOAP can do so, with `form={"norm": "constant"}`.
        """
        return False

    def config(self) -> dict[str, Any]:
        """Returns the arguments by name, in types that JSON has, for `get_config`."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        arguments = {**fields.pop("hyperparameters"), **fields}
        return {name: _as_json(value) for name, value in arguments.items()}

    def clipping_arguments(self) -> dict[str, float | None]:
        """Returns the arguments that clip gradients, by name."""
        return {name: getattr(self, name) for name in _CLIPPING_ARGUMENTS}

    def host_arguments(self) -> dict[str, Any]:
        """Returns the arguments for the constructor of Keras's base class, by name."""
        names = ("name", "weight_decay", "use_ema", "ema_momentum", "ema_overwrite_frequency")
        return {name: getattr(self, name) for name in names} | self.clipping_arguments()

    def rule_arguments(self, accelerated: bool) -> dict[str, Any]:
        """Returns the arguments that the rule takes in every step, by name.

        Args:
            accelerated: Whether the step runs on an accelerator, and not on a CPU.
        """
        return dict(self.hyperparameters)

    def fixed_arguments(self) -> set[str]:
        """Returns the names of the arguments that are read once, when the optimizer is made."""
        return {*vars(self), *self.hyperparameters} - {*HOST_ARGUMENTS, "name", "jit_compile"}

    def checked_plan(self, plan: Plan) -> Plan:
        """Returns the plan, to which a subclass may add text for `describe`.

        Raises:
            ValueError: in a subclass, if the plan contradicts the settings or changes nothing.
        """
        return plan

    def plan_arguments(self) -> dict[str, Any]:
        """Returns the keyword arguments of `core.plan.plan_for` that the settings decide."""
        decay = None if callable(self.weight_decay) else self.weight_decay
        names = (*EXCLUSIONS, "treatments", "layout")
        return {"weight_decay": decay, **{name: getattr(self, name) for name in names}}


class RatioSettings(Settings):
    """Checks and holds the arguments of optimizers with a trust ratio.

    In `treatments` the user may give slices of a variable a ratio each ("slices"), or variables of
    a Keras layer one ratio ("join").
    """

    keys = ("rate", "slices", "join")


@dataclasses.dataclass(frozen=True)
class _MatrixDtypes(StateDtypes):
    """Holds the argument `dtypes` of Muon and SOAP.

    Attributes:
        products: The dtype of matrix products, "float32" or "bfloat16". Defaults to None: on an
            accelerator the choice of the optimizer's authors, on a CPU the dtype of the step.
    """

    products: str | None = None


class MatrixSettings(Settings):
    """Checks and holds the arguments of Muon and SOAP, which update matrices in their own way.

    By default embeddings do not count as matrices.

    Attributes:
        authors_product_dtype: The dtype of matrix products on an accelerator, unless the user
            chooses it.
    """

    keys = ("rate", "rows", "slices", "heads")
    dtypes_class = _MatrixDtypes
    default_exclusions = ("embedding",)
    authors_product_dtype: ClassVar[str] = "float32"

    def __post_init__(self):
        super().__post_init__()
        sliced_patterns = [
            key for key, entry in (self.treatments or {}).items() if "slices" in entry
        ]
        if sliced_patterns and not (self.has_ratio or self.keeps_norm):
            raise ValueError(
                f"treatments[{sliced_patterns[0]!r}] asks for slices, each of which has a trust "
                "ratio or a norm of its own, and there is neither: give bounds, such as "
                "{'trust_ratio': (None, None)}, or form={'norm': 'constant'}, or leave the slices "
                "out."
            )
        if self.keeps_norm and self.use_ema and self.ema_overwrite_frequency:
            raise ValueError(
                "form={'norm': 'constant'} keeps matrices as long as they are, and every "
                f"{self.ema_overwrite_frequency} steps (ema_overwrite_frequency) an average, which "
                "is shorter than what it averages, would replace them: leave one of the two out."
            )

    @property
    def has_ratio(self):
        """See base class; here any `bounds`, even a pair of None, turn the trust ratio on."""
        return self.hyperparameters["bounds"].are_set

    @property
    def keeps_norm(self):
        """See base class."""
        return self.hyperparameters["form"].norm == "constant"

    def rule_arguments(self, accelerated):
        """See base class; adds the dtype of matrix products."""
        products = self.dtypes.products or (accelerated and self.authors_product_dtype)
        is_half = products == "bfloat16"
        return super().rule_arguments(accelerated) | {
            "product_dtype": "bfloat16" if is_half else None
        }

    def plan_arguments(self):
        """See base class; here `layout` is `core.layouts.matrix`, which recognizes matrices."""
        excluded = self.exclude_from_layer_adaptation
        layout = functools.partial(
            layouts.matrix,
            embeddings=excluded is not None,
            heads=self.hyperparameters["form"].heads,
        )
        return super().plan_arguments() | {
            "exclude_from_layer_adaptation": excluded or (), "layout": layout,
        }  # fmt: skip

    def checked_plan(self, plan):
        """See base class.

        Raises:
            ValueError: if no variable is a matrix, if no matrix has the heads that `form` asks for,
                or if a matrix of constant norm has weight decay.
        """
        for i, (name, treatment) in enumerate(zip(plan.names, plan.treatments, strict=True)):
            decays = treatment.adapt and treatment.decay and i not in plan.frozen
            if self.keeps_norm and decays:
                raise ValueError(
                    f"form={{'norm': 'constant'}} leaves {name} as long as it is, which weight "
                    "decay cannot change: pass weight_decay=0, or exclude matrices from it."
                )
        if not any(treatment.adapt for treatment in plan.treatments):
            raise ValueError(
                f"{self.name} would change no step from AdamW's: none of its {len(plan.paths)} "
                "variables is a matrix that exclude_from_layer_adaptation leaves. Narrow that "
                "list, give rows in treatments where paths and shapes do not tell, or train with "
                "LAMB."
            )
        matrices = [treatment for treatment in plan.treatments if treatment.adapt]
        if self.hyperparameters["form"].heads and not any(
            treatment.split_shape for treatment in matrices
        ):
            raise ValueError(
                f"form={{'heads': 'each'}} changes no step of {self.name}: none of its "
                f"{len(matrices)} matrices is an attention's kernel into heads, of the axes "
                "(model, heads, head size), by path and shape and without rows or heads of its own "
                "in treatments. Leave it out, or give heads in treatments; `tf_lamb.describe` "
                "shows what each variable is."
            )
        notes = [", trust ratio"] * self.has_ratio + [", constant norm"] * self.keeps_norm
        treatments = (
            dataclasses.replace(treatment, description="".join([treatment.description, *notes]))
            if treatment.adapt
            else treatment
            for treatment in plan.treatments
        )
        return dataclasses.replace(plan, treatments=tuple(treatments))


class ProjectionSettings(Settings):
    """Checks and holds the arguments of AdamP and SGDP, which project each channel by itself."""

    keys = ("rate", "depthwise")
    layout = staticmethod(layouts.channels)


def _as_json(value):
    """Returns a value with tuples as lists, and dataclasses and mappings as dicts."""
    if isinstance(value, tuple):
        return [_as_json(item) for item in value]
    if dataclasses.is_dataclass(value):
        return _as_json(vars(value))
    if isinstance(value, Mapping):
        return {key: _as_json(item) for key, item in value.items()}
    return value


def learning_rate(value, host):
    """Checks a learning rate.

    Args:
        value: A number, a schedule, or another callable, which is left to Keras to check.
        host: The class `LearningRateSchedule` of the Keras that the optimizer is for.

    Returns:
        The number as a float, or the schedule or callable as it is.

    Raises:
        TypeError, ValueError: for a number out of its range, and for a schedule of the other Keras
            (a tf_keras schedule in Keras 3, or the other way round).
    """
    check_host("learning_rate", value, host)
    return value if callable(value) else checks.number("learning_rate", value)


# The steps at which a schedule of weight decay is checked.
_CHECKED_STEPS = (0, 1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)


def weight_decay(value, host):
    """Checks a weight decay, and a schedule of it at a few steps.

    Args:
        value: A number, a schedule, or None, which means 0.
        host: The class `LearningRateSchedule` of the Keras that the optimizer is for.

    Returns:
        The number as a float, or the schedule as it is.

    Raises:
        TypeError, ValueError: for a number, or a value of the schedule, that is out of its range,
            and for a schedule of the other Keras (a tf_keras schedule in Keras 3, or the other way
            round).
    """
    check_host("weight_decay", value, host)
    if not isinstance(value, host):
        return checks.number("weight_decay", 0.0 if value is None else value)
    for step in _CHECKED_STEPS:
        checks.number(f"weight_decay at step {step:,}", float(value(step)), "[0, inf)")
    return value


def undo_float32_rounding(rate, user_rate):
    """Returns the learning rate that the user passed, unless it was changed since.

    Args:
        rate: The learning rate now, which a variable may have rounded to float32.
        user_rate: The number that the user passed; None if it was a schedule or a function.

    Returns:
        `user_rate` if `rate` is its rounding to float32, else `rate`.
    """
    is_rounded_user_rate = user_rate is not None and ctypes.c_float(user_rate).value == rate
    return user_rate if is_rounded_user_rate else rate


def round_to_seven_digits(value: Any) -> Any:
    """Rounds a float to seven digits: 0.9 for 0.8999999761581421; returns other values as they are.

    Keras's legacy optimizers keep their arguments in float32, and write these rounded numbers into
    configs.
    """
    return float(f"{value:.7g}") if isinstance(value, float) else value


_SHARED_DOCS = """
exclude_from_weight_decay: List of regexes, searched in the variables' paths
    (`encoder/layer_0/attention/bias`), or "norm_and_bias": every bias, the scale and
    offset of every normalization, and every other vector, such as a LayerScale or a class
    token. Defaults to None: nothing is excluded.
exclude_from_layer_adaptation: List of regexes. Defaults to None: the variables that are
    excluded from weight decay. An empty list excludes nothing.
treatments: Dict from a regex to a dict of settings for the variables that match it, such as
    `{"^encoder/": {"rate": 0.1}}`. If several regexes match a variable, the first one that has a
    key sets it. Defaults to None.
{{keys}}
clipnorm: The largest norm of each gradient. Defaults to None. All clipping happens
    after the gradients of replicas and micro-batches are aggregated.
clipvalue: The largest absolute value in a gradient. Defaults to None.
global_clipnorm: The largest norm of all gradients together. Defaults to None.
use_ema: Whether to keep an exponential moving average of the weights.
    Defaults to False.
ema_momentum: Momentum of the moving average, in [0, 1]. Defaults to 0.99.
ema_overwrite_frequency: The number of steps after which the moving average replaces the
    weights, each time. Defaults to None: at the end of `fit` only.
loss_scale_factor: In Keras 3, what the loss is multiplied by and gradients are divided by,
    as in every optimizer of Keras. Defaults to None.
gradient_accumulation_steps: Micro-batches whose mean gradient makes one step; schedules
    and `iterations` count steps. A dict makes the batch grow without a new compilation: with
    `{0: 1, 500: 2, 900: 4}` a step takes two micro-batches from step 500 on, and four from step 900
    on. Then the attribute of this name is the largest number, and `get_config()` has the dict. If
    `fit` ends within a step, the next `fit` goes on with the micro-batches added up so far, as with
    Keras's optimizers. Defaults to None: every batch is a step.
dtypes: Dict of "slots" and "masters". "slots": the dtype of moments and velocities,
    "float32" (4 bytes a parameter), or "bfloat16" with stochastic rounding (2 bytes). "masters":
    with "float32", float16 and bfloat16 variables have a float32 copy that the rule works on (4
    bytes a parameter more). Defaults to None: slots in float32, and no masters.
shard_update: In Keras 3 on JAX, whether each device of the data axis keeps its share of the
    slots, masters, moving averages and accumulated gradients, and computes its share of the
    update. Norms are still those of whole variables (Xu et al., arXiv 2004.13336). Defaults to
    False.
on_nonfinite: What to do with a step whose gradients, summed over replicas and micro-batches,
    hold a NaN or a number whose square overflows float32. "skip" leaves weights, slots, moving
    averages and `iterations` as they are and counts the step in `skipped_steps`; "raise" leaves
    them, too, and raises the framework's error, which names the variables, except where XLA
    compiles all of a step; "propagate" takes the step. Defaults to "skip".
on_spike: Whether to skip a step whose gradient is far longer than those before: "skip", or
    [window, deviations], by default [128, 6.0] (OLMo). The norm of all gradients, before they
    are clipped, is a spike if it is above the mean of the last `window` steps by more than
    `deviations` standard deviations. No step is skipped before half of the window, and at least
    two steps of it, is filled. A skipped step changes only the window of norms, which is saved
    with the slots, and `spiked_steps`; `gradient_norm` has the latest norm. Defaults to None: off.
jit_compile: Whether XLA compiles the update on TensorFlow. Defaults to True.
name: Name of the optimizer. Defaults to that of its class.
"""
_TREATMENT_KEY_DOCS = """
    "rate": A factor, 0 or more, of the learning rate that the schedule, or AdaScale, has set. It
    does not change the trust ratio. 0 freezes a variable as `trainable = False` does: its slots
    stay as they are, too. `tf_lamb.layer_decay` makes such a dict.
    "slices": An axis, or [axis, blocks]: each index of the axis, or each block of indices, has its
    own trust ratio. `{"qkv/kernel": {"slices": [-1, 3]}}` treats Q, K and V separately,
    `{"stacked/": {"slices": 0}}` the layers of a scan. With Muon and SOAP it needs `bounds` or a
    constant norm, and the axis has to be all rows, or all columns, of a matrix. It has no effect on
    other variables, as `tf_lamb.describe` shows.
    "join": Whether the variables of one Keras layer that match, say a kernel and its bias, share
    one trust ratio; by default each variable has its own.
    "rows": The axis, or a list of the axes, that are the rows of a matrix; None if the variable is
    no matrix. Needed where path and shape do not decide it:
    `{"mixer/kernel": {"rows": 0}, "in_groups": {"rows": None}}`. A bias is never a matrix.
    "heads": An axis, or [axis, blocks]: each index of the axis, or each block of indices, is a
    matrix. Needed where path and shape do not decide it: `{"qkv/kernel": {"heads": [-1, 3]}}` makes
    Q, K and V of a `Dense` three matrices, and `[-1, 36]` makes each of their 12 heads a matrix. A
    kernel of three axes whose rows are not recognized needs "rows", too. None keeps the variable
    one matrix, whatever `form` says.
    "depthwise": Whether the variable is a depthwise kernel, whose output channels are the last two
    axes instead of the last. By default it is one if its path has "depthwise", as in Keras.
"""
_DOCS_BY_ARGUMENT = {
    entry[1]: entry[0] for entry in re.finditer(r"^(\w+):.*(?:\n .*)*", _SHARED_DOCS, re.M)
}
_DOCS_BY_KEY = {
    entry[1]: entry[0]
    for entry in re.finditer(r'^ +"(\w+)": .*(?:\n +[^ "].*)*', _TREATMENT_KEY_DOCS, re.M)
}

Class = TypeVar("Class", bound=type)


def documented(cls: Class) -> Class:
    """Completes the docstring of a class of optimizers, and the errors of its constructor.

    The line `{{shared_arguments}}` is replaced by the text of `_SHARED_DOCS` for each argument that
    the docstring does not describe. The signature shows each argument of `Shared`. The error for an
    unknown argument shows the call rewritten, with the argument that was probably meant.

    Args:
        cls: A class with `settings_class`. It is changed in place.

    Returns:
        The class.
    """
    cls.__init__.__signature__ = _explicit_signature(cls.__init__)  # type: ignore[misc]
    cls.__init__ = arguments.answer_unknown_arguments(cls.__init__)  # type: ignore[misc]
    keys = cls.settings_class.keys  # type: ignore[attr-defined]
    if not (doc := cls.__doc__):  # `python -OO` removes docstrings
        return cls
    placeholder = "{{shared_arguments}}"
    # The indentation is measured, because Python 3.13 strips a part of it from docstrings.
    (indent,) = re.findall(f"^( *){re.escape(placeholder)}$", doc, re.M)
    described_names = re.findall(rf"^{indent}(\w+): ", doc, re.M)
    entries = [
        _DOCS_BY_ARGUMENT[name]
        for name in inspect.signature(cls).parameters
        if name not in described_names
    ]
    shared_text = "\n".join(entries).replace(
        "{{keys}}", "\n".join(_DOCS_BY_KEY[key] for key in keys)
    )
    cls.__doc__ = doc.replace(indent + placeholder, textwrap.indent(shared_text, indent))
    return cls
