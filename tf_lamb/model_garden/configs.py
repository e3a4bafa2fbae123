"""The optimizers as Model Garden sees them: one config dataclass each, and its key.

A new optimizer is one dataclass whose fields are the arguments of its constructor, one field in
`OptimizerConfig`, and one line in `_OPTIMIZERS`.
"""

import dataclasses
from typing import Any

from official.modeling.optimization import optimizer_factory
from official.modeling.optimization.configs import optimization_config, optimizer_config

import tf_lamb.tf_keras


@dataclasses.dataclass
class LAMBConfig(optimizer_config.BaseOptimizerConfig):
    """The arguments of `tf_lamb.tf_keras.LAMB`, which documents them.

    `learning_rate` is not among them: it comes from `optimizer_config.learning_rate`. Model
    Garden's base class brings `clipnorm`, `clipvalue` and `global_clipnorm`.
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.0
    exclude_from_weight_decay: list[str] | None = None
    exclude_from_layer_adaptation: list[str] | None = None
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
    use_ema: bool = False
    ema_momentum: float = 0.99
    ema_overwrite_frequency: int | None = None
    gradient_accumulation_steps: int | None = None
    slot_dtype: str = "float32"
    master_weights: bool = False
    jit_compile: bool = True
    name: str = "LAMB"


@dataclasses.dataclass
class OptimizerConfig(optimization_config.OptimizerConfig):
    """Model Garden's choice of optimizers, with ours beside them."""

    tf_lamb: LAMBConfig = dataclasses.field(default_factory=LAMBConfig)


@dataclasses.dataclass
class OptimizationConfig(optimization_config.OptimizationConfig):
    """Model Garden's optimizer, averaging, learning rate and warmup, with our choice."""

    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)


_OPTIMIZERS = {"tf_lamb": tf_lamb.tf_keras.LAMB}


def stock_lamb(weight_decay_rate=0.0, **arguments):
    """Our LAMB under the field names of Model Garden's `LAMBConfig`."""
    return tf_lamb.tf_keras.LAMB(weight_decay=weight_decay_rate, **arguments)


_STOCK = {"lamb": stock_lamb}


def _tables():
    # seam: tf-models-official 2.20.0. A task never says which table it wants and gets the first,
    # although its optimizers may be new-style; averaging (`ema:`) exists for the first alone.
    return optimizer_factory.LEGACY_OPTIMIZERS_CLS, optimizer_factory.NEW_OPTIMIZERS_CLS


def register_optimizers() -> None:
    """Registers each of our optimizers under its own key."""
    for table in _tables():
        table.update(_OPTIMIZERS)


def replace_stock_optimizers() -> None:
    """Puts ours in the place of Model Garden's own keys."""
    for table in _tables():
        table.update(_STOCK)
