"""The framework-independent half of LAMB: its signature, docstring and rule."""

from tf_lamb.api.optimizers import settings
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.core import rules


class LAMB(Layerwise):
    """LAMB, layer-wise adaptive moments for large batches, as its paper writes it.

    Per variable, at step t = 1, 2, ...:

        m <- beta_1 m + (1 - beta_1) g
        v <- beta_2 v + (1 - beta_2) g^2
        u  = m/(1 - beta_1^t) / (sqrt(v/(1 - beta_2^t)) + epsilon) + weight_decay w
        w <- w - learning_rate |w|/|u| u

    The trust ratio |w|/|u| is 1 where either norm is 0, and for variables excluded from layer
    adaptation. Norms are of the whole variable, accumulated in float32 (float64 for float64
    variables); so are the moments of float16 and bfloat16 variables.

    NVLAMB, NVIDIA's variant, is `exclude_from_layer_adaptation=[]` with `global_clipnorm=1.0`:
    every variable is adapted, and gradients whose norm together is over 1 are scaled down to it.

    Args:
        learning_rate: A float, a `LearningRateSchedule` or a callable without arguments.
            Defaults to 0.001.
        beta_1: Decay of the first moment, in [0, 1). Defaults to 0.9 (the paper).
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.999 (the paper).
        epsilon: Added to the root of the second moment. Defaults to 1e-6 (the authors' code).
        weight_decay: Decay inside the trust ratio; None is 0. Defaults to 0.0; the paper
            trains BERT with 0.01.
        exclude_from_weight_decay: List of regexes, searched in the variables' paths
            (`encoder/layer_0/attention/bias`), or "norm_and_bias": every bias, and the scale and
            offset of every normalization. Defaults to None: nothing is excluded.
        exclude_from_layer_adaptation: List of regexes. Defaults to None: the variables that are
            excluded from weight decay. An empty list excludes nothing.
        bias_correction: Whether to divide the moments by 1 - beta^t, as version 5 of the paper
            does; version 3 does not. Defaults to True.
        weight_decay_mode: "update" as above; "decoupled" subtracts learning_rate weight_decay w
            from w first, outside the ratio (`keras.optimizers.Lamb`). Defaults to "update" (the
            paper).
        phi_bounds: Smallest and largest value that |w| has in the ratio. Defaults to None: phi is
            the identity (the authors' code).
        ratio_bounds: Smallest and largest trust ratio; an excluded variable's 1 is held within
            them, too. Defaults to None; DeepSpeed has (0.01, 10).
        layer_groups: List of regexes. The variables of one Keras layer that match, say a kernel
            and its bias, share one trust ratio. Defaults to None: each variable has its own.
        layer_slices: Dict from a regex to an axis, or to [axis, blocks]: each slice, or each
            block of them, has a ratio of its own. `{"qkv/kernel": [-1, 3]}` treats Q, K and V
            apart, `{"stacked/": 0}` the layers of a scan. Defaults to None.
        clipnorm: The largest norm of each gradient. Defaults to None. All clipping happens
            after the gradients of replicas and micro-batches are aggregated.
        clipvalue: The largest absolute value in a gradient. Defaults to None.
        global_clipnorm: The largest norm of all gradients together. Defaults to None; the
            authors train with 1.0.
        use_ema: Whether to keep an exponential moving average of the weights.
            Defaults to False.
        ema_momentum: Momentum of that average, in [0, 1]. Defaults to 0.99.
        ema_overwrite_frequency: Steps after which the average replaces the weights. Defaults to
            None: at the end of `fit` only.
        loss_scale_factor: In Keras 3, what the loss is multiplied by and gradients are divided by,
            as in every optimizer of Keras. Defaults to None.
        gradient_accumulation_steps: Micro-batches whose mean gradient makes one step; schedules
            and `iterations` count steps. Defaults to None: every batch is a step.
        slot_dtype: "float32", or "bfloat16" with stochastic rounding. Memory of the two moments:
            8 bytes a parameter, or 4. Defaults to "float32".
        master_weights: Whether float16 and bfloat16 variables have a float32 master, 4 bytes a
            parameter more, on which the rule works. Defaults to False.
        shard_update: In Keras 3 on JAX, whether each device of the data axis keeps its share of the
            slots, masters, averages and accumulators, and computes its share of the update, with
            the norms of whole variables (Xu et al., arXiv 2004.13336). Defaults to False.
        on_nonfinite: What becomes of a step whose gradients, of all replicas and micro-batches,
            hold a NaN or what float32 cannot square. "skip" leaves weights, slots, averages and
            `iterations` as they are and counts it in `skipped_steps`; "raise" leaves them, too,
            and raises the host's error, naming the variables, except in a step that XLA compiles
            whole; "propagate" takes the step. Defaults to "skip".
        jit_compile: Whether XLA compiles the update on TensorFlow. Defaults to True.
        name: Name of the optimizer. Defaults to "LAMB".

    Raises:
        ValueError, TypeError: at construction, for a hyper-parameter out of its range, a pattern
            that is no regex, an unknown argument.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    >>> optimizer = tf_lamb.LAMB(
    ...     1e-3, weight_decay=0.01, exclude_from_weight_decay=["bias"])
    >>> model.compile(optimizer=optimizer, loss="mse")

    References:
        - You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes,
          https://arxiv.org/abs/1904.00962v5, Algorithm 2
    """

    rule = staticmethod(rules.lamb)
    slot_names = ("m", "v")
    settings_class = settings.RatioSettings

    def __init__(
        self,
        learning_rate: settings.LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float | None = 0.0,
        exclude_from_weight_decay: settings.Patterns = None,
        exclude_from_layer_adaptation: settings.Patterns = None,
        *,
        bias_correction: bool = True,
        weight_decay_mode: str = "update",
        phi_bounds: settings.Bounds = None,
        ratio_bounds: settings.Bounds = None,
        layer_groups: settings.Patterns = None,
        layer_slices: settings.Slices = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        loss_scale_factor: float | None = None,
        gradient_accumulation_steps: int | None = None,
        slot_dtype: str = "float32",
        master_weights: bool = False,
        shard_update: bool = False,
        on_nonfinite: str = "skip",
        jit_compile: bool = True,
        name: str | None = "LAMB",
    ):
        super().__init__(**settings.constructor_arguments(locals()))
