"""The published recipes of BERT-large and of ResNet-50 on ImageNet.

Rules give a recipe for any batch. The two-stage runs of BERT-large are fixed recipes.
"""

import math
from fractions import Fraction
from typing import Any

from tf_lamb.core import checks
from tf_lamb.core.recipes.arithmetic import (
    IMAGENET,
    NORM_AND_BIAS,
    UNTUNED_LAMB,
    epochs_to_steps,
    in_epochs,
    nearest,
    training,
    warn_outside,
)
from tf_lamb.core.recipes.recipe import Recipe, StagedRecipe

_BERT: dict[str, Any] = {
    **UNTUNED_LAMB, "model": "BERT", "weight_decay": 0.01, "handover": "drop",
}  # fmt: skip
_NVIDIA = "NVIDIA DeepLearningExamples, PyTorch/LanguageModeling/BERT"


def untuned_lamb_bert(batch_size: int) -> Recipe:
    """LAMB for BERT-large, untuned: the rate grows with the square root of the batch.

    With j = log2(batch_size / 512):

        learning_rate = 5 / (2^(3 - j/2) 1000) = 0.005 sqrt(batch_size / 32768)
        steps         = 1000000 512 / batch_size
        warmup        = 2^j/320 of the steps, which is 3,125 steps at every batch

    Decay counts from step 0, as in the authors' BERT code: the rate drops when warmup ends. 9/10 of
    the examples are sequences of 128 tokens and the rest of 512: at 32,768, 14,063 and 1,562 steps.
    The paper reports this training; this package has not run it.

    Args:
        batch_size: The batch size; the paper has the powers of 2 from 512 to 32,768.

    Raises:
        TypeError: if the batch is not an integer.
        ValueError: if it is above 163,840: warmup would be longer than training.

    Example:
        >>> recipe = untuned_lamb_bert(32768)
        >>> recipe.learning_rate, recipe.warmup_steps, recipe.train_steps
        (0.005, 3125, 15625)

    References:
        You et al., Large batch optimization for deep learning, arXiv 1904.00962.
    """
    batch_size = checks.integer("batch_size", batch_size)
    if not (steps := nearest(Fraction(1_000_000 * 512, batch_size))):
        raise ValueError(
            f"Nothing would be trained: 1,000,000 steps x 512 / batch_size {batch_size:,} is less "
            "than half a step. Take a smaller batch."
        )
    warn_outside(
        batch_size, 512, 32768,
        "Untuned LAMB for BERT was shown for batches of 512 to 32,768 (and of 65,536 in the first "
        f"stage of bert_mixed_batch), not for {batch_size:,}.",
    )  # fmt: skip
    learning_rate = 5e-3 * math.sqrt(batch_size / 32768)
    ratio = batch_size / 512 / 320
    return Recipe(
        title="Untuned LAMB for BERT-large",
        batch_size=batch_size,
        learning_rate=learning_rate,
        warmup_steps=3125,
        train_steps=steps,
        arithmetic=(
            f"learning rate = 0.005 x sqrt({batch_size:,} / 32,768) = {learning_rate:.4g}",
            f"training = 1,000,000 steps x 512 / {batch_size:,} = {steps:,} steps",
            f"warmup = {batch_size:,} / 512 / 320 = {ratio:.4g} of training = 3,125 steps",
        ),
        source="You et al., arXiv 1904.00962, the BERT table of untuned LAMB",
        **_BERT,
    )


def bert_mixed_batch() -> StagedRecipe:
    """BERT-large in 8,599 steps: batch 65,536 at 128 tokens, then 32,768 at 512, warmed up again.

    Nine tenths of 512 million sequences at 65,536, and one tenth at 32,768, would be 7,031 and
    1,562 steps, 8,593 in all. The paper's total is 8,599, and its own count for stage 2 is 1,562
    (of 15,625 = 14,063 + 1,562). This leaves 7,037 for stage 1. The purpose of the six extra steps
    is unknown. The paper's rates for this run are also unknown: peaks and warmups here are NVIDIA's
    for the same stages (`nvidia_bert`), and the linear decay is the paper's. The untuned rule does
    not work here: its 3,125 steps of warmup are longer than stage 2.

    Example:
        >>> recipe = bert_mixed_batch()
        >>> [(stage.batch_size, stage.sequence_length, stage.train_steps) for stage in recipe]
        [(65536, 128, 7037), (32768, 512, 1562)]
        >>> recipe.train_steps
        8599

    References:
        You et al., Large batch optimization for deep learning, arXiv 1904.00962.
    """
    source = f"You et al., arXiv 1904.00962, mixed-batch BERT; rate and warmup from {_NVIDIA}"

    def stage(number, batch_size, length, learning_rate, warmup, steps, share):
        count = f"{share} x 1,000,000 x 512 / {batch_size:,}"
        exact = share * 1_000_000 * 512 / batch_size
        return Recipe(
            title=f"Mixed-batch BERT-large, stage {number}",
            batch_size=batch_size,
            sequence_length=length,
            learning_rate=learning_rate,
            warmup_steps=warmup,
            train_steps=steps,
            arithmetic=(
                f"learning rate = {learning_rate:g} (NVIDIA's)",
                f"training = {steps:,} steps, as published ({count} = {exact:,.1f})",
                f"warmup = {warmup:,} steps from 0 (NVIDIA's)",
            ),
            source=source,
            **_BERT,
        )

    return StagedRecipe(
        title="Mixed-batch BERT-large",
        stages=(
            stage(1, 65536, 128, 6e-3, 2000, 7037, 0.9),
            stage(2, 32768, 512, 4e-3, 200, 1562, 0.1),
        ),
        arithmetic=("stage 1 = 8,599 published in all - 1,562 of stage 2 = 7,037 steps",),
        source=source,
    )


def nvidia_bert() -> StagedRecipe:
    """NVIDIA's two phases of BERT-large: 65,536 at 128 tokens, then 32,768 at 512; 8,601 steps.

    The rate falls with the square root of the remaining steps, counted from step 0. Warmup is
    published as a share of training and rounded down to steps: 0.2843 x 7,038 = 2,000.9. So the
    2,001st step is the first step of decay. Phase 2 keeps the moments and sets the optimizer's step
    back to 0. Biases and norms are neither decayed nor adapted, as in NVIDIA's PyTorch code; its
    TensorFlow code has other batches and adapts every variable.

    Example:
        >>> [(p.learning_rate, p.warmup_steps, p.train_steps) for p in nvidia_bert()]
        [(0.006, 2000, 7038), (0.004, 200, 1563)]

    References:
        github.com/NVIDIA/DeepLearningExamples, PyTorch/LanguageModeling/BERT.
    """

    def phase(number, batch_size, length, learning_rate, share, steps):
        warmup = math.floor(share * steps)
        return Recipe(
            title=f"NVIDIA BERT-large, phase {number}",
            batch_size=batch_size,
            sequence_length=length,
            learning_rate=learning_rate,
            warmup_steps=warmup,
            train_steps=steps,
            power=0.5,
            arithmetic=(
                f"learning rate = {learning_rate:g}",
                f"training = {steps:,} steps",
                f"warmup = {share:g} x {steps:,} = {share * steps:,.1f}, down to {warmup:,} steps",
            ),
            source=_NVIDIA,
            **_BERT,
        )

    return StagedRecipe(
        title="NVIDIA BERT-large",
        stages=(
            phase(1, 65536, 128, 6e-3, 0.2843, 7038),
            phase(2, 32768, 512, 4e-3, 0.128, 1563),
        ),
        source=_NVIDIA,
    )


def published_time(model: str, batch_size: int, train_steps: int) -> str | None:
    """Returns the published time of a run with this batch and number of steps, or None."""
    stages = bert_mixed_batch().stages if model == "BERT" else ()
    if (batch_size, train_steps) in [(s.batch_size, s.train_steps) for s in stages]:
        return "76.19 minutes for both stages of BERT-large on 1,024 v3 chips (You et al.)"
    return None


def untuned_lamb_resnet50(batch_size: int, examples: int = IMAGENET, epochs: float = 90) -> Recipe:
    """LAMB for ResNet-50 on ImageNet, untuned: the rate grows with the root of the batch.

    With j = log2(batch_size / 512):

        learning_rate = 4 / (2^(3 - j/2) 100) = 0.04 sqrt(batch_size / 32768)
        warmup epochs = 0.3125 2^j

    Then the rate falls linearly from the peak to 0. Weight decay is 1.5; a large value works,
    because the trust ratio divides it out. Batch norm and biases are excluded, as in the paper and
    the PyTorch reproduction. The first author's own run at 32,768 (76.3 % top-1) decays and adapts
    the bias of the last layer:
    `dataclasses.replace(recipe, exclude_from_weight_decay=("gamma", "beta"))`.

    Args:
        batch_size: The batch size; the paper has the powers of 2 from 512 to 32,768.
        examples: The size of the training set. Defaults to ImageNet's.
        epochs: Number of epochs. Defaults to 90 (the paper).

    Raises:
        TypeError: if an argument is not a number.
        ValueError: if an argument is out of range, or warmup is longer than training.

    Example:
        >>> recipe = untuned_lamb_resnet50(32768)
        >>> recipe.learning_rate, recipe.warmup_steps, recipe.train_steps
        (0.04, 782, 3519)

    References:
        You et al., Large batch optimization for deep learning, arXiv 1904.00962; github.com/
        fastalgo/imagenet_resnet50_lamb; github.com/NUS-HPC-AI-Lab/pytorch-lamb.
    """
    return _by_the_root(
        batch_size, examples, epochs,
        title="Untuned LAMB for ResNet-50",
        shown="Untuned LAMB for ResNet-50",
        rate=(0.005, "0.04 x sqrt({:,} / 32,768)"),
        warmup=(0.3125, "0.3125 x {:,} / 512"),
        weight_decay=1.5,
        source="You et al., arXiv 1904.00962, the ResNet-50 table of untuned LAMB",
        **UNTUNED_LAMB,
    )  # fmt: skip


def legw_resnet50_lars(batch_size: int, examples: int = IMAGENET, epochs: float = 90) -> Recipe:
    """LARS for ResNet-50 on ImageNet by LEGW, from 1,024 at 2^2.5 and 10/2^5 epochs of warmup.

        learning_rate = 2^2.5 sqrt(batch_size / 1024)
        warmup epochs = 10/2^5 batch_size / 1024

    Then the rate falls as a polynomial of power 2 over the remaining steps.

    Args:
        batch_size: The batch size. Public code reproduced 512, 1,024, 4,096 and 8,192 (76.95,
            77.06, 77.38 and 77.14 % top-1); the paper goes up to 32,768.
        examples: The size of the training set. Defaults to ImageNet's.
        epochs: Number of epochs. Defaults to 90 (both).

    Raises:
        TypeError: if an argument is not a number.
        ValueError: if an argument is out of range, or warmup is longer than training.

    Example:
        >>> recipe = legw_resnet50_lars(8192)
        >>> recipe.learning_rate, recipe.warmup_epochs, recipe.warmup_steps, recipe.train_steps
        (16.0, 2.5, 391, 14075)

    References:
        You et al., Large-batch training for LSTM and beyond, arXiv 1901.08256; github.com/
        NUS-HPC-AI-Lab/LARS-ImageNet-PyTorch.
    """
    return _by_the_root(
        batch_size, examples, epochs,
        title="LEGW for ResNet-50",
        shown="LARS by LEGW",
        optimizer="LARS",
        rate=(4.0, "2^2.5 x sqrt({:,} / 1,024)"),
        warmup=(10 / 2**6, "10 / 2^5 x {:,} / 1,024"),
        power=2.0,
        weight_decay=1e-4,
        exclude_from_weight_decay=NORM_AND_BIAS,
        momentum=0.9,
        epsilon=1e-5,
        trust_coefficient=0.001,
        source="You et al., arXiv 1901.08256 (LEGW); NUS-HPC-AI-Lab/LARS-ImageNet-PyTorch",
    )  # fmt: skip


def _by_the_root(batch_size, examples, epochs, *, shown, rate, warmup, **given) -> Recipe:
    """Makes a recipe; `rate` and `warmup` are (value at batch 512, the source's formula)."""
    batch_size = checks.integer("batch_size", batch_size)
    train_steps = training(epochs, examples, batch_size)
    warn_outside(
        batch_size, 512, 32768,
        f"{shown} was shown for batches of 512 to 32,768, not for {batch_size:,}.",
    )  # fmt: skip
    learning_rate = rate[0] * math.sqrt(batch_size / 512)
    warmup_epochs = warmup[0] * batch_size / 512
    return Recipe(
        model="ResNet-50",
        batch_size=batch_size,
        learning_rate=learning_rate,
        warmup_steps=epochs_to_steps(warmup_epochs, examples, batch_size),
        train_steps=train_steps,
        label_smoothing=0.1,
        examples=examples,
        epochs=epochs,
        warmup_epochs=warmup_epochs,
        arithmetic=(
            f"learning rate = {rate[1].format(batch_size)} = {learning_rate:.4g}",
            in_epochs("training", epochs, examples, batch_size),
            f"warmup epochs = {warmup[1].format(batch_size)} = {warmup_epochs:g}",
            in_epochs("warmup", warmup_epochs, examples, batch_size),
        ),
        **given,
    )
