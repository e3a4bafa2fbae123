"""Defines the base class of SGDP for all frameworks: signature, docstring and rule."""

from typing import Unpack

from tf_lamb.api.optimizers import settings
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.core.rules.sgdp import RULE


@settings.documented
class SGDP(Layerwise):
    """SGDP, SGD with momentum that does not lengthen scale-invariant weights.

    Per variable, at every step:

        v <- momentum v + g
        u  = v
        u, rho = project(w, g, u)
        w <- w (1 - learning_rate weight_decay rho/(1 - momentum))
        w <- w - learning_rate u

    `project` first takes each output channel (the last axis in Keras) as a row. If |cos(w, g)| is
    below delta / sqrt(row length) in every row, it treats w as scale-invariant, and removes from
    each row of u its component along w. If not, it repeats the test with the whole variable as one
    row. rho is wd_ratio if u is projected, and 1 otherwise. The updates of variables of one axis,
    and of variables excluded from layer adaptation, are never projected.

    Args:
        learning_rate: A float, a `LearningRateSchedule` or a callable without arguments.
            Defaults to 0.1 (the authors' usage).
        momentum: In [0, 1). Defaults to 0.9 (the authors' usage).
        epsilon: Added to norms. Defaults to 1e-8 (the authors' code).
        weight_decay: Decoupled decay, a float or a schedule; None is 0. Defaults to 0.0; the
            authors train with 1e-5.
        exclude_from_layer_adaptation: List of regexes of variables that are never projected.
            Defaults to None: those excluded from weight decay. An empty list excludes nothing.
        delta: The threshold of the cosine between weight and gradient, in units of
            1 / sqrt(row length). Defaults to 0.1 (the paper).
        wd_ratio: The factor of weight decay where the update is projected. Defaults to 0.1 (the
            paper).
        nesterov: Whether u = g + momentum v. Defaults to False; the authors use it.
        {{shared_arguments}}

    Raises:
        ValueError, TypeError: at construction, for a hyper-parameter out of its range, a pattern
            that is no regex, an unknown argument.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    >>> optimizer = tf_lamb.SGDP(
    ...     0.1, weight_decay=0.01, exclude_from_weight_decay=["bias"])
    >>> model.compile(optimizer=optimizer, loss="mse")

    References:
        - Heo et al., AdamP: Slowing Down the Slowdown for Momentum Optimizers on Scale-invariant
          Weights, https://arxiv.org/abs/2006.08217
    """

    rule = RULE
    settings_class = settings.ProjectionSettings

    def __init__(
        self,
        learning_rate: settings.LearningRate = 0.1,
        momentum: float = 0.9,
        epsilon: float = 1e-8,
        weight_decay: settings.WeightDecay = 0.0,
        exclude_from_weight_decay: settings.Patterns = None,
        exclude_from_layer_adaptation: settings.Patterns = None,
        *,
        delta: float = 0.1,
        wd_ratio: float = 0.1,
        nesterov: bool = False,
        name: str | None = "SGDP",
        **shared: Unpack[settings.Shared],
    ):
        super().__init__(**settings.constructor_arguments(locals()))
