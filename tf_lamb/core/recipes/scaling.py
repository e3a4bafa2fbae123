"""Scales the learning rate and warmup of a baseline that was tuned at a small batch.

Training by `scale` has as many steps as in Keras's `fit`, ceil(examples / batch_size) per epoch,
and the schedule ends with the last one. `scale_by_rule` may count steps in another way. Warmup is
converted without rounding per epoch: it has epochs x examples / batch_size steps, rounded once.
"""

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

from tf_lamb.core import checks
from tf_lamb.core.messages import warn
from tf_lamb.core.recipes.recipe import Recipe

# Rule -> (its title, the largest k = batch / base batch for which its source has shown that it
# works, its source).
RULES = {
    "sqrt": (
        "Square-root scaling", 64, "Hoffer et al., arXiv 1705.08741; You et al., arXiv 1904.00962"
    ),
    "linear": ("Linear scaling", 32, "Goyal et al., arXiv 1706.02677"),
    "legw": ("LEGW", 64, "You et al., arXiv 1901.08256 (LEGW)"),
}  # fmt: skip


def round_half_up(value) -> int:
    """Rounds a number to the nearest integer, and halves up, without any floating-point error."""
    return math.floor(Fraction(value) + Fraction(1, 2))


def epochs_to_steps(epochs: float, examples: int, batch_size: int) -> int:
    """Returns epochs x examples / batch_size, rounded to the nearest step.

    Args:
        epochs: The number of epochs to convert.
        examples: The number of examples in an epoch.
        batch_size: The number of examples in a step.
    """
    return round_half_up(Fraction(float(epochs)) * int(examples) / batch_size)


def fit_steps(epochs: float, examples: int, batch_size: int) -> int:
    """Returns the number of steps in Keras's `fit`: epochs x ceil(examples / batch_size), rounded.

    The last batch of an epoch may be smaller than the others.

    Args:
        epochs: The number of epochs to convert.
        examples: The number of examples in an epoch.
        batch_size: The number of examples in a step.
    """
    return round_half_up(Fraction(float(epochs)) * math.ceil(Fraction(int(examples), batch_size)))


def training_steps(
    epochs: float, examples: int, batch_size: int, count_steps=epochs_to_steps
) -> int:
    """Checks the arguments and returns the number of steps of a run.

    If `count_steps` is `fit_steps`, a batch that is larger than all examples causes a warning.

    Args:
        epochs: The length of the run, in epochs.
        examples: The number of examples in an epoch.
        batch_size: The number of examples in a step.
        count_steps: The function that computes steps from the three other arguments: `fit_steps` or
            `epochs_to_steps`. Defaults to `epochs_to_steps`.

    Raises:
        TypeError: if an argument is not a number.
        ValueError: if an argument is out of range, or the run has no step.
    """
    checks.number("epochs", epochs, "(0, inf)")
    examples = checks.integer("examples", examples, maximum=math.inf)
    steps = count_steps(epochs, examples, checks.integer("batch_size", batch_size))
    if steps < 1:
        raise ValueError(
            f"Nothing would be trained: {epochs:g} epochs x {examples:,} examples / batch_size "
            f"{batch_size:,} = {epochs * examples / batch_size:.3g} steps. Take a smaller batch."
        )
    if count_steps is fit_steps and batch_size > examples:
        warn(
            f"A batch of {batch_size:,} is larger than all {examples:,} examples: fit makes "
            f"batches of {examples:,}, for which a rate for {batch_size:,} is too high."
        )
    return steps


def epochs_line(
    name: str, epochs: float, examples: int, batch_size: int, count_steps=epochs_to_steps
) -> str:
    """Returns one line such as "warmup = 5 epochs x 8,000 / 32 = 1,250 steps".

    Args:
        name: What takes that many epochs, such as "warmup".
        epochs: The number of epochs to convert.
        examples: The number of examples in an epoch.
        batch_size: The number of examples in a step.
        count_steps: The function that converts epochs to steps: `fit_steps` or `epochs_to_steps`.
            Defaults to `epochs_to_steps`.
    """
    quotient_text = f"{examples:,} / {batch_size:,}"
    if count_steps is fit_steps and examples % batch_size:
        quotient_text = f"ceil({quotient_text})"
    steps = count_steps(epochs, examples, batch_size)
    return f"{name} = {epochs:g} epochs x {quotient_text} = {steps:,} steps"


def scale(
    batch_size: int, base_batch_size: int, base_learning_rate: float, base_warmup_epochs: float,
    examples: int, epochs: float, *, rule: str = "sqrt",
    decay: str | Iterable[float] = "polynomial", power: float = 1.0, handover: str = "continuous",
) -> Recipe:  # fmt: skip
    """Scales the learning rate and warmup of your own baseline to another batch size.

    With k = batch_size / base_batch_size:

        rule      learning rate   warmup           shown up to
        "sqrt"    x sqrt(k)       as many epochs   k = 64
        "linear"  x k             as many epochs   k = 32, with SGD
        "legw"    x sqrt(k)       x k epochs       k = 64

    Beyond the k of the last column, and below k = 1, no source has shown that the rule works; there
    is a warning. LEGW keeps the number of warmup steps. If that is longer than training, at a large
    k, take "sqrt", and search the rate around its result. Linear scaling warms up from the
    baseline's rate.

    The rest of the schedule stays as tuned, in epochs. The recipe does not contain weight decay,
    exclusions and momentum: pass the baseline's values to `from_recipe`. Unlike this function,
    `transfer` also scales weight decay and beta_2.

    Args:
        batch_size: The batch size of training, in examples.
        base_batch_size: The batch size of the tuned baseline, in examples.
        base_learning_rate: The peak learning rate of the baseline.
        base_warmup_epochs: The warmup of the baseline, in epochs; 0 for none.
        examples: The size of the training set.
        epochs: Number of epochs, as in the baseline.
        rule: "sqrt", "linear" or "legw". Defaults to "sqrt".
        decay: The baseline's decay: "polynomial", "constant", or the epochs at which the rate falls
            to a tenth, such as (30, 60, 80). Defaults to "polynomial", to 0.
        power: Power of the polynomial. Defaults to 1.
        handover: "continuous" if the baseline's decay starts when warmup ends, "drop" if it counts
            from step 0. Defaults to "continuous".

    Returns:
        A `Recipe`.

    Raises:
        TypeError: if an argument is not a number.
        ValueError: if an argument is out of range, if warmup is longer than training, if a decay
            epoch lies within the warmup or not before the end, or if two decay epochs fall on the
            same step.

    Example:
        >>> scale(4096, 256, 1e-3, 0, examples=60000, epochs=25).learning_rate
        0.004
        >>> recipe = scale(8192, 128, 0.1, 0.2, examples=60000, epochs=25, rule="legw")
        >>> recipe.learning_rate, recipe.warmup_epochs, recipe.warmup_steps
        (0.8, 12.8, 94)

    References:
        - sqrt: Hoffer et al., arXiv 1705.08741; the LAMB paper, arXiv 1904.00962
        - linear: Goyal et al., arXiv 1706.02677
        - legw: You et al., arXiv 1901.08256
    """
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(map(repr, RULES))}, not {rule!r}.")
    return scale_by_rule(
        rule, fit_steps, batch_size, base_batch_size, base_learning_rate, base_warmup_epochs,
        examples, epochs, decay, power=power, handover=handover,
    )  # fmt: skip


def scale_by_rule(
    rule: str, count_steps: Callable[..., int], batch_size: int, base_batch_size: int,
    base_learning_rate: float, base_warmup_epochs: float, examples: int, epochs: float,
    decay: str | Iterable[float] = "polynomial", /, **fields: Any,
) -> Recipe:  # fmt: skip
    """Makes a recipe that scales a baseline by a rule.

    Args:
        rule: A key of `RULES`.
        count_steps: The function that converts epochs of training to steps: `fit_steps`, or
            `epochs_to_steps`.
        batch_size: The batch size of training, in examples.
        base_batch_size: The batch size of the baseline, in examples.
        base_learning_rate: The peak learning rate of the baseline.
        base_warmup_epochs: The warmup of the baseline, in epochs; 0 for none.
        examples: The size of the training set.
        epochs: The length of training.
        decay: The decay, as in `scale`: its name, or the epochs at which the rate falls to a tenth.
        **fields: Fields of the `Recipe`, which replace those that the rule sets.

    Raises:
        TypeError: if an argument is not a number.
        ValueError: if an argument is out of range, or if decay epochs do not rise or do not lie
            between the end of warmup and the end of training.
    """
    batch_size = checks.integer("batch_size", batch_size)
    train_steps = training_steps(epochs, examples, batch_size, count_steps)
    k = batch_size / checks.integer("base_batch_size", base_batch_size)
    base_rate = checks.number("base_learning_rate", base_learning_rate, "(0, inf)")
    warmup_epochs = checks.number("base_warmup_epochs", base_warmup_epochs, "[0, inf)")
    if not isinstance(decay, str) and isinstance(decay, Iterable):
        training_arguments = examples, epochs, batch_size, count_steps
        fields["boundaries"] = _boundaries(tuple(decay), warmup_epochs, *training_arguments)
        decay, fields["decay_rate"] = "multi_step", 0.1
    title, max_k, source = RULES[rule]
    if not 1 <= k <= max_k:
        warn(
            f"{fields.get('title', title)} was shown for batches 1 to {max_k} times that of the "
            f"baseline, and {batch_size:,} is {k:g} times {base_batch_size:,}. Check what it gives "
            "before you rely on it."
        )
    factor, factor_text = math.sqrt(k), f"sqrt({k:g})"
    optimizer, initial_rate, warmup_lines = None, 0.0, []
    if rule == "linear":
        factor, factor_text, optimizer = k, f"{k:g}", "SGD"
        # If the batch is smaller than the baseline's, warmup must not start above the new peak.
        initial_rate = base_rate * min(1.0, k)
    elif rule == "legw":
        warmup_lines = [f"warmup epochs = {warmup_epochs:g} x {k:g} = {warmup_epochs * k:g}"]
        warmup_epochs *= k
    rate = base_rate * factor
    warmup_line = epochs_line("warmup", warmup_epochs, examples, batch_size)
    settings = {
        "title": title, "optimizer": optimizer, "batch_size": batch_size, "learning_rate": rate,
        "initial_learning_rate": initial_rate, "train_steps": train_steps, "decay": decay,
        "warmup_steps": epochs_to_steps(warmup_epochs, examples, batch_size),
        "examples": examples, "epochs": epochs, "warmup_epochs": warmup_epochs, "source": source,
        "arithmetic": (
            f"k = {batch_size:,} / {base_batch_size:,} = {k:g}",
            f"learning rate = {base_rate:g} x {factor_text} = {rate:.4g}",
            epochs_line("training", epochs, examples, batch_size, count_steps),
            *warmup_lines,
            f"{warmup_line}, from {initial_rate:g}" if initial_rate else warmup_line,
        ),
    }  # fmt: skip
    return Recipe(**{**settings, **fields})


def _boundaries(decay, warmup_epochs, examples, epochs, batch_size, count_steps) -> tuple[int, ...]:
    """Returns the steps at which the rate falls.

    Args:
        decay: The epochs at which the rate falls.
        warmup_epochs: The length of warmup, in epochs.
        examples, epochs, batch_size, count_steps: As in `training_steps`.

    Raises:
        ValueError: if these epochs do not rise, if one is not between the end of warmup and the end
            of training, or if two fall on the same step.
    """
    if list(decay) != sorted(decay) or not all(0 < epoch < epochs for epoch in decay):
        raise ValueError(
            f"The epochs of decay must rise from above 0 to below the end of training at epoch "
            f"{epochs:g}, not {decay!r}."
        )
    if decay and warmup_epochs > decay[0]:
        raise ValueError(
            f"The rate would decay at epoch {decay[0]:.3g}, within its warmup of "
            f"{warmup_epochs:g} epochs: warm up for {decay[0]:.3g} at most."
        )
    *steps, train_steps = (count_steps(epoch, examples, batch_size) for epoch in (*decay, epochs))
    if len(set(steps)) < len(steps):
        raise ValueError(
            f"The rate would decay twice at one step, at steps {', '.join(map(str, steps))} "
            f"of {train_steps}: train longer, or pass fewer epochs of decay."
        )
    return tuple(steps)
