"""What an optimizer is given by a recipe: its learning rate as a schedule, and its arguments."""

import importlib
from typing import Any

_ARGUMENTS = (
    "weight_decay", "exclude_from_weight_decay", "exclude_from_layer_adaptation", "beta_1",
    "beta_2", "epsilon", "momentum", "nesterov", "trust_coefficient", "global_clipnorm",
)  # fmt: skip


def schedule(recipe: Any, schedules: Any) -> Any:
    """The learning rate of the recipe, step by step.

    Args:
        recipe: one recipe, or stages of them, each warmed up again.
        schedules: the module whose schedules to use: `tf_lamb.core.schedules`, or a door's.
    """
    stages = _stages(recipe)
    if stages[0] is not recipe:
        lengths = [stage.train_steps for stage in stages]
        return schedules.Stages(lengths, [schedule(stage, schedules) for stage in stages])
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


def arguments(recipe: Any, optimizer: str) -> dict[str, Any]:
    """The arguments of the optimizer of that name; what the recipe does not say is left out.

    Raises:
        TypeError: for what is no recipe.
        ValueError: where the recipe is another optimizer's, or its stages differ in an argument.
    """
    stages = _stages(recipe)
    found = []
    for stage in stages:
        if stage.optimizer not in (None, optimizer):
            raise ValueError(
                f"{stage.title} is a recipe for {stage.optimizer}, not for {optimizer}: "
                f"write {_road(stage)}."
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


def _stages(recipe) -> tuple:
    """The recipes that it consists of, or an error that says what a recipe is."""
    if stages := getattr(recipe, "stages", ()):
        return stages
    recipes = importlib.import_module(__package__)  # whose files stand on this one
    returned = {n: getattr(recipes, n).__annotations__.get("return") for n in recipes.__all__}
    names = [n for n, kind in returned.items() if kind in (recipes.Recipe, recipes.StagedRecipe)]
    raise TypeError(
        "A recipe is what tf_lamb.recipes makes for a batch size, such as "
        f"tf_lamb.recipes.untuned_lamb_bert(32768), and not {recipe!r}. There are "
        f"{', '.join(names)}."
    )


def _road(recipe) -> str:
    """How its optimizer is made. SGD is Keras's own, whose weight decay is a penalty's gradient."""
    if recipe.optimizer != "SGD":
        return f"{recipe.optimizer}.from_recipe(...)"
    sgd = {"momentum": recipe.momentum, "nesterov": recipe.nesterov}
    given = "".join(f", {name}={value}" for name, value in sgd.items() if value is not None)
    road = f"keras.optimizers.SGD(recipe.schedule(){given})"
    if recipe.weight_decay:
        road += (
            ", and for its weight decay kernel_regularizer="
            f"keras.regularizers.L2({recipe.weight_decay / 2:g}) in the layers"
        )
    return road
