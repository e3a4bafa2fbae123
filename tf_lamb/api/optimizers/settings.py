"""The optimizers' arguments in both Kerases, checked once."""

import ctypes
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from tf_lamb.api.schedules import check_host
from tf_lamb.core import checks, layouts, matrices
from tf_lamb.core.accumulation import Stages
from tf_lamb.core.plan import Plan

# What the constructors are typed with; a schedule is a callable of either Keras.
LearningRate = float | Callable[..., Any]
WeightDecay = float | Callable[..., Any] | None
Patterns = Sequence[str] | str | None
Treatments = Mapping[str, Mapping[str, Any]] | None
Bounds = Mapping[str, Sequence[float] | None] | None
Dtypes = Mapping[str, str | None] | None
Form = Mapping[str, str | float] | None
Accumulation = int | Mapping[int, int] | None
Spikes = Sequence[float] | str | None

_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")
_OPTIONAL: dict[str, Callable] = {
    **dict.fromkeys((*_CLIPPING, "loss_scale_factor"), checks.number),
    "ema_overwrite_frequency": checks.integer,
    "gradient_accumulation_steps": checks.accumulation,
}
# Attributes in both Kerases, which read them as they go; and of Keras 3, `loss_scale_factor`.
OF_HOST = (
    *_CLIPPING, "use_ema", "ema_momentum", "ema_overwrite_frequency", "loss_scale_factor",
)  # fmt: skip
_EXCLUSIONS = ("exclude_from_weight_decay", "exclude_from_layer_adaptation")


def constructor_arguments(constructor: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of a constructor by name: the keywords that it would have to write out.

    Args:
        constructor: its `locals()`, before it has any other.
    """
    return {k: v for k, v in constructor.items() if k not in ("self", "__class__")}


@dataclasses.dataclass(frozen=True)
class OwnDtypes:
    """The dtypes that differ from those of variables and of steps."""

    slots: str = "float32"
    masters: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The constructor's arguments besides the learning rate; raises on what cannot be right.

    Attributes:
        keys: what a treatment may have.
        layout: the plan's function for a family.
        kinds_of_dtypes: what may have a dtype of its own.
        hyperparameters: what the rule takes by name, checked.
        The rest: as the constructors name and document them.
    """

    keys: ClassVar[tuple[str, ...]] = ("rate",)
    layout = staticmethod(layouts.slices)
    kinds_of_dtypes: ClassVar[type] = OwnDtypes

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
            dtypes=checks.hyperparameter("dtypes", self.dtypes, self.kinds_of_dtypes),
            treatments=checks.treatments("treatments", self.treatments, self.keys),
            ema_momentum=checks.number("ema_momentum", self.ema_momentum),
            **{name: checks.patterns(name, getattr(self, name)) for name in _EXCLUSIONS},
        )
        for name, check in _OPTIONAL.items():
            if (value := getattr(self, name)) is not None:
                self._freeze(**{name: check(name, value)})
        checks.at_most_one({name: getattr(self, name) for name in _CLIPPING})
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
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def config(self) -> dict[str, Any]:
        """The arguments again, as JSON can hold them: what `get_config` adds its own to."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        arguments = {**fields.pop("hyperparameters"), **fields}
        return {name: _as_json(value) for name, value in arguments.items()}

    def clipping(self) -> dict[str, float | None]:
        """The arguments that clip gradients."""
        return {name: getattr(self, name) for name in _CLIPPING}

    def host(self) -> dict[str, Any]:
        """The arguments that the host's own base class keeps."""
        names = ("name", "weight_decay", "use_ema", "ema_momentum", "ema_overwrite_frequency")
        return {name: getattr(self, name) for name in names} | self.clipping()

    def for_rule(self) -> dict[str, Any]:
        """The arguments that the rule takes in every step."""
        return dict(self.hyperparameters)

    def read_once(self) -> set[str]:
        """The arguments that nobody reads again after the optimizer is made."""
        return {*vars(self), *self.hyperparameters} - {*OF_HOST, "name", "jit_compile"}

    def planned(self, plan: Plan) -> Plan:
        """The plan, with what these settings say of its layouts; raises if it cannot be meant."""
        return plan

    def planning(self) -> dict[str, Any]:
        """The arguments of the plan."""
        decay = None if callable(self.weight_decay) else self.weight_decay
        names = (*_EXCLUSIONS, "treatments", "layout")
        return {"weight_decay": decay, **{name: getattr(self, name) for name in names}}


class RatioSettings(Settings):
    """The settings of optimizers with a trust ratio, where the user may say what a layer is."""

    keys = ("rate", "slices", "join")


class MatrixSettings(Settings):
    """The settings of Muon and SOAP, which work on matrices, by default without embeddings."""

    keys = ("rate", "rows")

    def planning(self):
        excluded = self.exclude_from_layer_adaptation
        layout = functools.partial(matrices.layout, embeddings=excluded is not None)
        return super().planning() | {
            "exclude_from_layer_adaptation": excluded or (), "layout": layout,
        }  # fmt: skip

    def planned(self, plan):
        if not any(treatment.adapt for treatment in plan.treatments):
            raise ValueError(
                f"{self.name} would change no step from AdamW's: none of its {len(plan.paths)} "
                "variables is a matrix that exclude_from_layer_adaptation leaves. Narrow that "
                "list, give rows in treatments where paths and shapes do not tell, or train with "
                "LAMB."
            )
        return plan


class ProjectionSettings(Settings):
    """The settings of AdamP and SGDP, which work on channels."""

    keys = ("rate", "depthwise")
    layout = staticmethod(layouts.channels)


def _as_json(value):
    if isinstance(value, tuple):
        return list(value)
    if dataclasses.is_dataclass(value):
        return _as_json(vars(value))
    if isinstance(value, Mapping):
        return {key: _as_json(each) for key, each in value.items()}
    return value


def learning_rate(value, host):
    """A number is checked, and whether a schedule is the host's; a callable is left to the host."""
    check_host("learning_rate", value, host)
    return value if callable(value) else checks.number("learning_rate", value)


_SAMPLED = (0, 1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)  # steps


def weight_decay(value, host):
    """A number is checked, None is 0; a schedule is checked at a few steps, and is of the host.

    Args:
        host: the base class of its schedules.
    """
    check_host("weight_decay", value, host)
    if not isinstance(value, host):
        return checks.number("weight_decay", 0.0 if value is None else value)
    for step in _SAMPLED:
        checks.number(f"weight_decay at step {step:,}", float(value(step)), "[0, inf)")
    return value


def undo_float32_rounding(rate, given):
    """The number that the user gave, while the variable still holds its rounding to float32."""
    is_given = given is not None and ctypes.c_float(given).value == rate
    return given if is_given else rate
