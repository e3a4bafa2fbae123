"""Defines the base class of Muon for all frameworks: signature, docstring, settings and rule."""

from typing import Unpack

from tf_lamb.api.optimizers import settings
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.core.plan import Treatment
from tf_lamb.core.rules.muon import RULE
from tf_lamb.core.stored import Slot


class MuonSettings(settings.MatrixSettings):
    """Checks and holds Muon's arguments. Muon's authors multiply matrices in bfloat16."""

    authors_product_dtype = "bfloat16"


@settings.documented
class Muon(Layerwise):
    """Muon, momentum orthogonalized for matrices; AdamW for everything else.

    Per matrix, with the layer's inputs as rows and its outputs as columns, at every step:

        m  <- momentum m + g
        u   = g + momentum m
        O   = NewtonSchulz(u)              about U V', where u = U S V' (singular values S)
        w  <- w - learning_rate (s O + weight_decay w)

    s is 0.2 sqrt(max(rows, columns)). It makes s O about as long as AdamW's update, so that AdamW's
    learning rate and weight decay can be used. The path and the shape of a variable decide whether
    it is a matrix, and which of its axes are the rows; `tf_lamb.describe` shows it. These axes are
    rows:

        two axes (in, out)                                       the first
        convolution (..., in, out)                               all but the last
        attention's query, key, value (model, heads, head size)  the first
        attention's output (heads, head size, model)             all but the last

    Attention is recognized by the names of layers in Keras, KerasHub and Model Garden, also where
    these have the three axes in another order. The two factors of LoRA are treated alike: both are
    matrices, or AdamW updates both, as for an `Embedding`.

    AdamW updates all other variables: biases, normalizations, variables of one axis, depthwise
    kernels, the stacked matrices of experts, kernels of three axes that are not recognized as
    attention and do not have "conv" in their path, and variables with "embedding" in their path. If
    you pass `exclude_from_layer_adaptation`, AdamW updates what it matches instead of the
    embeddings. Jordan and Moonlight leave the output layer to AdamW, too: pass a list that matches
    both.

    Path and shape do not tell a `Conv2D` with groups from any other convolution. The same holds in
    Keras 3 for a `DepthwiseConv2D` that has several output channels for each input channel and no
    "depthwise" in its name. Muon would mix channels that do not belong together: give such a kernel
    `{"rows": None}` in `treatments`, and AdamW updates it.

    NewtonSchulz is X <- u / |u|, then in every step X <- a X + b (X X') X + c (X X')^2 X, which
    takes each singular value x to a x + b x^3 + c x^5. `coefficients` in `form` selects a, b and c.
    In float32, singular values of u / |u| from 0.01 to 1 end in the following ranges, and in
    bfloat16 up to 0.12 outside of them:

        "jordan"         5 steps, 15 products; 0.68 to 1.14 (Jordan)
        "polar_express"  5 steps, 15 products; 0.87 to 1.13 (Amsel et al.: the first five of
                         their list, with their safety factor 1.01)
        "cubic5"         5 steps, 10 products, as c is 0; 0.81 to 1.3 (Huang; here with the factor
                         1.01, too: else a matrix of rank one may move backwards in bfloat16)

    LAMB does not need such products. On a GPU or TPU they are computed in bfloat16 (Jordan), unless
    `dtypes={"products": "float32"}`, and matrices of one shape are multiplied as one stack. A
    product takes whole matrices: XLA gathers those that `keras.distribution` splits over devices.

    Args:
        learning_rate: A float, a `LearningRateSchedule` or a callable without arguments.
            Defaults to 0.001, which is low for training from scratch: begin at 0.01.
        momentum: In [0, 1). Defaults to 0.95 (Jordan).
        weight_decay: Decoupled decay, a float or a schedule; None is 0. Defaults to 0.0; Moonlight
            has 0.1.
        exclude_from_layer_adaptation: List of regexes of variables that AdamW updates.
            Defaults to None: ["embedding"], without a warning where nothing matches.
        nesterov: Whether u is as above; with False, u = m. Defaults to True (Jordan).
        form: Dict that selects one of the published forms; None is Moonlight's.
            "coefficients": "jordan", the default, "polar_express" or "cubic5"; three numbers
            [a, b, c] for every step; or a list of such three, one for each step.
            "newton_schulz_steps": the number of steps; by default as many as have coefficients, and
            5 if the coefficients are the same in every step, as Jordan's are.
            "update_scale": "rms" as above; "shape" makes s the root of max(1, columns/rows), as
            Jordan has it.
            "fallback_lr_scale": the factor of the learning rate for AdamW; 1.0 by default.
            "norm": "constant" scales each matrix, or each of its slices, after every step to the
            norm that it had before, and refuses weight decay of matrices. With bounds
            {"trust_ratio": (None, None)}, which make a step learning_rate |w| long, it is Hyperball
            (Wen et al.), except that Hyperball stores the norm of the first weights. Here no norm
            is stored, so any other change of |w| stays: that by averages that replace weights at
            the end of `fit`, or by the rounding of bfloat16 weights without masters. A matrix near
            zero stays near zero. None, the default, lets steps change the norm.
            "heads": "each" makes each head of an attention layer's query, key and value kernel a
            matrix of model x head size, so that the step of a head does not depend on the length of
            the other heads' momentum (Kimi K3's Per-Head Muon; GLM-5's Muon Split has it for
            up-projections). The heads are multiplied as one batch. Each head has its own s, trust
            ratio and constant norm; with "rms" the step of a square kernel is as long as without
            "heads". It applies to XLNet's kernel "encoding" and deformable attention's
            "attention_weights", too. A fused query_key_value kernel of three axes is cut into heads
            that have their Q, K and V together. The output kernel, LoRA's factors and kernels with
            "rows" in `treatments` stay one matrix. None, the default: all heads together are one
            matrix (Moonlight).
        bounds: Dict of "trust_ratio" and "weight_norm", each a pair of the smallest and the largest
            value: of the ratio, and of |w| in it. None in a pair is no bound. Any bounds give each
            matrix LAMB's trust ratio: s O is multiplied by |w|/|s O|, within the bounds. Weight
            decay is not multiplied, and AdamW's variables have no ratio. {"trust_ratio": (None,
            None)} is the ratio without bounds; "slices" in `treatments` gives each row or column a
            ratio. The "u/w floor" of other implementations is not this: it bounds |s O|/|w|.
            Defaults to None: no trust ratio.
        beta_1: Decay of AdamW's first moment, in [0, 1). Defaults to 0.9.
        beta_2: Decay of AdamW's second moment, in [0, 1). Defaults to 0.999.
        epsilon: Added to the root of AdamW's second moment. Defaults to 1e-8.
        {{shared_arguments}}

    Raises:
        ValueError, TypeError: at construction, for a hyper-parameter out of its range, a pattern
            that is no regex, an unknown argument, coefficients of another number of steps than
            newton_schulz_steps, a constant norm beside averages that overwrite weights.
        ValueError: at the first step, if `treatments` names axes that a variable does not have, if
            no variable is a matrix, if none has the heads that `form` asks for, or if a matrix of
            constant norm has weight decay.

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
