"""Muon: what a user reads and types, whichever Keras it belongs to."""

import dataclasses
from typing import Any, NoReturn

from tf_lamb.api.optimizers import settings
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.core import rules


@dataclasses.dataclass(frozen=True, kw_only=True)
class MuonSettings(settings.Settings):
    """Of Muon, which orthogonalizes matrices, embeddings left out unless the user says what is."""

    def planning(self):
        excluded = self.exclude_from_layer_adaptation
        matrices = ("embedding",) if excluded is None else ()
        own = {"exclude_from_layer_adaptation": excluded or (), "matrices": matrices}
        return super().planning() | own

    def check_plan(self, plan):
        if not any(treatment.adapt for treatment in plan.treatments):
            raise ValueError(
                f"{self.name} would orthogonalize nothing: none of its {len(plan.paths)} variables "
                "is a matrix that exclude_from_layer_adaptation leaves. Narrow that list, or train "
                "with LAMB."
            )


class Muon(Layerwise):
    """Muon, momentum orthogonalized for matrices; Adam or LAMB for all that is none.

    Per matrix, rows in and columns out, at every step:

        m  <- momentum m + g
        u   = g + momentum m
        O   = NewtonSchulz(u)              about UV' of the singular value decomposition of u
        w  <- w - learning_rate (s O + weight_decay w)

    A matrix is a variable of two axes; of more, as a convolution's kernel, all but the last are
    one. s is 0.2 sqrt(max(rows, columns)), with which O is as long as AdamW's update, so that
    AdamW's learning rate and decay serve. What is no matrix, what has "embedding" in its path, and
    what `exclude_from_layer_adaptation` matches instead, is stepped by `others`. Name the output
    layer there: its kernel should be no matrix either. `describe()` shows which is which.

    It keeps its efficiency at batches beyond AdamW's critical one; its five products of matrices a
    step are work that LAMB does not have. Under `keras.distribution` a product wants the whole
    matrix, which XLA then gathers.

    Args:
        learning_rate: A float, a `LearningRateSchedule` or a callable without arguments.
            Defaults to 0.001.
        momentum: In [0, 1). Defaults to 0.95 (Jordan).
        weight_decay: Decoupled decay; None is 0. Defaults to 0.0; Moonlight has 0.1.
        exclude_from_weight_decay: List of regexes, searched in the variables' paths
            (`encoder/layer_0/attention/bias`), or "norm_and_bias": every bias, and the scale and
            offset of every normalization. Defaults to None: nothing is excluded.
        exclude_from_layer_adaptation: List of regexes of variables that are stepped by `others`.
            Defaults to None: ["embedding"], in silence where nothing matches it.
        nesterov: False makes u m. Defaults to True (Jordan).
        newton_schulz_steps: Iterations, each three products of matrices. Defaults to 5 (Jordan).
        update_scale: "rms" as above; "shape" makes s the root of max(1, columns/rows). Defaults to
            "rms" (Moonlight); Jordan has "shape".
        others: "adamw", or "lamb", with a trust ratio for what has two axes or more. Defaults to
            "adamw".
        others_rate: What the learning rate is multiplied by for the others. Defaults to 1.0.
        beta_1: Decay of the others' first moment, in [0, 1). Defaults to 0.9.
        beta_2: Decay of their second moment, in [0, 1). Defaults to 0.999.
        epsilon: Added to the root of the second moment. Defaults to 1e-8.
        clipnorm: The largest norm of each gradient. Defaults to None. All clipping happens
            after the gradients of replicas and micro-batches are aggregated.
        clipvalue: The largest absolute value in a gradient. Defaults to None.
        global_clipnorm: The largest norm of all gradients together. Defaults to None.
        use_ema: Whether to keep an exponential moving average of the weights.
            Defaults to False.
        ema_momentum: Momentum of that average, in [0, 1]. Defaults to 0.99.
        ema_overwrite_frequency: Steps after which the average replaces the weights. Defaults to
            None: at the end of `fit` only.
        loss_scale_factor: In Keras 3, what the loss is multiplied by and gradients are divided by,
            as in every optimizer of Keras. Defaults to None.
        gradient_accumulation_steps: Micro-batches whose mean gradient makes one step; schedules
            and `iterations` count steps. Defaults to None: every batch is a step.
        slot_dtype: "float32", or "bfloat16" with stochastic rounding. Memory of the momentum:
            4 bytes a parameter of a matrix, or 2; twice that of the others. Defaults to "float32".
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
        name: Name of the optimizer. Defaults to "Muon".

    Raises:
        ValueError, TypeError: at construction, for a hyper-parameter out of its range, a pattern
            that is no regex, an unknown argument.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    >>> optimizer = tf_lamb.Muon(
    ...     1e-3, weight_decay=0.01, exclude_from_weight_decay=["bias"])
    >>> model.compile(optimizer=optimizer, loss="mse")

    References:
        - Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024
        - Liu et al., Muon is Scalable for LLM Training, https://arxiv.org/abs/2502.16982
        - Shah et al., Practical Efficiency of Muon for Pretraining,
          https://arxiv.org/abs/2505.02222
    """

    rule = staticmethod(rules.muon)
    slot_names = ("m", "v")
    settings_class = MuonSettings
    takes_gain = False

    def __init__(
        self,
        learning_rate: settings.LearningRate = 0.001,
        momentum: float = 0.95,
        weight_decay: float | None = 0.0,
        exclude_from_weight_decay: settings.Patterns = None,
        exclude_from_layer_adaptation: settings.Patterns = None,
        *,
        nesterov: bool = True,
        newton_schulz_steps: int = 5,
        update_scale: str = "rms",
        others: str = "adamw",
        others_rate: float = 1.0,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
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
        name: str | None = "Muon",
        **unknown: NoReturn,
    ):
        super().__init__(**settings.given(locals()))

    def slots_of(self, treatment: Any) -> tuple[str, ...]:
        """A matrix has no second moment."""
        return self.slot_names[:1] if treatment.adapt else self.slot_names
