"""The framework-independent half of Muon: its signature, docstring, settings and rule."""

from typing import Unpack

from tf_lamb.api.optimizers import settings
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.core.plan import Treatment
from tf_lamb.core.rules.muon import RULE
from tf_lamb.core.stored import Slot


class MuonSettings(settings.MatrixSettings):
    """The settings of Muon, whose authors multiply matrices in bfloat16."""

    products_of_authors = "bfloat16"


@settings.documented
class Muon(Layerwise):
    """Muon, momentum orthogonalized for matrices; AdamW for everything else.

    Per matrix, rows in and columns out, at every step:

        m  <- momentum m + g
        u   = g + momentum m
        O   = NewtonSchulz(u)              about UV' of the singular value decomposition of u
        w  <- w - learning_rate (s O + weight_decay w)

    s is 0.2 sqrt(max(rows, columns)), with which O is as long as AdamW's update, so that AdamW's
    learning rate and decay serve. Paths and shapes tell what is a matrix, and which of its axes are
    rows; `tf_lamb.describe` shows it. Of two axes the first is. Of a kernel of more,

        a convolution's (..., in, out)                      all but the last
        attention's query, key, value (model, heads, size)  the first
        attention's output (heads, size, model)             all but the last

    in the layers of Keras, KerasHub and Model Garden, whose other orders of the three are known,
    too. LoRA's two factors are matrices both, or AdamW's both, as an `Embedding`'s are. AdamW steps
    the rest: biases, normalizations, what has one axis, depthwise kernels, experts, and a kernel of
    three axes that neither has "conv" in its path nor is known; what has "embedding" in its path;
    and what `exclude_from_layer_adaptation` matches instead. Jordan and Moonlight leave the output
    layer to AdamW, too: name it there. Give a `Conv2D` with groups, and in Keras 3 a
    `DepthwiseConv2D` of several channels with a name of its own, `{"rows": None}` in `treatments`:
    they look like any other convolution, and their channels would be mixed.

    NewtonSchulz is X <- u / |u|, then in every step X <- a X + b (X X') X + c (X X')^2 X, which
    takes each singular value x to a x + b x^3 + c x^5. `coefficients` in `form` choose a, b and c;
    in float32 the values from 0.01 on end as follows, and in bfloat16 up to 0.12 beyond that:

        "jordan"         5 steps, 15 products; at 0.68 to 1.14 (Jordan)
        "polar_express"  5 steps, 15 products; at 0.87 to 1.13 (Amsel et al.: the first five of
                         their list, with their safety factor 1.01)
        "cubic5"         5 steps, 10 products, as c is 0; at 0.81 to 1.3 (Huang, with that factor,
                         too: else a matrix of rank one may move backwards in bfloat16)

    Its products of matrices are work that LAMB does not have. On a GPU or TPU they are in bfloat16
    (Jordan), unless `dtypes={"products": "float32"}`, and matrices of one shape are multiplied as
    one stack. Under `keras.distribution` a product wants the whole matrix, which
    XLA then gathers.

    Args:
        learning_rate: A float, a `LearningRateSchedule` or a callable without arguments.
            Defaults to 0.001, which is low for training from scratch: begin at 0.01.
        momentum: In [0, 1). Defaults to 0.95 (Jordan).
        weight_decay: Decoupled decay, a float or a schedule; None is 0. Defaults to 0.0; Moonlight
            has 0.1.
        exclude_from_layer_adaptation: List of regexes of variables that AdamW steps.
            Defaults to None: ["embedding"], without a warning where nothing matches.
        nesterov: False makes u m. Defaults to True (Jordan).
        form: Dict of what the published forms differ in; None is Moonlight's.
            "coefficients": "jordan", the default, "polar_express" or "cubic5"; three numbers
            [a, b, c] for every step; or a list of such three, one for each step.
            "newton_schulz_steps": iterations; by default those of the coefficients, and 5 where
            they are the same in every step, as Jordan's are.
            "update_scale": "rms" as above; "shape" makes s the root of max(1, columns/rows), as
            Jordan has it.
            "fallback_lr_scale": what the learning rate is multiplied by for AdamW; 1.0 by default.
            "norm": "constant" scales each matrix, or each of its slices, after a step to the norm
            it had, and refuses weight decay of matrices (Wen et al., Hyperball, with bounds
            {"trust_ratio": (None, None)}, by which a step is lr |w| long). No norm is stored, as
            theirs at the start is: what else changes |w|, averages at the end of `fit` or bfloat16
            weights without masters, is kept. A matrix that is near zero stays short. None by
            default.
            "heads": "each" makes each head of an attention's query, key and value, model x size, a
            matrix, so that no head's step depends on how long the others' momentum is (Kimi K3's
            Per-Head Muon; GLM-5's Muon Split has it for up-projections). One product has all heads
            as its batch. s, a ratio and a constant norm are those of each head: with "rms" a square
            kernel's step is as long as before. It takes what XLNet calls encoding and
            deformable attention attention_weights, too, and cuts a fused query_key_value of three
            axes by heads, with Q, K and V of a head together. The output's kernel, LoRA's factors
            and kernels with "rows" in treatments stay one matrix. None, the default: all heads
            together are one (Moonlight).
        bounds: Dict of a smallest and a largest value of "trust_ratio" and of "weight_norm", |w| in
            it; None in a pair is open. It gives each matrix LAMB's trust ratio: the step that the
            learning rate multiplies, s O, is multiplied by |w|/|s O| within the bounds; decay stays
            outside, and AdamW's variables have none. {"trust_ratio": (None, None)} is the ratio as
            it is; `treatments` can give each row or column its own. A "u/w floor" bounds |s O|/|w|
            instead, and is another thing. Defaults to None: no ratio.
        beta_1: Decay of AdamW's first moment, in [0, 1). Defaults to 0.9.
        beta_2: Decay of its second moment, in [0, 1). Defaults to 0.999.
        epsilon: Added to the root of the second moment. Defaults to 1e-8.
        {{shared_arguments}}

    Raises:
        ValueError, TypeError: at construction, for a hyper-parameter out of its range, a pattern
            that is no regex, an unknown argument, coefficients of another number of steps than
            newton_schulz_steps, a constant norm beside averages that overwrite weights.
        ValueError: at the first step, where `treatments` names axes that a variable does not have,
            where nothing is a matrix, or has the heads that `form` asks for, and where a matrix of
            constant norm decays.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    >>> optimizer = tf_lamb.Muon(
    ...     1e-3, weight_decay=0.01, exclude_from_weight_decay=["bias"])
    >>> model.compile(optimizer=optimizer, loss="mse")
    >>> optimizer.build(model.trainable_variables)
    >>> optimizer.describe(lambda table: print(table.splitlines()[1].split("yes")[1].strip()))
    matrix of 4 x 2

    References:
        - Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024
        - Liu et al., Muon is Scalable for LLM Training, https://arxiv.org/abs/2502.16982
        - Shah et al., Practical Efficiency of Muon for Pretraining,
          https://arxiv.org/abs/2505.02222
        - Amsel et al., The Polar Express: Optimal Matrix Sign Methods and Their Application to the
          Muon Algorithm, https://arxiv.org/abs/2505.16932
        - Kimi K3, section 2.5, https://arxiv.org/abs/2607.24653
        - GLM-5, https://arxiv.org/abs/2602.15763
        - Huang, How Much Orthogonalization Does Muon Need?, https://arxiv.org/abs/2606.00371
        - Wen et al., Hyperball Optimization, 2025
    """

    rule = RULE
    settings_class = MuonSettings

    def __init__(
        self,
        learning_rate: settings.LearningRate = 0.001,
        momentum: float = 0.95,
        weight_decay: settings.WeightDecay = 0.0,
        exclude_from_weight_decay: settings.Patterns = None,
        exclude_from_layer_adaptation: settings.Patterns = None,
        *,
        nesterov: bool = True,
        form: settings.Form = None,
        bounds: settings.Bounds = None,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        name: str | None = "Muon",
        **shared: Unpack[settings.Shared],
    ):
        super().__init__(**settings.constructor_arguments(locals()))

    def slots_of(self, treatment: Treatment, shape: tuple[int, ...]) -> list[Slot]:
        """See base class; a matrix has no second moment."""
        return super().slots_of(treatment, shape)[: 1 if treatment.adapt else None]
