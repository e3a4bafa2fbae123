"""Converts the hyper-parameters of a tuned baseline to another batch size."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from tf_lamb.core import checks, rules
from tf_lamb.core.messages import table, warn
from tf_lamb.core.recipes.recipe import Recipe
from tf_lamb.core.recipes.scaling import epochs_to_steps, fit_steps, training_steps
from tf_lamb.core.recipes.updates_left import FEW_UPDATES, LEAST_RATIO, seen_lines, updates_text

# The smallest beta_2. Below it the loss spikes, as the configurations of the Marin project say.
MIN_BETA_2 = 0.95
# Shares of the training steps: the shortest warmup at a larger batch, and the longest warmup.
MIN_WARMUP_SHARE, MAX_WARMUP_SHARE = 0.1, 0.25
# The optimizers with which the rules of `transfer` were tested.
MEASURED_OPTIMIZERS = ("LAMB", "LANS", "AdamW", "AdamP", "Muon", "SOAP")
# Optimizer -> the line of the printed recipe that says in which runs it ended worse than its
# baseline.
LOSS_LINES = {"LARS": "LARS lost 2 of 3 runs with 576 updates left, and 3 of 3 with 144 (flights)"}
# Optimizer class of Keras -> the exponent a in the rule of `transfer` for the learning rate with a
# noise scale. No publication has these exponents; they were estimated from tuned rates.
EXPONENTS_OF_KERAS = {"Adam": 0.75, "AdamW": 0.75, "SGD": 0.75}
_HALF_LIFE = "half-life in examples"


class RunSettings(NamedTuple):
    """Holds the numbers of the baseline, or of the new run, that `SETTING_RULES` depend on.

    Attributes:
        batch: The batch size, in examples.
        rate: The peak learning rate.
        steps: All optimizer steps.
    """

    batch: int
    rate: float
    steps: int


# Setting -> (its interval, the function that gives its new value, the rule as a text, the source).
# The function takes the old value, k = new batch / old batch, the `RunSettings` of the baseline and
# the `RunSettings` of the new run.
SETTING_RULES: dict[str, tuple[str, Callable[..., float], str, str]] = {
    "beta_2": (
        "[0, 1)", lambda beta, k, old, new: max(beta**k, min(beta, MIN_BETA_2)),
        f"^k, {MIN_BETA_2} at least", _HALF_LIFE,
    ),
    "weight_decay": (
        "[0, inf)",
        lambda decay, k, old, new: decay * old.rate * old.steps / (new.rate * new.steps),
        "keeps rate x decay x steps", "arXiv 2505.13738",
    ),
    "ema_momentum": ("[0, 1]", lambda momentum, k, *_: momentum**k, "^k", _HALF_LIFE),
    "batch_norm_momentum": (
        "[0, 1)", lambda momentum, k, old, new: max(min(momentum**k, 1 - 6 / new.steps), 0.0),
        "^k, 1 - 6/steps at most", _HALF_LIFE,
    ),
}  # fmt: skip


def transfer(
    batch_size: int, baseline_batch_size: int, learning_rate: float, *, examples: int,
    epochs: float, optimizer: str | None = None, warmup_epochs: float = 0.0,
    baseline_epochs: float | None = None, weight_decay: float | None = None,
    beta_2: float | None = None, ema_momentum: float | None = None,
    batch_norm_momentum: float | None = None, noise_scale: float | None = None,
) -> Recipe:  # fmt: skip
    """Converts a tuned baseline to another batch size; the recipe prints a table of all changes.

        k                    batch_size / baseline_batch_size
        learning_rate        x sqrt(k); with a noise scale N,
                             x ((1 + N/baseline_batch_size) / (1 + N/batch_size))^a, which saturates
        warmup               as many epochs; a tenth of training at least, a quarter at most
        beta_2               ^k, but 0.95 at least
        weight_decay         so that learning_rate x weight_decay, summed over training, stays
        ema_momentum         ^k
        batch_norm_momentum  ^k, but 1 - 6/steps at most

    In this table "x" multiplies the value of the baseline, and "^" raises it to a power. A setting
    that is not passed is not part of the recipe. Epsilon stays the same: Malladi et al.
    divide it by sqrt(k), which changed no measured result.

    For a larger batch, the printed recipe says how many updates are left, and how runs of a
    registered study ended that had about as many updates left (docs/updates_left.md). If only few
    updates are left, no rule keeps the result of the baseline. A warning says so from 8 times the
    batch on if fewer than 512 updates are left.

    The exponent a is 0.5 for LAMB and LANS and 0.75 for the others. It was estimated from tuned
    rates on two tasks, so for other tasks it is a prediction. For Adam, AdamP, SOAP and SGDP it is
    always a prediction: the first three have the exponent of AdamW, and SGDP has that of SGD.

    Args:
        batch_size: The batch size to train with, in examples.
        baseline_batch_size: The batch size of the tuned baseline, in examples.
        learning_rate: The baseline's peak learning rate, tuned for this optimizer.
        examples: The size of the training set.
        epochs: The number of epochs to train.
        optimizer: The name of the optimizer, which sets a. Defaults to None: the recipe is for any
            optimizer, and a = 0.5.
        warmup_epochs: The baseline's warmup, in epochs. Defaults to 0. A larger batch gets a warmup
            even then, because a start at the higher rate loses more than any other choice.
        baseline_epochs: The baseline's epochs. Defaults to None: `epochs`. If they differ, the rate
            is also multiplied by (epochs / baseline_epochs)^-0.3.
        weight_decay: The baseline's weight decay. Defaults to None.
        beta_2: The baseline's `beta_2`. Defaults to None.
        ema_momentum: The baseline's `ema_momentum`, of averaged weights. Defaults to None.
        batch_norm_momentum: The momentum of the baseline's `BatchNormalization` layers. Defaults to
            None.
        noise_scale: The gradient noise scale in examples, as `NoiseScale` reports it late in
            training. Defaults to None.

    Returns:
        A `Recipe`.

    Raises:
        TypeError: if an argument is not a number.
        ValueError: if an argument is out of range, if the optimizer is unknown, or if training
            would have no step.

    Example:
        >>> recipe = transfer(2048, 256, 0.01, examples=60000, epochs=40, beta_2=0.999)
        >>> round(recipe.learning_rate, 4), round(recipe.beta_2, 4), recipe.train_steps
        (0.0283, 0.992, 1200)

    References:
        - Malladi et al., https://arxiv.org/abs/2205.10287, the square root
        - Marek et al., https://arxiv.org/abs/2507.07101, the half-life in examples
        - Bergsma et al., Power Lines, https://arxiv.org/abs/2505.13738, the decay
        - McCandlish et al., https://arxiv.org/abs/1812.06162, the noise scale
    """
    optimizer = _optimizer_name(optimizer)
    batch_size = checks.integer("batch_size", batch_size)
    old_batch = checks.integer("baseline_batch_size", baseline_batch_size)
    old_rate = checks.number("learning_rate", learning_rate, "(0, inf)")
    checks.number("warmup_epochs", warmup_epochs, "[0, inf)")
    old_epochs = epochs if baseline_epochs is None else baseline_epochs
    steps = training_steps(epochs, examples, batch_size, fit_steps)
    old = RunSettings(
        old_batch, old_rate, training_steps(old_epochs, examples, old_batch, fit_steps)
    )
    k = batch_size / old_batch
    rate_factor, rule, source, outlook = _rate_factor(optimizer, batch_size, old_batch, noise_scale)
    if (epoch_ratio := epochs / old_epochs) != 1:
        rate_factor, rule = rate_factor * epoch_ratio**-0.3, f"{rule} x {epoch_ratio:.3g}^-0.3"
    new = RunSettings(batch_size, old_rate * rate_factor, steps)
    old_warmup = epochs_to_steps(warmup_epochs, examples, old_batch)
    warmup, warmup_rule = _warmup_steps(
        epochs_to_steps(warmup_epochs, examples, batch_size), steps, k
    )
    settings = {
        "beta_2": beta_2, "weight_decay": weight_decay, "ema_momentum": ema_momentum,
        "batch_norm_momentum": batch_norm_momentum,
    }  # fmt: skip
    new_settings, rows = _transfer_settings(settings, old, new)
    rows = [
        ("batch size", old.batch, new.batch, f"k = {k:g}", ""),
        ("steps", old.steps, new.steps, "ceil(examples / batch) an epoch", "Keras's fit"),
        ("learning_rate", old.rate, new.rate, rule, source),
        ("warmup steps", old_warmup, warmup, warmup_rule, "arXiv 1706.02677"),
        *rows,
    ]
    if k >= LEAST_RATIO and steps < FEW_UPDATES:
        warn(
            f"Batch {batch_size:,} leaves {steps:,} of {old.steps:,} updates. What so few cost "
            "three small networks of a study, in loss against their batch 16 "
            f"(docs/updates_left.md): {'; '.join(seen_lines(optimizer, steps))}. Take a smaller "
            "batch (recipes.largest_batch), train longer, or let the batch grow (recipes.growing)."
        )
    return Recipe(
        title="Transfer", optimizer=optimizer, batch_size=batch_size, learning_rate=new.rate,
        warmup_steps=warmup, train_steps=steps, examples=examples, epochs=epochs,
        warmup_epochs=warmup_epochs, source="as in the table",
        arithmetic=(*_table_lines(rows), *_outlook_lines(optimizer, k, steps, outlook)),
        **new_settings,
    )  # fmt: skip


def exponents() -> dict[str, float]:
    """Returns optimizer name -> exponent a of `transfer`, for optimizers with a known exponent."""
    exponent_of_rule = {name: rule.transfer_exponent for name, rule in rules.ALL.items()}
    return {name: a for name, a in exponent_of_rule.items() if a is not None} | EXPONENTS_OF_KERAS


def _optimizer_name(optimizer):
    """Returns the name of the optimizer as its class is spelled, such as "LAMB" for "lamb".

    None stays None. Raises `ValueError` for an unknown name.
    """
    known_names = exponents()
    if isinstance(optimizer, str):
        name_by_lower_case = {name.lower(): name for name in known_names}
        optimizer = name_by_lower_case.get(optimizer.lower(), optimizer)
    if optimizer not in (None, *known_names):
        raise ValueError(
            f"optimizer must be one of {', '.join(known_names)} or None, but it is {optimizer!r}."
        )
    return optimizer


def _rate_factor(optimizer, batch_size, old_batch, noise_scale) -> tuple[Any, ...]:
    """Computes the factor of the learning rate.

    Args:
        optimizer: The name of the optimizer, or None.
        batch_size: The new batch size.
        old_batch: The baseline's batch size.
        noise_scale: The noise scale in examples, or None.

    Returns:
        (the factor, the rule as a text, the source of the rule, what to expect of the new run).
    """
    k = batch_size / old_batch
    if noise_scale is not None:
        noise = checks.number("noise_scale", noise_scale, "(0, inf)")
        gain = (1 + noise / old_batch) / (1 + noise / batch_size)
        power = exponents()[optimizer or "LAMB"]
        outlook = (
            f"expect {gain:.2g} times fewer steps and {k / gain:.2g} times the examples to the "
            "same loss, to a factor of two"
        )
        rule = f"x {gain:.3g}^{power:g}, by the noise scale"
        return gain**power, rule, "arXiv 1812.06162", outlook
    outlook = "the same loss may take more examples: NoiseScale estimates how many"
    return math.sqrt(k), "x sqrt(k)", "arXiv 2205.10287", outlook


def _outlook_lines(optimizer, k, steps, outlook) -> list[str]:
    """Returns the lines of the recipe that say what to expect of a larger batch.

    Args:
        optimizer: The name of the optimizer, or None.
        k: The new batch size divided by that of the baseline. If it is at most 1, there are no
            lines.
        steps: The number of updates in training with the new batch.
        outlook: The text on what to expect, from `_rate_factor`.
    """
    if k <= 1:
        return []
    lines = [f"{updates_text(steps)} left; {outlook}"]
    if optimizer in LOSS_LINES:
        lines.append(LOSS_LINES[optimizer])
    elif optimizer not in (None, *MEASURED_OPTIMIZERS):
        lines.append(f"these rules were not measured with {optimizer}")
    lines.append("three small networks of a study, change of loss against their batch 16:")
    lines += [f"  {line}" for line in seen_lines(optimizer, steps)]
    return lines


def _warmup_steps(same_epochs_steps, steps, k) -> tuple[int, str]:
    """Returns the number of warmup steps, and a text that gives the rule by which they were set.

    Args:
        same_epochs_steps: The steps of a warmup that has as many epochs as that of the baseline.
        steps: The steps of training.
        k: The new batch size divided by that of the baseline.
    """
    shortest_warmup = round(MIN_WARMUP_SHARE * steps) if k > 1 else 0
    warmup = min(max(same_epochs_steps, shortest_warmup), int(MAX_WARMUP_SHARE * steps))
    if warmup > same_epochs_steps:
        return warmup, f"{MIN_WARMUP_SHARE:.0%} of training at least"
    if warmup < same_epochs_steps:
        return warmup, f"cut to {MAX_WARMUP_SHARE:.0%} of training"
    return warmup, "as many epochs"


def _transfer_settings(settings, old, new) -> tuple[dict[str, Any], list[tuple]]:
    """Returns the new values of the settings that are not None, and their rows of the table.

    Args:
        settings: Setting -> its value in the baseline, or None.
        old: The `RunSettings` of the baseline.
        new: The new `RunSettings`.
    """
    k, new_settings, rows = new.batch / old.batch, {}, []
    for name, value in settings.items():
        if value is not None:
            interval, new_value, *description = SETTING_RULES[name]
            new_settings[name] = new_value(checks.number(name, value, interval), k, old, new)
            rows.append((name, value, new_settings[name], *description))
    return new_settings, rows


def _table_lines(rows) -> list[str]:
    """Formats the table of the recipe, with the numbers aligned to the right.

    Args:
        rows: Tuples (name, value of the baseline, new value, rule, source).
    """
    head = ("", "baseline", "here", "rule", "source")
    return table(
        [
            head,
            *(
                (name, f"{old:,.6g}", f"{new:,.6g}", *description)
                for name, old, new, *description in rows
            ),
        ],
        right_aligned=(1, 2),
    )
