"""Defines the base class of LANS for all frameworks: signature, docstring, settings and rule."""

import dataclasses
from typing import Unpack

from tf_lamb.api.optimizers import settings
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.core.messages import warn
from tf_lamb.core.rules.lans import RULE


@dataclasses.dataclass(frozen=True, kw_only=True)
class LANSSettings(settings.RatioSettings):
    """Checks and holds LANS's arguments.

    Warns if gradients are to be clipped by norm: LANS divides each gradient by its norm anyway.
    """

    def __post_init__(self):
        super().__post_init__()
        for name in ("clipnorm", "global_clipnorm"):
            if (value := getattr(self, name)) is not None:
                warn(
                    f"{name}={value:g} has no effect on LANS, which divides each gradient by its "
                    "norm: leave it out."
                )


@settings.documented
class LANS(Layerwise):
    """LANS, LAMB on normalized gradients with a trust ratio for each part of its Nesterov step.

    Per variable, at step t = 1, 2, ...:

        g  <- g / (|g| + epsilon)
        m  <- beta_1 m + (1 - beta_1) g
        v  <- beta_2 v + (1 - beta_2) g^2
        d   = sqrt(v/(1 - beta_2^t)) + epsilon
        um  = m/(1 - beta_1^t) / d + weight_decay w
        ug  = g / d + weight_decay w
        w  <- w - learning_rate (beta_1 |w|/|um| um + (1 - beta_1) |w|/|ug| ug)

    A gradient of norm 0 is not divided. A trust ratio, |w|/|um| or |w|/|ug|, is 1 where either of
    its norms is 0, and for variables excluded from layer adaptation. A norm is that of the whole
    variable, summed in float32 (in float64 for float64 variables). Moments have the same dtypes,
    unless `dtypes` selects another one: those of float16 and bfloat16 variables are in float32.
    `TrustRatios` shows the trust ratio of um. `clipnorm` and `global_clipnorm` cause a warning,
    because they have no effect on gradients that are normalized.

    The authors of LANS trained BERT at batch 96K. Their schedule has w steps of warmup, c steps at
    a constant `rate`, and d steps of decay:

        s, fall = tf_lamb.schedules, PolynomialDecay(rate, d, end_learning_rate=0.0)
        s.Warmup(w, s.Stages((c, d), (rate, fall)))

    Args:
        learning_rate: A float, a `LearningRateSchedule` or a callable without arguments.
            Defaults to 0.01, at which `find_rate` begins, too (docs/reference/optimizers.md).
        beta_1: Decay of the first moment, in [0, 1). Defaults to 0.9 (the paper).
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.999 (the paper).
        epsilon: Added to the root of the second moment. Defaults to 1e-6 (the authors' code).
        weight_decay: Decay inside both trust ratios, a float or a schedule; None is 0. Defaults to
            0.0; the authors' code has 0.01.
        {{shared_arguments}}

    Raises:
        ValueError, TypeError: at construction, for a hyper-parameter out of its range, a pattern
            that is no regex, an unknown argument.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    >>> optimizer = tf_lamb.LANS(
    ...     1e-3, weight_decay=0.01, exclude_from_weight_decay=["bias"])
    >>> model.compile(optimizer=optimizer, loss="mse")

    References:
        - Zheng et al., Accelerated Large Batch Optimization of BERT Pretraining in 54 minutes,
          https://arxiv.org/abs/2006.13484, Algorithm 2
    """

    rule = RULE
    settings_class = LANSSettings

    def __init__(
        self,
        learning_rate: settings.LearningRate = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: settings.WeightDecay = 0.0,
        exclude_from_weight_decay: settings.Patterns = None,
        exclude_from_layer_adaptation: settings.Patterns = None,
        *,
        name: str | None = "LANS",
        **shared: Unpack[settings.Shared],
    ):
        super().__init__(**settings.constructor_arguments(locals()))
