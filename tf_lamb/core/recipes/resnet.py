"""What was published for ResNet-50 on ImageNet as a rule: LAMB untuned, and LARS by LEGW."""

import math

from tf_lamb.core.recipes.arithmetic import (
    IMAGENET,
    NORM_AND_BIAS,
    UNTUNED_LAMB,
    epochs_to_steps,
    in_epochs,
    training,
    warn_outside,
    whole,
)
from tf_lamb.core.recipes.recipe import Recipe


def untuned_lamb_resnet50(batch_size: int, examples: int = IMAGENET, epochs: float = 90) -> Recipe:
    """LAMB for ResNet-50 on ImageNet, untuned: the rate by the square root, warmup by the batch.

    With j = log2(batch_size / 512):

        learning_rate = 4 / (2^(3 - j/2) 100) = 0.04 sqrt(batch_size / 32768)
        warmup epochs = 0.3125 2^j

    then linearly to 0, from the peak on. Weight decay is 1.5, since the trust ratio divides it
    out. Batch norm and biases are excluded, as in the paper and the PyTorch reproduction; the first
    author's own run at 32,768 (76.3 % top-1) decays and adapts the bias of the last layer:
    `dataclasses.replace(recipe, exclude_from_weight_decay=("gamma", "beta"))`.

    Args:
        batch_size: The batch to train with; the paper has the powers of 2 from 512 to 32,768.
        examples: The size of the training set. Defaults to ImageNet's.
        epochs: Passes over it. Defaults to 90 (the paper).

    Raises:
        ValueError: where an argument is out of range, or warmup is longer than training.

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

    then polynomial of power 2 over the steps that are left.

    Args:
        batch_size: The batch to train with; 512, 1,024, 4,096 and 8,192 were reproduced in the
            open (76.95, 77.06, 77.38 and 77.14 % top-1), the paper goes on to 32,768.
        examples: The size of the training set. Defaults to ImageNet's.
        epochs: Passes over it. Defaults to 90 (both).

    Raises:
        ValueError: where an argument is out of range, or warmup is longer than training.

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
    """The rate and the epochs of warmup: each at batch 512, and in the words of the source."""
    batch_size = whole("batch_size", batch_size)
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
