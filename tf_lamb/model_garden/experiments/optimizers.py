"""The optimizers as Model Garden sees them: one config dataclass each, and its key.

A new optimizer is one dataclass whose fields are the arguments of its constructor, and one line in
`_KINDS`.
"""

import dataclasses
import functools
from typing import Any

from official.modeling.hyperparams import base_config
from official.modeling.optimization import optimizer_factory
from official.modeling.optimization.configs import optimization_config, optimizer_config

import tf_lamb.tf_keras
from tf_lamb.api.optimizers.observation import starts_to_observe
from tf_lamb.core import checks
from tf_lamb.model_garden.experiments import choices, entries


@dataclasses.dataclass
class AdaScaleConfig(base_config.Config):
    """The arguments of `tf_lamb.tf_keras.AdaScale`, which documents them; off without a scale.

    Attributes:
        scale_invariant_steps: the steps that the base batch took, at which training ends if
            `train_steps` does not end it before; None leaves that to `train_steps` alone.
    """

    scale: float | None = None
    scale_invariant_steps: int | None = None
    previous_gradient: bool = False
    averaging: str = "paper"
    preconditioned: bool | None = None
    groups: list[str] | None = None
    smoothing: float = 0.99


@dataclasses.dataclass
class MeasuredConfig(base_config.Config):
    """The arguments of `tf_lamb.tf_keras.Measured`, which documents them; off unless `enabled`."""

    enabled: bool = False
    previous_gradient: bool = False
    groups: list[str] | None = None
    smoothing: float = 0.99


@dataclasses.dataclass
class _Config(optimizer_config.BaseOptimizerConfig):
    """What every optimizer takes; Model Garden's base class brings the three clippings.

    `learning_rate` is not among them: it comes from `optimizer_config.learning_rate`.

    Attributes:
        adascale, measured: what stands around the optimizer.
        trust_ratios_every: steps from one reading of the trust ratios to the next; None for none.
        divergence_report: whether a run that has diverged ends, before it saves a checkpoint, with
            a report of `tf_lamb.tf_keras.DivergenceReport`.
    """

    weight_decay: float = 0.0
    exclude_from_weight_decay: list[str] | None = None
    exclude_from_layer_adaptation: list[str] | None = None
    use_ema: bool = False
    ema_momentum: float = 0.99
    ema_overwrite_frequency: int | None = None
    gradient_accumulation_steps: int | None = None
    slot_dtype: str = "float32"
    master_weights: bool = False
    on_nonfinite: str = "skip"
    jit_compile: bool = True
    adascale: AdaScaleConfig = dataclasses.field(default_factory=AdaScaleConfig)
    measured: MeasuredConfig = dataclasses.field(default_factory=MeasuredConfig)
    trust_ratios_every: int | None = None
    divergence_report: bool = True


@dataclasses.dataclass
class LAMBConfig(_Config):
    """The arguments of `tf_lamb.tf_keras.LAMB`, which documents them."""

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    bias_correction: bool = True
    grad_averaging: bool = True
    nesterov_moments: str = "none"
    weight_decay_mode: str = "update"
    norm: str = "l2"
    phi_bounds: list[float] | None = None
    ratio_bounds: list[float] | None = None
    nvlamb: bool = False
    layer_groups: list[str] | None = None
    layer_slices: dict[str, Any] | None = None
    name: str = "LAMB"


@dataclasses.dataclass
class LARSConfig(_Config):
    """The arguments of `tf_lamb.tf_keras.LARS`, which documents them."""

    momentum: float = 0.9
    epsilon: float = 0.0
    trust_coefficient: float = 0.001
    nesterov: bool = False
    momentum_form: str = "inside"
    denominator: str = "sum_of_norms"
    dampening: float = 0.0
    clip: bool = False
    ratio_bounds: list[float] | None = None
    layer_groups: list[str] | None = None
    layer_slices: dict[str, Any] | None = None
    name: str = "LARS"


@dataclasses.dataclass
class AdamPConfig(_Config):
    """The arguments of `tf_lamb.tf_keras.AdamP`, which documents them."""

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    delta: float = 0.1
    wd_ratio: float = 0.1
    nesterov: bool = False
    depthwise: list[str] | None = None
    name: str = "AdamP"


@dataclasses.dataclass
class SGDPConfig(_Config):
    """The arguments of `tf_lamb.tf_keras.SGDP`, which documents them."""

    momentum: float = 0.9
    epsilon: float = 1e-8
    delta: float = 0.1
    wd_ratio: float = 0.1
    dampening: float = 0.0
    nesterov: bool = False
    depthwise: list[str] | None = None
    name: str = "SGDP"


# Key -> its settings, and what they are the arguments of.
_KINDS = {
    "tf_lamb": (LAMBConfig, tf_lamb.tf_keras.LAMB),
    "tf_lars": (LARSConfig, tf_lamb.tf_keras.LARS),
    "tf_adamp": (AdamPConfig, tf_lamb.tf_keras.AdamP),
    "tf_sgdp": (SGDPConfig, tf_lamb.tf_keras.SGDP),
}
OPTIMIZERS = {key: cls for key, (_, cls) in _KINDS.items()}


def build(
    cls, learning_rate=0.001, adascale=None, measured=None, trust_ratios_every=None,
    divergence_report=False, **arguments,
):  # fmt: skip
    """An optimizer of ours, with what stands around it; the runner sees to the rest."""
    optimizer = entries.transformed(cls, learning_rate, **arguments)
    if trust_ratios_every is not None:
        checks.whole("trust_ratios_every", trust_ratios_every)
        optimizer.observe_trust_ratios()  # refuses one that has none
    if divergence_report:
        starts_to_observe(optimizer)
    adascale, measured = dict(adascale or {}), dict(measured or {})
    adascale.pop("scale_invariant_steps", None)  # the runner's
    is_measured = measured.pop("enabled", False)
    if adascale.get("scale") is not None:
        return tf_lamb.tf_keras.AdaScale(optimizer, **adascale)
    return tf_lamb.tf_keras.Measured(optimizer, **measured) if is_measured else optimizer


def _tables():
    # seam: tf-models-official 2.20.0. A task never says which table it wants and gets the first,
    # although its optimizers may be new-style; averaging (`ema:`) exists for the first alone.
    return optimizer_factory.LEGACY_OPTIMIZERS_CLS, optimizer_factory.NEW_OPTIMIZERS_CLS


def register_optimizers() -> None:
    """Registers each of our optimizers under its own key, in every experiment."""
    kinds = {key: kind for key, (kind, _) in _KINDS.items()}
    choices.add(optimization_config.OptimizerConfig, kinds)
    for table in _tables():
        for key, cls in OPTIMIZERS.items():
            table[key] = entries.entry(cls, functools.partial(build, cls))


def replace_stock_optimizers() -> None:
    """Puts ours in the place of Model Garden's own keys."""
    for table in _tables():
        table.update(entries.STOCK)
