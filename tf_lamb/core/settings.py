"""The arguments that every optimizer takes in both doors, checked once."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tf_lamb.core import checks, plan

_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a constructor was given besides the learning rate; raises on what cannot be right.

    Attributes:
        hyperparameters: what the rule takes by name: numbers in their range, and flags.
        The rest: as the constructors name and document them.
    """

    hyperparameters: Mapping[str, Any]
    weight_decay: float
    exclude_from_weight_decay: tuple[str, ...] | None
    exclude_from_layer_adaptation: tuple[str, ...] | None
    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    use_ema: bool
    ema_momentum: float
    ema_overwrite_frequency: int | None
    gradient_accumulation_steps: int | None
    jit_compile: bool
    name: str

    def __post_init__(self):
        def put(name, value):
            object.__setattr__(self, name, value)

        put("hyperparameters", {k: _checked(k, v) for k, v in self.hyperparameters.items()})
        put("weight_decay", checks.number("weight_decay", self.weight_decay or 0.0))
        for name in ("exclude_from_weight_decay", "exclude_from_layer_adaptation"):
            put(name, plan.check_patterns(name, getattr(self, name)))
        for name in _CLIPPING:
            value = getattr(self, name)
            put(name, None if value is None else checks.number(name, value))
        checks.at_most_one({name: getattr(self, name) for name in _CLIPPING})
        checks.flag("use_ema", self.use_ema)
        put("ema_momentum", checks.number("ema_momentum", self.ema_momentum))
        for name, lowest in (("ema_overwrite_frequency", 1), ("gradient_accumulation_steps", 1)):
            put(name, checks.steps(name, getattr(self, name), lowest))
        checks.flag("jit_compile", self.jit_compile)
        checks.text("name", self.name)

    def config(self) -> dict[str, Any]:
        """The arguments again, as JSON can hold them: what `get_config` adds its own to."""
        config = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        config |= config.pop("hyperparameters")
        for name in ("exclude_from_weight_decay", "exclude_from_layer_adaptation"):
            config[name] = None if config[name] is None else list(config[name])
        return config

    def host(self) -> dict[str, Any]:
        """The arguments that the host's own base class keeps."""
        names = ("name", "weight_decay", *_CLIPPING, "use_ema", "ema_momentum")
        return {name: getattr(self, name) for name in (*names, "ema_overwrite_frequency")}


def _checked(name: str, value):
    return checks.number(name, value) if name in checks.RANGES else checks.flag(name, value)


def learning_rate(value):
    """A number is checked; a schedule or a callable is left to the host."""
    return value if callable(value) else checks.number("learning_rate", value)
