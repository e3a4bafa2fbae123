"""Rules that compute the settings of a large batch from a baseline tuned at a small batch.

Training has the steps of Keras's `fit`, ceil(examples / batch_size) per epoch; the schedule ends
with it. Warmup counts examples, and does not depend on that rounding.
"""

import math
from collections.abc import Iterable

from tf_lamb.core import checks
from tf_lamb.core.recipes.arithmetic import (
    IMAGENET,
    epochs_to_steps,
    fit_steps,
    in_epochs,
    in_fit,
    training,
    warn_outside,
)
from tf_lamb.core.recipes.recipe import Recipe


def legw(
    batch_size: int,
    base_batch_size: int,
    base_learning_rate: float,
    base_warmup_epochs: float,
    examples: int,
    epochs: float,
    *,
    decay: str = "polynomial",
    power: float = 1.0,
    handover: str = "continuous",
) -> Recipe:
    """LEGW: the rate grows with the square root of the batch, warmup (in epochs) with the batch.

        k = batch_size / base_batch_size
        learning_rate = base_learning_rate sqrt(k)
        warmup epochs = base_warmup_epochs k

    Warmup then has the same number of steps at every batch. Everything else stays as tuned, in
    epochs. The recipe does not contain weight decay and exclusions: pass the baseline's values to
    `from_recipe`, or add them with `dataclasses.replace`. A multi-step decay is added in that way.

    In this package's measurements LEGW kept the baseline's result at 8 times the batch and lost 1.6
    points of accuracy at 64 times. At a large k, warmup is longer than training. Then use
    `sqrt_scaling`, where warmup keeps its epochs, and search the rate around its result.

    Args:
        batch_size: The batch size of training.
        base_batch_size: The batch size of the tuned baseline.
        base_learning_rate: Its peak learning rate.
        base_warmup_epochs: Its warmup, in epochs.
        examples: The size of the training set.
        epochs: Number of epochs, as in the baseline.
        decay: The baseline's decay, "polynomial" or "constant". Defaults to "polynomial".
        power: Power of the polynomial. Defaults to 1; LEGW's ResNet-50 has 2.
        handover: "continuous", or "drop" if the baseline's decay counts from step 0.

    Raises:
        TypeError: if an argument is not a number.
        ValueError: if an argument is out of range, or warmup is longer than training.

    Example:
        >>> recipe = legw(8192, 128, 0.1, 0.2, examples=60000, epochs=25)
        >>> recipe.learning_rate, recipe.warmup_epochs, recipe.warmup_steps
        (0.8, 12.8, 94)

    References:
        You et al., Large-batch training for LSTM and beyond, arXiv 1901.08256.
    """
    return _square_root(
        "LEGW", "You et al., arXiv 1901.08256 (LEGW)", batch_size, base_batch_size,
        base_learning_rate, base_warmup_epochs, examples, epochs, stretch_warmup=True,
        decay={"decay": decay, "power": power, "handover": handover},
    )  # fmt: skip


def linear_scaling(
    batch_size: int,
    base_batch_size: int = 256,
    base_learning_rate: float = 0.1,
    warmup_epochs: float = 5.0,
    examples: int = IMAGENET,
    epochs: float = 90,
    *,
    decay_epochs: Iterable[float] | float | None = None,
) -> Recipe:
    """Linear scaling with gradual warmup, for SGD with Nesterov momentum.

        k = batch_size / base_batch_size
        learning_rate = base_learning_rate k, reached from base_learning_rate step by step

    Each decay epoch divides the rate by ten. Scale and shift of batch norm have no weight decay.
    The statistics of batch norm stay those of 32 examples at any batch.

    Args:
        batch_size: The batch size of training.
        base_batch_size: The batch size of the tuned baseline. Defaults to 256 (the paper).
        base_learning_rate: Its learning rate. Defaults to 0.1 (the paper).
        warmup_epochs: Warmup in epochs, at any batch. Defaults to 5 (the paper).
        examples: The size of the training set. Defaults to ImageNet's.
        epochs: Number of epochs. Defaults to 90 (the paper).
        decay_epochs: Epochs of decay. Defaults to 1/3, 2/3 and 8/9 of the epochs: 30, 60 and 80 of
            90 (the paper).

    Raises:
        TypeError: if an argument is not a number.
        ValueError: if an argument is out of range, a decay epoch lies within the warmup or after
            the end, or two of them are at one step.

    Example:
        >>> recipe = linear_scaling(8192)
        >>> recipe.initial_learning_rate, recipe.learning_rate, recipe.boundaries
        (0.1, 3.2, (4710, 9420, 12560))

    References:
        Goyal et al., Accurate, large minibatch SGD, arXiv 1706.02677.
    """
    batch_size = checks.integer("batch_size", batch_size)
    train_steps = training(epochs, examples, batch_size, fit_steps)
    k = batch_size / checks.integer("base_batch_size", base_batch_size)
    base_learning_rate = checks.number("base_learning_rate", base_learning_rate, "(0, inf)")
    checks.number("warmup_epochs", warmup_epochs, "[0, inf)")
    if decay_epochs is None:
        decay_epochs = (epochs / 3, epochs * 2 / 3, epochs * 8 / 9)
    decay_epochs = tuple(decay_epochs) if isinstance(decay_epochs, Iterable) else (decay_epochs,)
    if list(decay_epochs) != sorted(decay_epochs) or not all(0 < e < epochs for e in decay_epochs):
        raise ValueError(
            f"decay_epochs must rise from above 0 to below the end of training at epoch "
            f"{epochs:g}, not {decay_epochs!r}."
        )
    if decay_epochs and warmup_epochs > decay_epochs[0]:
        raise ValueError(
            f"The rate would decay at epoch {decay_epochs[0]:.3g}, within its warmup of "
            f"{warmup_epochs:g} epochs: pass warmup_epochs={decay_epochs[0]:.3g} at most."
        )
    boundaries = tuple(fit_steps(epoch, examples, batch_size) for epoch in decay_epochs)
    if len(set(boundaries)) < len(boundaries):
        raise ValueError(
            f"The rate would decay twice at one step, at steps {', '.join(map(str, boundaries))} "
            f"of {train_steps}: train longer, or pass fewer decay_epochs=."
        )
    warn_outside(
        k, 1, 32,
        "Linear scaling was shown to keep accuracy for batches 1 to 32 times that of the baseline "
        f"(8,192 against 256), and {batch_size:,} is {k:g} times {base_batch_size:,}.",
    )  # fmt: skip
    learning_rate = base_learning_rate * k
    # No warmup from above, should the batch be smaller than the baseline's.
    initial = min(base_learning_rate, learning_rate)
    return Recipe(
        title="Linear scaling",
        optimizer="SGD",
        batch_size=batch_size,
        learning_rate=learning_rate,
        initial_learning_rate=initial,
        warmup_steps=epochs_to_steps(warmup_epochs, examples, batch_size),
        train_steps=train_steps,
        decay="multi_step",
        boundaries=boundaries,
        decay_rate=0.1,
        weight_decay=1e-4,
        exclude_from_weight_decay=("batch_normalization|_bn/",),
        momentum=0.9,
        nesterov=True,
        batch_norm_span=32,
        examples=examples,
        epochs=epochs,
        warmup_epochs=warmup_epochs,
        arithmetic=(
            f"k = {batch_size:,} / {base_batch_size:,} = {k:g}",
            f"learning rate = {base_learning_rate:g} x {k:g} = {learning_rate:.4g}",
            in_fit(epochs, examples, batch_size),
            in_epochs("warmup", warmup_epochs, examples, batch_size) + f", from {initial:g}",
        ),
        source="Goyal et al., arXiv 1706.02677",
    )


def sqrt_scaling(
    batch_size: int,
    base_batch_size: int,
    base_learning_rate: float,
    base_warmup_epochs: float,
    examples: int,
    epochs: float,
    *,
    decay: str = "polynomial",
    power: float = 1.0,
    handover: str = "continuous",
) -> Recipe:
    """Square-root scaling: the rate grows with the square root of the batch.

        learning_rate = base_learning_rate sqrt(batch_size / base_batch_size)

    The noise of the mean gradient falls with the same root. Everything else stays as tuned,
    including warmup in epochs; `legw` also lengthens warmup.

    Args:
        batch_size: The batch size of training.
        base_batch_size: The batch size of the tuned baseline.
        base_learning_rate: Its peak learning rate.
        base_warmup_epochs: Its warmup, in epochs; 0 for none.
        examples: The size of the training set.
        epochs: Number of epochs, as in the baseline.
        decay, power, handover: The baseline's values; see `legw`.

    Raises:
        TypeError: if an argument is not a number.
        ValueError: if an argument is out of range, or warmup is longer than training.

    Example:
        >>> sqrt_scaling(4096, 256, 1e-3, 0, examples=60000, epochs=25).learning_rate
        0.004

    References:
        Hoffer et al., Train longer, generalize better, arXiv 1705.08741; the LAMB paper, arXiv
        1904.00962, scales its rates in this way.
    """
    source = "Hoffer et al., arXiv 1705.08741; You et al., arXiv 1904.00962"
    return _square_root(
        "Square-root scaling", source, batch_size, base_batch_size,
        base_learning_rate, base_warmup_epochs, examples, epochs, stretch_warmup=False,
        decay={"decay": decay, "power": power, "handover": handover},
    )  # fmt: skip


def _square_root(
    title, source, batch_size, base_batch_size, base_learning_rate, base_warmup_epochs, examples,
    epochs, *, stretch_warmup, decay,
) -> Recipe:  # fmt: skip
    batch_size = checks.integer("batch_size", batch_size)
    train_steps = training(epochs, examples, batch_size, fit_steps)
    k = batch_size / checks.integer("base_batch_size", base_batch_size)
    base_learning_rate = checks.number("base_learning_rate", base_learning_rate, "(0, inf)")
    checks.number("warmup epochs", base_warmup_epochs, "[0, inf)")
    warmup_epochs = base_warmup_epochs * k if stretch_warmup else base_warmup_epochs
    learning_rate = base_learning_rate * math.sqrt(k)
    warn_outside(
        k, 1, 64,
        f"{title} was shown for batches 1 to 64 times that of the baseline, and {batch_size:,} is "
        f"{k:g} times {base_batch_size:,}.",
    )  # fmt: skip
    stretched = f"warmup epochs = {base_warmup_epochs:g} x {k:g} = {warmup_epochs:g}"
    return Recipe(
        title=title,
        batch_size=batch_size,
        learning_rate=learning_rate,
        warmup_steps=epochs_to_steps(warmup_epochs, examples, batch_size),
        train_steps=train_steps,
        examples=examples,
        epochs=epochs,
        warmup_epochs=warmup_epochs,
        arithmetic=(
            f"k = {batch_size:,} / {base_batch_size:,} = {k:g}",
            f"learning rate = {base_learning_rate:g} x sqrt({k:g}) = {learning_rate:.4g}",
            in_fit(epochs, examples, batch_size),
            *([stretched] if stretch_warmup else []),
            in_epochs("warmup", warmup_epochs, examples, batch_size),
        ),
        source=source,
        **decay,
    )
