"""Defines the base class of LARS for all frameworks: signature, docstring, settings and rule."""

import dataclasses
from typing import Unpack

from tf_lamb.api.optimizers import settings
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.core.rules.lars import RULE


@dataclasses.dataclass(frozen=True, kw_only=True)
class LARSSettings(settings.RatioSettings):
    """Checks and holds LARS's arguments.

    Raises ValueError if entries of `form` contradict each other, or contradict `bounds`.
    """

    def __post_init__(self):
        super().__post_init__()
        form, bounds = self.hyperparameters["form"], self.hyperparameters["bounds"]
        if form.clip and bounds.trust_ratio:
            raise ValueError(
                "The clip of form (LARC) bounds the ratio by 1/learning_rate, so it does not go "
                f"with bounds of the trust_ratio, {bounds.trust_ratio}. Leave out one of the two."
            )
        if form.denominator == "norm_of_update" and form.momentum != "outside":
            raise ValueError(
                "In form the denominator 'norm_of_update' needs the momentum 'outside': with "
                f"{form.momentum!r} the ratio is part of the update."
            )


@settings.documented
class LARS(Layerwise):
    """LARS, layer-wise adaptive rate scaling, as its paper writes it.

    Per variable, at every step:

        d  = g + weight_decay w
        r  = trust_coefficient |w| / (|g| + weight_decay |w| + epsilon)
        v <- momentum v + learning_rate r d
        w <- w - v

    The trust ratio r is 1 where |w| or |g| is 0, and for variables excluded from layer adaptation.
    Where r is 1, a variable moves at the full learning rate, without trust_coefficient. Exclude
    biases and normalizations, and note that a kernel that starts at zero makes its first step at
    the full rate. A norm is that of the whole variable, summed in float32 (in float64 for float64
    variables).

    Args:
        learning_rate: A float, a `LearningRateSchedule` or a callable without arguments.
            Defaults to 1.0, at which `find_rate` begins, too. A large batch takes a rate of order
            10: MLPerf trains ResNet-50 at batch 8,192 with 17.
        momentum: In [0, 1). Defaults to 0.9 (the paper).
        epsilon: Added to the denominator of r. Defaults to 0.0 (the paper).
        weight_decay: Decay, also part of the denominator, a float or a schedule; None is 0.
            Defaults to 0.0; MLPerf has 2e-4 at batch 8,192.
        trust_coefficient: The paper's eta, `eeta` elsewhere. Defaults to 0.001 (the paper).
        nesterov: Whether w moves by momentum v plus what was added to v. Defaults to False.
        form: Dict that selects one of the published forms; None is the paper's.
            "momentum": where learning_rate and r multiply. "inside": inside the velocity, as above
            (Model Garden's `classic_momentum`, optax, MLPerf); "outside": v <- momentum v + d and
            w <- w - learning_rate r v (the TPU reference); "mixed": v <- momentum v + r d and
            w <- w - learning_rate v (LARC, timm).
            "denominator": what r divides by. "sum_of_norms": as above; "norm_of_sum": |d| (Model
            Garden's classic form, optax); "norm_of_update": |v|, only with the momentum "outside"
            (Model Garden's popular form).
            "clip": True is LARC's clip mode, r <- min(r / learning_rate, 1); its authors take
            "mixed" and trust_coefficient 0.02.
        bounds: Dict of "trust_ratio", a pair of the smallest and the largest r; None in the pair is
            no bound. The ratio 1 of excluded variables is bounded, too. Defaults to None: no
            bounds; the TPU reference has (0, 50).
        {{shared_arguments}}

    Raises:
        ValueError, TypeError: at construction, for a hyper-parameter out of its range, a pattern
            that is no regex, an unknown argument.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    >>> optimizer = tf_lamb.LARS(
    ...     1.0, weight_decay=0.01, exclude_from_weight_decay=["bias"])
    >>> model.compile(optimizer=optimizer, loss="mse")

    References:
        - You, Gitman and Ginsburg, Large Batch Training of Convolutional Networks,
          https://arxiv.org/abs/1708.03888
    """

    rule = RULE
    settings_class = LARSSettings

    def __init__(
        self,
        learning_rate: settings.LearningRate = 1.0,
        momentum: float = 0.9,
        epsilon: float = 0.0,
        weight_decay: settings.WeightDecay = 0.0,
        exclude_from_weight_decay: settings.Patterns = None,
        exclude_from_layer_adaptation: settings.Patterns = None,
        *,
        trust_coefficient: float = 0.001,
        nesterov: bool = False,
        form: settings.Form = None,
        bounds: settings.Bounds = None,
        name: str | None = "LARS",
        **shared: Unpack[settings.Shared],
    ):
        super().__init__(**settings.constructor_arguments(locals()))
