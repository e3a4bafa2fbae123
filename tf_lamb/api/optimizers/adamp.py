"""Defines the base class of AdamP for all frameworks: signature, docstring and rule."""

from typing import Unpack

from tf_lamb.api.optimizers import settings
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.core.rules.adamp import RULE


@settings.documented
class AdamP(Layerwise):
    """AdamP, Adam that does not lengthen scale-invariant weights.

    Per variable, at step t = 1, 2, ...:

        m <- beta_1 m + (1 - beta_1) g
        v <- beta_2 v + (1 - beta_2) g^2
        u  = m / (sqrt(v)/sqrt(1 - beta_2^t) + epsilon)
        u, rho = project(w, g, u)
        w <- w (1 - learning_rate weight_decay rho)
        w <- w - learning_rate/(1 - beta_1^t) u

    `project` first takes each output channel (the last axis in Keras) as a row. If |cos(w, g)| is
    below delta / sqrt(row length) in every row, it treats w as scale-invariant, and removes from
    each row of u its component along w. If not, it repeats the test with the whole variable as one
    row. rho is wd_ratio if u is projected, and 1 otherwise. The updates of variables of one axis,
    and of variables excluded from layer adaptation, are never projected.

    Args:
        learning_rate: A float, a `LearningRateSchedule` or a callable without arguments.
            Defaults to 0.001 (the paper).
        beta_1: Decay of the first moment, in [0, 1). Defaults to 0.9 (the paper).
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.999 (the paper).
        epsilon: Added to the root of the second moment and to norms. Defaults to 1e-8 (the
            authors' code).
        weight_decay: Decoupled decay, a float or a schedule; None is 0. Defaults to 0.0; the
            authors train with 0.01.
        exclude_from_layer_adaptation: List of regexes of variables that are never projected.
            Defaults to None: those excluded from weight decay. An empty list excludes nothing.
        delta: The threshold of the cosine between weight and gradient, in units of
            1 / sqrt(row length). Defaults to 0.1 (the paper).
        wd_ratio: The factor of weight decay where the update is projected. Defaults to 0.1 (the
            paper).
        nesterov: Whether beta_1 m + (1 - beta_1) g replaces m in u. Defaults to False.
        {{shared_arguments}}

    Raises:
        ValueError, TypeError: at construction, for a hyper-parameter out of its range, a pattern
            that is no regex, an unknown argument.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    >>> optimizer = tf_lamb.AdamP(
    ...     1e-3, weight_decay=0.01, exclude_from_weight_decay=["bias"])
    >>> model.compile(optimizer=optimizer, loss="mse")

    References:
        - Heo et al., AdamP: Slowing Down the Slowdown for Momentum Optimizers on Scale-invariant
          Weights, https://arxiv.org/abs/2006.08217
    """

    rule = RULE
    settings_class = settings.ProjectionSettings

    def __init__(
        self,
        learning_rate: settings.LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: settings.WeightDecay = 0.0,
        exclude_from_weight_decay: settings.Patterns = None,
        exclude_from_layer_adaptation: settings.Patterns = None,
        *,
        delta: float = 0.1,
        wd_ratio: float = 0.1,
        nesterov: bool = False,
        name: str | None = "AdamP",
        **shared: Unpack[settings.Shared],
    ):
        super().__init__(**settings.constructor_arguments(locals()))
