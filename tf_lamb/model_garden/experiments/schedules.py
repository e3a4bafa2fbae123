"""The schedules of this package as Model Garden sees them: one config dataclass each, and its key.

    learning_rate: {type: tf_lamb_polynomial, tf_lamb_polynomial: {...}}
    warmup:        {type: tf_lamb, tf_lamb: {steps: 3125, handover: drop}}

`warmup: tf_lamb` stands in front of any learning rate, ours or Model Garden's own. A number that
has no default is None here, so that an experiment may leave it to its YAML; to leave it out there
as well is an error before training.
"""

import dataclasses

from official.modeling.hyperparams import base_config
from official.modeling.optimization import optimizer_factory
from official.modeling.optimization.configs import optimization_config

from tf_lamb.model_garden.experiments import choices
from tf_lamb.model_garden.running.autowarmup import KEY, Schedule
from tf_lamb.tf_keras import schedules


@dataclasses.dataclass
class ConstantConfig(base_config.Config):
    """The arguments of `tf_lamb.schedules.Constant`, which documents them."""

    learning_rate: float | None = None


@dataclasses.dataclass
class PolynomialConfig(base_config.Config):
    """The arguments of `tf_lamb.schedules.Polynomial`, which documents them."""

    initial_learning_rate: float | None = None
    steps: int | None = None
    end_learning_rate: float = 0.0
    power: float = 1.0


@dataclasses.dataclass
class CosineConfig(base_config.Config):
    """The arguments of `tf_lamb.schedules.Cosine`, which documents them."""

    initial_learning_rate: float | None = None
    steps: int | None = None
    end_learning_rate: float = 0.0


@dataclasses.dataclass
class ExponentialConfig(base_config.Config):
    """The arguments of `tf_lamb.schedules.Exponential`, which documents them."""

    initial_learning_rate: float | None = None
    steps: int | None = None
    rate: float | None = None
    staircase: bool = False


@dataclasses.dataclass
class MultiStepConfig(base_config.Config):
    """The arguments of `tf_lamb.schedules.MultiStep`, which documents them."""

    boundaries: list[int] | None = None
    learning_rates: list[float] | None = None


@dataclasses.dataclass
class AutoWarmupConfig(base_config.Config):
    """The arguments of `tf_lamb.tf_keras.AutoWarmup`, which documents them, and one more.

    Attributes:
        decide_every: steps from one decision to the next, as a rule those of an epoch; `patience`
            counts decisions. It is rounded up to whole loops (`trainer.steps_per_loop`).
    """

    total_steps: int | None = None
    decide_every: int | None = None
    min_learning_rate: float = 1e-5
    max_learning_rate: float = 1.0
    max_warmup_fraction: float = 0.5
    decay: str = "cosine"
    cooldown_fraction: float = 0.2
    confidence: float = 0.95
    patience: int = 3
    tests: int = 5


@dataclasses.dataclass
class WarmupConfig(base_config.Config):
    """The arguments of `tf_lamb.schedules.Warmup`, which documents them, and one more.

    Attributes:
        begin_step: the optimizer's step at which this schedule begins: 0, unless the optimizer
            comes with the steps of an earlier stage (`task.init_optimizer`).
    """

    steps: int | None = None
    kind: str = "linear"
    power: float = 1.0
    start: float = 0.0
    handover: str = "continuous"
    begin_step: int = 0


def warmup(after, begin_step=0, **arguments):
    """Our warmup in front of a schedule, or of the plain number that a constant rate is."""
    if not callable(after):
        after = schedules.Constant(after)
    schedule = schedules.Warmup(after=after, **arguments)
    if not begin_step:
        return schedule
    return schedules.Stages((begin_step, 1), (schedules.Constant(0.0), schedule))


# Key -> its settings, and what they are the arguments of.
_LEARNING_RATES = {
    "tf_lamb_constant": (ConstantConfig, schedules.Constant),
    "tf_lamb_polynomial": (PolynomialConfig, schedules.Polynomial),
    "tf_lamb_cosine": (CosineConfig, schedules.Cosine),
    "tf_lamb_exponential": (ExponentialConfig, schedules.Exponential),
    "tf_lamb_multi_step": (MultiStepConfig, schedules.MultiStep),
    KEY: (AutoWarmupConfig, Schedule),
}


def register_schedules() -> None:
    """Registers each of our schedules under its own key, in every experiment."""
    choices.add(optimization_config.LrConfig, {k: kind for k, (kind, _) in _LEARNING_RATES.items()})
    optimizer_factory.LR_CLS.update({key: cls for key, (_, cls) in _LEARNING_RATES.items()})
    choices.add(optimization_config.WarmupConfig, {"tf_lamb": WarmupConfig})
    optimizer_factory.WARMUP_CLS["tf_lamb"] = warmup
