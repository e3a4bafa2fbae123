"""Makes a recipe whose batch size grows in stages instead of letting the learning rate fall."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tf_lamb.core import checks, schedules
from tf_lamb.core.messages import table
from tf_lamb.core.recipes.recipe import Recipe, StagedRecipe

MIN_UPDATES = 4  # a larger batch begins only if at least this many updates are left for it


def growing(
    recipe: Recipe, largest_batch: int, *, begin_with: Mapping[int, float] | None = None,
    noise_scale: float | None = None,
) -> StagedRecipe:  # fmt: skip
    """Doubles the batch where the schedule has halved the rate, so that fewer updates are made.

    The number of examples stays the same. At each step of the recipe:

        r              the rate of the recipe after warmup, divided by its peak
        k              the largest power of 2 with k <= 1/r and k batch_size <= largest_batch, and
                       with 4 updates left at least
        batch_size     x k
        learning_rate  x sqrt(k), which is Seesaw's rule for Adam; x k if the recipe's optimizer is
                       "SGD", as after `transfer(..., optimizer="SGD")`

    The noise of an update then falls as it would with the smaller rate (for SGD exactly, at first
    order). With linear decay, a third of the updates is saved. If k could be any number, the saved
    share would be 1 - mean(r). Once the batch is `largest_batch`, the rate falls as in the recipe.
    The betas, epsilon and weight decay stay. Training takes less time only if the small batch does
    not use the machines fully, or if machines are added for the larger batches.

    Args:
        recipe: The recipe of the first batch, with a learning rate that falls.
        largest_batch: The largest batch, in examples; at least twice that of the recipe.
        begin_with: Smaller batches to begin with, as batch size -> the share of all examples that
            have been seen when this batch size ends. {64: 0.03, 128: 0.1} takes 64 for 3% of all
            examples, then 128 until 10% are seen. Their rates are multiplied by sqrt(k), or by k
            for SGD, too, with k < 1. Defaults to None.
        noise_scale: Gradient noise scale in examples, as `NoiseScale` reports it late in training.
            No batch becomes larger than it. Defaults to None.

    Returns:
        A `StagedRecipe`, for `fit_stages`, or for `from_recipe` and `gradient_accumulation_steps`.

    Raises:
        TypeError: if `recipe` has stages, or an argument is not a number.
        ValueError: if the batch cannot grow, if a batch is larger than all examples, or if the
            batches or shares of `begin_with` do not rise.

    Example:
        >>> from tf_lamb.core.recipes import growing, scale
        >>> recipe = scale(1024, 256, 1e-3, 0, examples=65536, epochs=10)
        >>> grown = growing(recipe, 8192)
        >>> [(stage.batch_size, stage.train_steps) for stage in grown]
        [(1024, 320), (2048, 80), (4096, 20), (8192, 10)]
        >>> recipe.train_steps, grown.train_steps
        (640, 430)

    References:
        - Meterez et al., Seesaw, https://arxiv.org/abs/2510.14717
        - Smith et al., https://arxiv.org/abs/1711.00489, for SGD
        - Merrill et al., https://arxiv.org/abs/2505.23971, for small batches at the beginning
    """
    if not isinstance(recipe, Recipe):
        raise TypeError(f"A recipe of one stage can grow, and this is a {type(recipe).__name__}.")
    import numpy as np

    batch = recipe.batch_size
    max_batch = checks.integer("largest_batch", largest_batch)
    if noise_scale is not None:
        max_batch = min(max_batch, int(checks.number("noise_scale", noise_scale, "[1, inf)")))
    rates = recipe.schedule(schedules).value(np, np.arange(recipe.train_steps))
    relative_rates = (
        np.maximum.accumulate(rates[::-1])[::-1] / recipe.learning_rate
    )  # the largest rate from each step on, so 1 during warmup
    starts = _smaller_batches(recipe, begin_with)
    first_step = starts.pop()[0]
    steps_left = np.arange(recipe.train_steps - first_step, 0, -1)
    k = batch_factors(
        np, relative_rates[first_step:], np.minimum(max_batch / batch, steps_left / MIN_UPDATES)
    )
    for step in np.flatnonzero(np.diff(k, prepend=0)):
        starts.append((first_step + int(step), batch * int(k[step])))
    if len(starts) == 1 or max_batch < batch:
        raise ValueError(_why_constant(recipe, max_batch))
    last_batch = starts[-1][1]
    if recipe.examples is not None and last_batch > recipe.examples:
        raise ValueError(
            f"A batch of {last_batch:,} is larger than all {recipe.examples:,} examples: pass a "
            f"largest_batch of {recipe.examples:,} at most."
        )
    stages = _stages(recipe, starts)
    updates = sum(stage.train_steps for stage in stages)
    saved_share = 1 - updates / recipe.train_steps
    largest_saved_share = 1 - float(np.mean(relative_rates))
    return StagedRecipe(
        title=f"{recipe.title} with a batch that grows",
        stages=stages,
        arithmetic=(
            *_table_lines(stages),
            f"{updates:,} updates in place of {recipe.train_steps:,} at {batch:,}: "
            f"{saved_share:.1%} fewer; no batch that grows can save more than "
            f"1 - mean(rate / peak) = {largest_saved_share:.1%}",
            *recipe.settings(),
        ),
        source=f"arXiv 2510.14717, from {recipe.title}",
    )


def batch_factors(np: Any, relative_rates: Any, max_factors: Any) -> Any:
    """Returns the factor k by which the batch is multiplied at each step. It never falls.

    Args:
        np: NumPy.
        relative_rates: The learning rate at each step, divided by its peak.
        max_factors: The largest factor that each step allows.

    Returns:
        An array of floats. Each is the largest power of 2 that is at most 1/relative_rates and at
        most `max_factors`, and at least 1; or the factor of an earlier step if that is larger.
    """
    max_factors = np.maximum(max_factors, 1.0)
    inverse_rate = 1 / np.maximum(relative_rates, 1 / max_factors)
    # The 1e-9 makes a rate that is above one half only by a rounding error count as halved.
    k = 2 ** np.floor(np.log2(inverse_rate) + 1e-9)
    return np.maximum.accumulate(k)


def _smaller_batches(recipe, begin_with) -> list[tuple[int, int]]:
    """Checks the `begin_with` of `growing`, and returns where its batches begin.

    Returns:
        A pair (first step, batch size) for each batch of `begin_with`, then one for the batch of
        the recipe. Steps are counted as if all batches had the batch size of the recipe.

    Raises:
        TypeError: if `begin_with` is not a dict of numbers.
        ValueError: if its batches or shares do not rise, if it leaves no step to the batch of the
            recipe, or if it changes the batch in a warmup after which the rate drops.
    """
    batch_ends = {} if begin_with is None else begin_with
    if not isinstance(batch_ends, Mapping):
        raise TypeError(
            f"begin_with has batches and the parts of all examples at which they end, such as "
            f"{{64: 0.03}}, and not {begin_with!r}."
        )
    batches = [checks.integer("A batch of begin_with", batch) for batch in batch_ends]
    end_shares = [
        checks.number("A part of begin_with", end_share, "(0, 1)")
        for end_share in batch_ends.values()
    ]
    if [*batches, recipe.batch_size] != sorted({*batches, recipe.batch_size}):
        raise ValueError(
            f"A batch may not shrink: begin_with has {batches}, and then comes "
            f"{recipe.batch_size}. Pass smaller batches, in order."
        )
    if end_shares != sorted(set(end_shares)):
        raise ValueError(
            f"begin_with ends its batches at {end_shares} of all examples: let them rise."
        )
    ends = [math.ceil(end_share * recipe.train_steps) for end_share in end_shares]
    if ends and ends[-1] >= recipe.train_steps:
        raise ValueError(
            f"begin_with leaves no step to the batch of {recipe.batch_size:,}: end it earlier "
            f"than at {end_shares[-1]:g}."
        )
    if recipe.handover == "drop" and any(end < recipe.warmup_steps for end in ends):
        raise ValueError(
            f"begin_with changes the batch at step {ends[0]:,}, within the warmup of "
            f"{recipe.warmup_steps:,} steps, after which this recipe's rate drops: change it later."
        )
    return list(zip([0, *ends], [*batches, recipe.batch_size], strict=True))


def _why_constant(recipe, max_batch) -> str:
    """Returns the text of the error that says why the batch of a recipe cannot grow.

    Args:
        recipe: The recipe.
        max_batch: The largest batch that is allowed, in examples.
    """
    if max_batch < 2 * recipe.batch_size:
        return (
            f"No batch between {recipe.batch_size:,} and {max_batch:,} is twice that of the "
            "recipe: pass a largest_batch (and a noise scale) of "
            f"{2 * recipe.batch_size:,} or more, or begin with a smaller batch."
        )
    return (
        f"The rate of {recipe.title} never falls to half of its peak, where the batch would "
        f"double, with {2 * MIN_UPDATES} steps left: give the recipe a decay, or an earlier one."
    )


def _stages(recipe, starts) -> tuple[Recipe, ...]:
    """Returns the recipe of each stage. A stage begins where the examples of the previous one end.

    Args:
        recipe: The recipe of the whole training with one batch size.
        starts: For each stage a pair: its first step, counted in steps of that recipe, and its
            batch size.
    """
    stages, stage_start = [], 0.0
    for i, (_, batch) in enumerate(starts):
        stage_end = starts[i + 1][0] if i + 1 < len(starts) else recipe.train_steps
        k = batch / recipe.batch_size
        steps = max(1, math.ceil((stage_end - stage_start) / k - 1e-9))
        stages.append(_stage(recipe, batch, k, stage_start, steps))
        stage_start += steps * k
    return tuple(stages)


def _stage(recipe, batch, k, stage_start, steps) -> Recipe:
    """Returns the recipe of one stage.

    Args:
        recipe: The recipe of the whole training with one batch size.
        batch: The batch size of the stage.
        k: The batch size of the stage divided by that of the recipe.
        stage_start: The step of the recipe at which the stage begins; it may be a fraction.
        steps: The steps of the stage, each of `batch` examples.
    """
    import numpy as np

    def rate(position):
        return factor * float(recipe.schedule(schedules).value(np, np.float64(position)))

    factor = k if recipe.optimizer == "SGD" else math.sqrt(k)
    warmup = min(steps, max(0, round((recipe.warmup_steps - stage_start) / k)))
    peak = rate(stage_start) if stage_start and not warmup else factor * recipe.learning_rate
    if warmup == steps:  # this stage ends within the warmup of the recipe
        initial_rate, warmup_share = (
            recipe.initial_learning_rate,
            (stage_start + steps * k) / recipe.warmup_steps,
        )
        peak = factor * (
            initial_rate + (recipe.learning_rate - initial_rate) * min(1.0, warmup_share)
        )
    is_continuous = recipe.handover == "continuous"
    decay_start = max(stage_start, recipe.warmup_steps) if warmup and is_continuous else stage_start
    decay_end = recipe.train_steps
    if recipe.decay_steps is not None:
        decay_end = recipe.decay_steps + (recipe.warmup_steps if is_continuous else 0)
    stage_boundaries: list[int] = []
    for boundary in (step for step in recipe.boundaries if step > stage_start):
        # Rounding may give two boundaries the same step. The later one is then moved one step on,
        # so that the rate still falls at each boundary.
        previous = stage_boundaries[-1] if stage_boundaries else 0
        stage_boundaries.append(max(previous + 1, round((boundary - stage_start) / k)))
    stage_boundaries = [step for step in stage_boundaries if step < steps]
    return dataclasses.replace(
        recipe,
        title=f"{recipe.title}, batch {batch:,}",
        batch_size=batch,
        learning_rate=peak,
        warmup_steps=warmup,
        train_steps=steps,
        initial_learning_rate=rate(stage_start) if warmup else 0.0,
        end_learning_rate=factor * recipe.end_learning_rate,
        decay="constant" if recipe.decay == "multi_step" and not stage_boundaries else recipe.decay,
        boundaries=tuple(stage_boundaries),
        decay_steps=max(1, math.ceil((decay_end - decay_start) / k)),
        arithmetic=(),
        epochs=None,
        warmup_epochs=None,
    )


def _table_lines(stages) -> list[str]:
    """Formats the stages as a table, a line each."""
    import numpy as np

    rows: list[Sequence[str]] = [
        ("batch", "updates", "warmup steps", "examples", "rate from", "to")
    ]
    for stage in stages:
        rate = stage.schedule(schedules).value
        first_rate, last_rate = (
            float(rate(np, np.float64(step))) for step in (0, stage.train_steps - 1)
        )
        counts = stage.batch_size, stage.train_steps, stage.warmup_steps, stage.examples_seen
        rows.append((*(f"{count:,}" for count in counts), f"{first_rate:.4g}", f"{last_rate:.4g}"))
    return table(rows, right_aligned=range(6))
