"""The arms of docs/protocol.md: what an optimizer and its recipe are at k times the batch."""

import dataclasses

from benchmarks.equivalence.protocol import FROZEN, Settings
from benchmarks.equivalence.workloads import Workload
from tf_lamb.core import recipes
from tf_lamb.core.recipes.recipe import Recipe, StagedRecipe


def plain(workload: Workload, settings: Settings, ratio: int, horizon: int) -> Recipe:
    """Settings as they are, at a batch: a linear warmup, a linear decay to 0."""
    batch, examples = workload.base * ratio, horizon * workload.examples
    steps = -(-examples // batch)
    return Recipe(
        title="As tuned", batch_size=batch, learning_rate=settings.rate, train_steps=steps,
        warmup_steps=round(settings.warmup * steps), examples=examples, source="the search",
    )  # fmt: skip


def arm(
    name: str, workload: Workload, settings: Settings, ratio: int, horizon: int
) -> tuple[Settings, Recipe | StagedRecipe]:
    """Settings and recipe at `ratio` times the batch of what was tuned.

    Raises:
        ValueError: where the rule has no answer.
    """
    rule, _, spec = name.partition(" ")
    batch, base = workload.base * ratio, workload.base
    examples = horizon * workload.examples
    if rule == "unchanged":
        return settings, plain(workload, settings, ratio, horizon)
    if rule == "growing":
        recipe = plain(workload, settings, 1, horizon)
        return settings, recipes.growing(recipe, batch)
    if rule == "legw":
        tuned = base, settings.rate, settings.warmup
        return settings, recipes.scale(batch, *tuned, examples, 1, rule="legw")
    if rule != "transfer":
        raise ValueError(f"there is no arm {name!r}")
    known = {"adamw": "AdamW", "lamb": "LAMB", "muon": "Muon", "momentum": "SGD"}
    recipe = recipes.transfer(
        batch, base, settings.rate, examples=examples, epochs=1, optimizer=known.get(spec),
        warmup_epochs=settings.warmup, beta_2=settings.beta_2,
        weight_decay=settings.weight_decay or None,
    )  # fmt: skip
    moved = {name: getattr(recipe, name) for name in ("beta_2", "weight_decay")}
    own = {name: value for name, value in moved.items() if value is not None}
    return dataclasses.replace(settings, rate=recipe.learning_rate, **own), recipe


def grown(name: str, settings: Settings, ratio: int, horizon: int = 1) -> list:
    """The stages of a batch that may grow up to so many times the base batch of a workload.

    It may end at a smaller one: a stage needs four updates.
    """
    workload = Workload(name, (), None, None, **FROZEN["workloads"][name])  # without its data
    return list(arm("growing adamw", workload, settings, ratio, horizon)[1].stages)
