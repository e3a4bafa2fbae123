"""What an optimizer is given by a recipe: its learning rate as a schedule, and its arguments."""

from typing import Any

from tf_lamb.core.recipes.recipe import Recipe, StagedRecipe

_ARGUMENTS = (
    "weight_decay", "exclude_from_weight_decay", "exclude_from_layer_adaptation", "beta_1",
    "beta_2", "epsilon", "momentum", "nesterov", "trust_coefficient", "global_clipnorm",
)  # fmt: skip


def schedule(recipe: Recipe | StagedRecipe, schedules) -> Any:
    """The learning rate of the recipe, step by step.

    Args:
        recipe: one recipe, or stages of them, each warmed up again.
        schedules: the module whose schedules to use: `tf_lamb.core.schedules`, or a door's.
    """
    if isinstance(recipe, StagedRecipe):
        lengths = [stage.train_steps for stage in recipe]
        return schedules.Stages(lengths, [schedule(stage, schedules) for stage in recipe])
    peak, warmup, handover = recipe.learning_rate, recipe.warmup_steps, recipe.handover
    after: Any
    if recipe.decay == "multi_step":
        rates = [peak * recipe.decay_rate**i for i in range(len(recipe.boundaries) + 1)]
        after, handover = schedules.MultiStep(recipe.boundaries, rates), "drop"  # absolute steps
    elif recipe.decay == "constant" or warmup == recipe.train_steps:
        after = schedules.Constant(peak)
    else:
        steps = recipe.train_steps - (warmup if handover == "continuous" else 0)
        after = schedules.Polynomial(peak, steps, recipe.end_learning_rate, recipe.power)
    if not warmup:
        return after
    start = recipe.initial_learning_rate
    return schedules.Warmup(warmup, after, start=start, handover=handover)


def arguments(recipe: Recipe | StagedRecipe, optimizer: str) -> dict[str, Any]:
    """The arguments of the optimizer of that name; what the recipe does not say is left out.

    Raises:
        ValueError: where the recipe is another optimizer's, or its stages differ in an argument.
    """
    stages = list(recipe) if isinstance(recipe, StagedRecipe) else [recipe]
    found = []
    for stage in stages:
        if stage.optimizer not in (None, optimizer):
            raise ValueError(
                f"{stage.title} is a recipe for {stage.optimizer}, not for {optimizer}: "
                f"write {stage.optimizer}.from_recipe(...)."
            )
        given = {name: getattr(stage, name) for name in _ARGUMENTS}
        found.append({name: value for name, value in given.items() if value is not None})
    for stage, others in zip(stages, found, strict=True):
        if others != found[0]:
            raise ValueError(
                f"The stages of {recipe.title} need optimizers of their own: {stage.title} has "
                f"{others}, the first stage {found[0]}. Make one optimizer for each stage."
            )
    return found[0]
